"""Captions that are not English, or not written with spaces; function words and content words of many languages."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.metrics.captions_by_language import OTHERS, PARTS, REPORTS, TITLES, captions, plain
from vision_attn.contracts import Caption, DecodedCaption, Results
from vision_attn.data.words import KINDS
from vision_attn.metrics import caption_metrics
from vision_attn.metrics.coco.languages import unsegmented
from vision_attn.metrics.evaluators import CaptionScores, Motion, content_of
from vision_attn.metrics.function_words import FUNCTION_WORDS, LANGUAGES, commonest, function_words_of, language_of

CHINESE = {1: "一个红色的圆形", 2: "两只狗在草地上"}
FOREIGN = [name for name in PARTS if name != "english"]


def test_both_sides_are_segmented_alike():
    references = {1: ["一个红色的圆形。", "红色圆形"], 2: ["两只狗 在草地上"]}
    found = caption_metrics(CHINESE, references, split=KINDS["characters"]().split)
    assert found.metrics["BLEU-4"] == pytest.approx(1) and found.metrics["CIDEr"] > 1
    assert not {"METEOR", "SPICE"} & found.metrics.keys() and not found.failed
    assert any("METEOR" in note and "left out: it compares English words" in note for note in found.notes)
    composed = caption_metrics({1: "cafe\u0301 bar"}, {1: ["caf\u00e9 bar"]}, names=["BLEU-2"], split=str.split)
    assert composed.metrics["BLEU-2"] == pytest.approx(1)


def test_captions_without_spaces_are_named():
    assert "4 of 6 captions are written without spaces" in unsegmented([*CHINESE.values()] * 2 + ["a dog"] * 2)[0]
    assert unsegmented([*CHINESE.values(), "红色 圆形", "两只 狗"]) == []
    assert unsegmented(["motorcycle", "airplane", "一个"]) == []


@pytest.mark.parametrize("number", (15, 1000))
@pytest.mark.parametrize("name", PARTS)
def test_the_language_is_that_of_the_most_frequent_function_words(name, number):
    texts = captions(PARTS[name], number)
    assert len({*texts}) == number
    for written in (texts, [text.upper() for text in texts] if name != "turkish" else texts):
        found = language_of(written)
        assert found.name == name and bool(found.not_english) == (name != "english") and not found.terse


@pytest.mark.parametrize("number", (15, 1000))
@pytest.mark.parametrize("parts", (REPORTS, TITLES), ids=("reports", "titles"))
def test_terse_english_is_english(parts, number):
    found = language_of(captions(parts, number))
    assert not found.not_english and found.name == "english"
    assert ("function words, and METEOR weighs these as in sentences" in found.terse) == (number == 1000)


@pytest.mark.parametrize("name", OTHERS)
def test_a_language_that_is_not_known_is_not_english(name):
    """ "a" is the article of Hungarian, and "on" is "is" in Finnish: one word does not make a text English."""
    found = language_of(captions(OTHERS[name]))
    assert found.name == "" and "are among those that English sentences share" in found.not_english


def test_other_scripts_and_numbers_are_not_english():
    assert "of 1,100 letters are not Latin" in language_of(["собака бежит"] * 100).not_english
    assert "letters are not Latin" in language_of(["كلب يركض"]).not_english
    assert "only 0 of 300 words" in language_of(["7 3 1"] * 100).not_english


def test_few_captions_in_latin_letters_may_be_english():
    for texts in (["dogs run", "cats sleep"], ["La Paz", "red bus"], ["white van", "a man in a hat"], ["7 3 1"], []):
        assert language_of(texts).not_english == ""


def test_a_few_foreign_captions_do_not_decide():
    english = captions(PARTS["english"], 60)
    for name in FOREIGN:
        foreign = captions(PARTS[name], 20)
        assert language_of(english + foreign).not_english == "", name
        assert language_of(foreign * 4 + english[:20]).name == name


def test_english_data_sets_are_english(data_folder: Path):
    """All captions of a set, and each of 4,000 by itself: of all 82,000 two are not, which quote other words."""
    found = []
    for name in ("flickr8k/captions.json", "everyday/captions.json", "coco/captions_val2017.json"):
        texts = [note["caption"] for note in json.loads((data_folder / name).read_text())["annotations"]]
        assert language_of(texts) == ("english", "", "")
        found += [text for text in texts[::20] if language_of([text]).not_english]
    assert len(found) <= 1, found


REFERENCES = {
    name: [plain(text) for text in captions(parts, 60)]
    for name, parts in {**PARTS, **OTHERS, "reports": REPORTS}.items()
}


@pytest.mark.parametrize("name", ("german", "dutch", "italian", "indonesian", "english", "reports"))
def test_meteor_is_for_english(name):
    references = {number: [text] for number, text in enumerate(REFERENCES[name])}
    candidates = {number: texts[0] for number, texts in references.items()}
    english = name in ("english", "reports")
    found = caption_metrics(candidates, references)
    assert ("METEOR" in found.metrics) == english and found.metrics["BLEU-1"] == pytest.approx(1)
    about = [note for note in found.notes if note.startswith("METEOR")]
    if name in LANGUAGES and not english:
        assert about[0].startswith("METEOR left out: it knows English, and of")
        assert f"are function words of {name.capitalize()}" in about[0]
    assert len(about) == (name != "english") and ("only 14% of the words" in "".join(about)) == (name == "reports")
    asked = caption_metrics(candidates, references, names=["METEOR"])
    assert "METEOR" in asked.metrics and len(asked.notes) == (name != "english")


def test_all_captions_of_a_data_set_decide_on_a_small_split():
    """One caption for each of 17 test photographs, of which most have no function word."""
    terse = {number: ["hund"] for number in range(17)}
    candidates = dict.fromkeys(terse, "hund")
    assert "METEOR" in caption_metrics(candidates, terse).metrics
    german, english = (language_of(captions(PARTS[name], 1000)) for name in ("german", "english"))
    assert "METEOR" not in caption_metrics(candidates, terse, language=german).metrics
    foreign = {number: [text] for number, text in enumerate(REFERENCES["german"][:17])}
    assert "METEOR" not in caption_metrics(candidates, foreign).metrics
    assert "METEOR" in caption_metrics(candidates, foreign, language=english).metrics


CONTENT = {
    "Ein Hund läuft auf dem Gras": "Hund läuft Gras",
    "l' homme dort sous un arbre": "homme dort arbre",
    "een hond rent door het gras": "hond rent gras",
    "собака бежит по траве": "собака бежит траве",
    "a dog runs on the grass": "dog runs grass",
    "un cane corre nell' erba": "cane corre erba",
}


@pytest.mark.parametrize("text", CONTENT)
def test_content_words_are_all_but_the_function_words_of_a_language(text):
    words, known = text.split(), function_words_of(text)
    marks = [word.lower() not in known for word in words]
    assert content_of(DecodedCaption(text, words, [], content=marks)) == CONTENT[text].split()
    assert function_words_of("Hund Katze") == FUNCTION_WORDS


def test_the_commonest_words_are_those_of_most_photographs():
    several = captions(OTHERS["indonesian"], 1000)
    images = [" ".join(several[first : first + 5]).lower().split() for first in range(0, 1000, 5)]
    found = commonest(images)
    assert {"di", "yang", "seorang", "sedang"} <= {*found}
    assert commonest([["a", "A", "dog"], ["a", "cat"], ["A", "fish"]]) == ["a"] and commonest([]) == []


def test_lists_of_function_words_are_short_and_in_lower_case():
    for name, words in LANGUAGES.items():
        assert all(word == word.lower().strip() for word in words) and "" not in words
        if name != "english":
            assert 40 <= len(words) <= 80, name


def test_content_words_are_those_that_captions_mark():
    """Movement and repetitions in German."""
    alpha = torch.eye(4)[[0, 3, 1, 1, 2, 3]].reshape(6, 2, 2)
    words = ["ein", "hund", "auf", "gras", "und", "ein"]
    for marks, moved, repeated in ((None, 0.8, 1.0), ([False, True, False, True, False, False], 1.0, 0.0)):
        caption = DecodedCaption(" ".join(words), words, [0.0] * 6, alpha, content=marks)
        results = Results(Caption(torch.zeros(1, 1, 6)), [caption], {}, frozenset())
        motion, scores = Motion(), CaptionScores()
        motion.update(None, results)
        scores.update(SimpleNamespace(ids=[1], references=[["ein hund"]]), results)
        assert motion.compute()["movement_content"] == pytest.approx(moved)
        assert scores.compute()["repetition"] == repeated

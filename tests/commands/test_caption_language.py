"""A data set in another language from training to evaluation: METEOR, content words, and where these are kept."""

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image

import vision_attn
from tests.metrics.captions_by_language import OTHERS, PARTS, captions, plain
from tests.untrained import CONFIGS, SIZES
from vision_attn.commands import main
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.metrics.function_words import FUNCTION_WORDS, LANGUAGES
from vision_attn.system.errors import UserError
from vision_attn.tasks.subjects import CaptionSubject

SOURCE = ["--data=vision_attn.data.photographs.captions.Captions", "--data.images=images", "--data.min_count=1"]
SOURCE += ["--data.cache=null", "--data.batch_size=4"]
SMALL = [option for option in SIZES["sat_soft_scenes"] if "data." not in option]
TRAIN = ["--run.epochs=1", "--run.metric=nll", "--run.mode=min", "--task.validate_with=[]", "--run.sanity_check=false"]


def write(texts: Sequence[str], tests: Sequence[str]) -> None:
    """Photographs with a caption each, the last ones for validation and testing."""
    Path("images").mkdir()
    splits = ["train"] * len(texts) + ["val"] * 3 + ["test"] * len(tests)
    rows = zip([*texts, *texts[:3], *tests], splits, strict=True)
    with open("images/captions.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["image", "caption", "split"])
        for number, (text, split) in enumerate(rows):
            Image.new("RGB", (56, 56), (5 * number % 256, 99, number)).save(f"images/{number}.png")
            table.writerow([f"{number}.png", text, split])


def train(*options: str) -> None:
    given = [*SMALL, *SOURCE, *TRAIN, *options]
    assert main(["train", str(CONFIGS / "sat_soft_scenes.yaml"), "--run.folder=run", *given]) == 0


def evaluated(capsys: pytest.CaptureFixture, *options: str) -> tuple[dict, str]:
    capsys.readouterr()
    assert main(["eval", "run", *options]) == 0
    return json.loads(Path("run/metrics_test.json").read_text()), capsys.readouterr().err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_german_data_set(here: None, capsys: pytest.CaptureFixture) -> None:
    """Its test split alone, three captions without a function word, says nothing of its language."""
    write([plain(text) for text in captions(PARTS["german"], 30)], ["hund", "katze", "hund"])
    train()
    german = LANGUAGES["german"]
    assert {*json.loads(Path("run/best/function_words.json").read_text(encoding="utf-8"))} == german
    metrics, said = evaluated(capsys)
    assert metrics["BLEU-1"] is not None and "METEOR" not in metrics
    assert "METEOR left out: it knows English, and of" in said and "are function words of German" in said
    assert "add --data.function_words" not in said

    task = vision_attn.load("run").task
    assert task.vocabulary.function_words == german
    content = {task.vocabulary.words[index] for index in task.content_ids}
    assert {"hund", "sitzt", "bank", "kirche"} <= content and not {"ein", "eine", "auf", "dem", "mit"} & content
    torch.manual_seed(0)
    images = torch.randint(256, (4, 3, 56, 56), dtype=torch.uint8)
    repeated = 0
    for caption in task.describe(images, decoding=task.decoding.changed(content_once=True, max_words=40, min_words=30)):
        said_once = [word for word in caption.words if word not in german]
        assert len({*said_once}) == len(said_once) and caption.content == [word not in german for word in caption.words]
        repeated += len({*caption.words}) < len(caption.words)
    assert repeated  # function words may be
    task.decoding = task.decoding.changed(min_words=6)
    subject = CaptionSubject(task, torch.device("cpu"))
    asked = [one for image in images for one in subject.questions(image.float())]
    assert asked and all(one.content == (one.text not in german) for one in asked)

    assert main(["pack", "run", "packed"]) == 0
    assert vision_attn.load("packed").task.vocabulary.function_words == german
    Path("run/best/function_words.json").unlink()  # a run of before: the function words are those of English
    task = vision_attn.load("run").task
    assert task.vocabulary.function_words == FUNCTION_WORDS
    metrics, said = evaluated(capsys)
    assert "METEOR" not in metrics and "if captions are German too, add --data.function_words=german" in said
    metrics, said = evaluated(capsys, "--data.function_words=german")
    assert "METEOR left out" in said and "add --data.function_words" not in said
    metrics, _ = evaluated(capsys, "--data.function_words=english")
    assert metrics["METEOR"] >= 0
    Path("run/best/function_words.json").write_text('{"a": 1}')
    with pytest.raises(UserError, match="function_words.json is damaged: it must be a list of words"):
        vision_attn.load("run")


def test_a_run_that_starts_from_english_words_learns_those_of_its_captions(here: None) -> None:
    write(captions(PARTS["english"], 12), ["a dog"])
    train()
    assert not Path("run/best/function_words.json").exists()
    shutil.move("run", "english")
    shutil.rmtree("images")
    write(captions(PARTS["dutch"], 12), ["een hond"])
    train("--run.start_from=english")
    task = vision_attn.load("run").task
    assert task.vocabulary.function_words == LANGUAGES["dutch"] and "dog" in task.vocabulary.words


def test_function_words_that_are_not_known(here: None, capsys: pytest.CaptureFixture) -> None:
    """Those that stand in most photographs' captions are taken; a line says so."""
    write(captions(OTHERS["indonesian"], 60), ["anjing"])
    prepared = ["prepare", str(CONFIGS / "sat_soft_scenes.yaml"), "--run.folder=words", *SMALL, *SOURCE]
    assert main(prepared) == 0
    said = capsys.readouterr().err
    assert "the function words of these captions are not known" in said
    assert "stand in the captions of most photographs are taken for them: di" in said
    assert json.loads(Path("words/function_words.json").read_text()) == ["di"]
    assert main([*prepared, "--data.function_words=[di, yang, Sedang]"]) == 0
    assert "not known" not in capsys.readouterr().err
    assert json.loads(Path("words/function_words.json").read_text()) == ["di", "sedang", "yang"]
    assert main([*prepared, "--data.function_words=english"]) == 0 and not Path("words/function_words.json").exists()
    assert main([*prepared, "--data.function_words=Klingon"]) == 1
    assert "data.function_words is 'Klingon', and must be a language (english, german, " in capsys.readouterr().err
    source = Captions(images="images", vocabulary="words/vocabulary.json")
    assert source.vocabulary.function_words == {"di"} and source.caption_language.name == ""
    assert Captions(images="images", words="characters").vocabulary.function_words == FUNCTION_WORDS


def test_meteor_of_validation_says_what_it_is_worth(here: None, capsys: pytest.CaptureFixture) -> None:
    write([plain(text) for text in captions(PARTS["italian"], 20)], ["un cane"])
    train("--task.validate_with=[METEOR]", "--run.epochs=2")
    said = capsys.readouterr().err
    assert said.count("task.validate_with: METEOR says little here: it knows English, and of") == 1


@pytest.mark.parametrize("name", ["german", "english"])
def test_all_references_decide_on_what_is_scored(name: str, here: None, capsys: pytest.CaptureFixture) -> None:
    write([plain(text) for text in captions(PARTS[name], 60)], ["red bus"])
    Path("said.csv").write_text("image,caption\n63.png,red bus\n", encoding="utf-8")
    assert main(["score", "said.csv", "images/captions.csv"]) == 0
    told = capsys.readouterr().out
    assert ("METEOR left out: it knows English" in told) == (name == "german")


NOT_NAMES = {
    "chinese": ({"一", "个", "在", "的", "色"}, {"红", "圆"}),
    "hebrew": ({"תמונה", "של", "יש", "משמאל"}, {"אדום", "עיגול", "לעיגול"}),
}


@pytest.mark.parametrize("language", NOT_NAMES)
def test_words_of_drawn_scenes_that_name_no_object_are_function_words(language: str) -> None:
    vocabulary, (function_words, names) = Scenes(language=language).vocabulary, NOT_NAMES[language]
    assert function_words <= vocabulary.function_words < {*vocabulary.words}
    assert names <= {*vocabulary.words} - vocabulary.function_words
    assert Scenes().vocabulary.function_words == FUNCTION_WORDS
    for words in ("raw", "characters"):  # which say nothing by themselves
        assert Scenes(language=language, words=words).vocabulary.function_words == FUNCTION_WORDS

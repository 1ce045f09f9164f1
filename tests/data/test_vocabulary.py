"""Words and ids in many languages."""

import json
import unicodedata
from itertools import product

import pytest
from tokenizers import Tokenizer

from vision_attn.data.vocabulary import END, PAD, UNKNOWN, Vocabulary
from vision_attn.data.words import PLAIN, Spaces, spans
from vision_attn.system.errors import UserError

# A caption, and its words.
LANGUAGES = {
    "english": ("A man's T-shirt – don't! 3.5mm, 'quoted'", ["a", "man's", "t-shirt", "don't", "3.5", "mm", "quoted"]),
    "german": ("Ein Mädchen läuft über die Straße.", ["ein", "mädchen", "läuft", "über", "die", "straße"]),
    "french": ("L’homme qu'il aime aujourd'hui…", ["l'", "homme", "qu'", "il", "aime", "aujourd'hui"]),
    "hindi": ("एक लड़की खेल रही है।", ["एक", "लड़की", "खेल", "रही", "है"]),
    "arabic": ("رجلٌ يركب درّاجة، هنا؟", ["رجلٌ", "يركب", "درّاجة", "هنا"]),
    "persian": ("می‌خواهم", ["می‌خواهم"]),
    "chinese": ("一个人，iPhone 手机。", ["一", "个", "人", "iphone", "手", "机"]),
    "japanese": ("サッカーをする人々", ["サ", "ッ", "カ", "ー", "を", "す", "る", "人", "々"]),
    "korean": ("한국어 문장", ["한국어", "문장"]),
    "russian": ("Ёжик — в траве;", ["ёжик", "в", "траве"]),
    "emoji": ("dog😀cat 👨‍👩‍👧 👍🏽 🇩🇪", ["dog", "😀", "cat", "👨‍👩‍👧", "👍🏽", "🇩🇪"]),
    "decomposed": ("e\u0301te\u0301 \ufb01sh", ["été", "fish"]),
    "nothing": (" ...\n!", []),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_words_of(language):
    caption, words = LANGUAGES[language]
    words = [unicodedata.normalize("NFKC", word) for word in words]
    vocabulary = Vocabulary.build([caption], min_count=1)
    assert vocabulary.tokens(caption) == words
    spelled = vocabulary.decode([*vocabulary.encode(caption), END, 3, PAD])
    assert vocabulary.tokens(spelled) == words  # what is decoded reads as the same words


def test_plain_captions_have_the_words_that_the_tokenizer_finds():
    for characters in product('aQu .,:;!?"()', repeat=3):
        caption = "".join(("b", *characters, "C"))
        assert PLAIN.fullmatch(caption) and Spaces().split(caption) == [word for word, _ in spans(caption)[1]]
    assert not any(map(PLAIN.fullmatch, ("3", "don't", "t-shirt", "a\u0301", "\u017f", "a\nb", "a`b", "\u212a")))


def test_spaces_stand_where_the_script_has_them():
    for caption in ("一个人在骑自行车 iphone 手机", "l'homme est là", "two dogs run", "ไปดี"):
        vocabulary = Vocabulary.build([caption], min_count=1)
        assert vocabulary.decode(vocabulary.encode(caption)) == caption


def test_words_by_count_then_alphabet():
    captions = ["b a c", "c b a", "d c", "Ä"]
    assert Vocabulary.build(captions, min_count=1).words == ["<pad>", "<end>", "<unk>", "c", "a", "b", "d", "ä"]
    assert Vocabulary.build(reversed(captions), min_count=2).words[3:] == ["c", "a", "b"]
    assert Vocabulary.build(captions, min_count=1, max_words=2).words[3:] == ["c", "a"]
    assert len(Vocabulary.build([], min_count=1)) == 3


def test_unknown_words_and_specials():
    vocabulary = Vocabulary.build(["a dog"], min_count=1)
    assert vocabulary.encode("A zebra <pad> <end>") == [3, UNKNOWN, UNKNOWN, UNKNOWN]
    assert vocabulary.decode([PAD, 3, PAD, UNKNOWN, 4, END, 3]) == "a <unk> dog"
    assert vocabulary.decode([]) == "" == vocabulary.decode([END])


def test_saved_as_the_librarys_own_json(tmp_path):
    vocabulary = Vocabulary.build([caption for caption, _ in LANGUAGES.values()], min_count=1)
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded, theirs = (
        Vocabulary.load(tmp_path / "vocabulary.json"),
        Tokenizer.from_file(str(tmp_path / "vocabulary.json")),
    )
    assert loaded.words == vocabulary.words
    for caption, _ in LANGUAGES.values():
        assert loaded.encode(caption) == vocabulary.encode(caption) == theirs.encode(caption).ids


def test_what_is_no_vocabulary_is_named(tmp_path):
    with pytest.raises(UserError, match="none.json"):
        Vocabulary.load(tmp_path / "none.json")
    for content in ("{", "[]", "\xff"):
        (tmp_path / "bad.json").write_text(content, encoding="latin-1")
        with pytest.raises(UserError, match="bad.json is not a vocabulary"):
            Vocabulary.load(tmp_path / "bad.json")
    Vocabulary.build(["a"], min_count=1).save(tmp_path / "moved.json")
    moved = json.loads((tmp_path / "moved.json").read_text())
    moved["model"]["vocab"] = {"<unk>": 0, "a": 1}
    (tmp_path / "moved.json").write_text(json.dumps(moved))
    with pytest.raises(UserError, match="moved.json.*beginning with <pad>"):
        Vocabulary.load(tmp_path / "moved.json")


def test_a_vocabulary_from_anyone_is_words_alone(tmp_path):
    """Patterns of the file could match for ever; the library may panic over other parts of it."""
    path = tmp_path / "vocabulary.json"
    Vocabulary.build(["the cat", "a xxx"], min_count=1).save(path)
    good = json.loads(path.read_text())
    slow = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Removed", "invert": True}
    unused = {"truncation": {"max_length": -1}, "added_tokens": [{"id": -1}], "normalizer": {}, "decoder": slow}
    path.write_text(json.dumps(good | unused))
    vocabulary = Vocabulary.load(path)
    assert vocabulary.words == [*good["model"]["vocab"]] and vocabulary.tokens("A " + "x" * 40) == ["a", "x" * 40]

    specials = {"<pad>": 0, "<end>": 1, "<unk>": 2}
    for change, said in (
        ({"pre_tokenizer": slow}, "made by another version or another tool"),
        ({"pre_tokenizer": None}, "are missing"),
        ({"model": None}, "are missing"),
        ({"model": {"vocab": ["a"]}}, "are missing"),
        ({"model": {"vocab": [4, 5]}}, "are missing"),
        ({"model": {"vocab": specials | {"a": "3"}}}, "are missing"),
        ({"model": {"vocab": specials | {"a": 3.0}}}, "must count up"),
        ({"model": {"vocab": {"<pad>": False, "<end>": True, "<unk>": 2}}}, "must count up"),
        ({"model": {"vocab": specials | {"a": 10**9}}}, "must count up"),
        ({"model": {"vocab": specials | {"": 3}}}, "'' is not a word"),
        ({"model": {"vocab": specials | {"a\n": 3}}}, r"'a\\n' is not a word"),
        ({"model": {"vocab": specials | {"\x1b[2J": 3}}}, "is not a word"),
        ({"model": {"vocab": specials | {"\ud800": 3}}}, "is not a word"),
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(UserError, match=f"vocabulary.json is not a vocabulary.*{said}"):
            Vocabulary.load(path)


def test_a_vocabulary_has_a_largest_size(tmp_path, monkeypatch):
    path = tmp_path / "vocabulary.json"
    vocabulary = Vocabulary.build(["the cat sat"], min_count=1)
    vocabulary.save(path)
    fewer = Vocabulary.build(["the cat sat"], min_count=1, max_words=2)
    fewer.save(tmp_path / "fewer.json")
    monkeypatch.setattr("vision_attn.data.vocabulary.MAX_WORDS", 5)  # of half a million
    assert Vocabulary.load(tmp_path / "fewer.json").words == fewer.words
    with pytest.raises(UserError, match="more than 5 words"):
        Vocabulary.load(path)
    with pytest.raises(UserError, match="the captions have 3 words: raise min_count"):
        Vocabulary.build(["the cat sat"], min_count=1)
    assert len(Vocabulary.build(["the cat sat"], min_count=1, max_words=2)) == 5
    with open(path, "ab") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(UserError, match="more than 64 MiB"):
        Vocabulary.load(path)


def test_flickr8k_and_coco(data_folder):
    """Sizes seen with other tools too: words that occur five times in Flickr8k's training captions."""
    for file, known in (
        ("flickr8k/captions.json", range(2900, 3100)),
        ("coco/captions_val2017.json", range(2200, 2500)),
    ):
        captions = [note["caption"] for note in json.loads((data_folder / file).read_text())["annotations"]]
        vocabulary = Vocabulary.build(captions)
        assert len(vocabulary) in known
        assert all(vocabulary.tokens(caption) == [word for word, _ in spans(caption)[1]] for caption in captions[::10])
        words = [word for caption in captions[::4] for word in vocabulary.encode(caption)]
        assert words.count(UNKNOWN) / len(words) < 0.05

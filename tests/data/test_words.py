"""Captions as characters, as pieces, and as the words of a library."""

import json
import re
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from tests.untrained import CONFIGS, SIZES
from vision_attn.commands import main
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.photographs.photograph import one_line
from vision_attn.data.photographs.shards import Shards
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.data.vocabulary import UNKNOWN, Vocabulary
from vision_attn.data.words import KINDS, Kind, Pieces, segmenter
from vision_attn.system.errors import UserError
from vision_attn.system.word_spacing import SPACELESS, joined
from vision_attn.viz.attention import write_sheet
from vision_attn.viz.page import PageItem, write_page

CAPTIONS = (
    "一个红色的圆形在左边",
    "一个红色的方形",
    "a red circle",
    "one iPhone 手机 的 两 个",
    "ไปดี",
    "l'homme est là",
    "x",
)


@pytest.mark.parametrize("kind", ("spaces", "characters", "pieces"))
def test_captions_are_joined_as_they_were_written(kind, tmp_path):
    written = [*CAPTIONS[:3], "one iphone 手机的两个", *CAPTIONS[4:]]
    vocabulary = Vocabulary.build(CAPTIONS, words=kind, min_count=1)
    assert [vocabulary.decode(vocabulary.encode(caption)) for caption in CAPTIONS] == written
    vocabulary.save(tmp_path / "vocabulary.json")
    again = Vocabulary.load(tmp_path / "vocabulary.json")
    assert type(again.splitter) is type(vocabulary.splitter) and again.words == vocabulary.words
    assert [*map(again.encode, CAPTIONS)] == [*map(vocabulary.encode, CAPTIONS)]
    assert json.loads((tmp_path / "vocabulary.json").read_text()).get("words", "spaces") == kind


def test_cased_words_keep_case_and_drop_punctuation(tmp_path):
    captions = ["Ein Hund jagt, eine Katze!", "Zwei Hunde (und ein Ball)."]
    Vocabulary.build(captions, words="cased", min_count=1).save(tmp_path / "vocabulary.json")
    vocabulary = Vocabulary.load(tmp_path / "vocabulary.json")
    written = [vocabulary.decode(vocabulary.encode(caption)) for caption in captions]
    assert written == ["Ein Hund jagt eine Katze", "Zwei Hunde und ein Ball"]
    assert {"Ein", "ein"} <= {*vocabulary.words} and vocabulary.splitter.scored is None


def test_raw_words_keep_case_and_symbols(tmp_path):
    """As of formulas and code, also where a word ends in an apostrophe or a script has no spaces."""
    captions = ["\\frac { a } { b } + x ^ 2 = 0", "O E | || C++ 50%", "x' = f(x) , o", "红色 圆形 a"]
    Vocabulary.build(captions, words="raw", min_count=1).save(tmp_path / "vocabulary.json")
    vocabulary = Vocabulary.load(tmp_path / "vocabulary.json")
    assert [vocabulary.decode(vocabulary.encode(caption)) for caption in captions] == captions
    assert not any(map(vocabulary.left_out, captions)) and vocabulary.encode("X") == [UNKNOWN]
    assert vocabulary.splitter.scored("C++ | O") == ["C++", "|", "O"] and "▁o" in vocabulary.words


def test_characters_keep_their_marks_and_begin_words():
    split = KINDS["characters"]().split
    assert split("Un café, 手机!") == ["▁u", "n", "▁c", "a", "f", "é", "手", "机"]
    assert split("รู้ 👍🏽 रही") == ["รู้"[:3], "▁👍🏽", "▁र", "ही"]
    assert joined(split("two dogs, 两只狗")) == "two dogs 两只狗"


def test_pieces_are_trained_on_the_captions_and_limited():
    vocabulary = Vocabulary.build(["low lower lowest", "红色红色"] * 3, words="pieces", min_count=2, max_words=20)
    assert len(vocabulary) <= 23 and vocabulary.tokens("low")[0].startswith("▁lo") and "红色" in vocabulary.words
    assert vocabulary.tokens("slow z")[-1] == "<unk>" and vocabulary.encode("z")[-1] == UNKNOWN
    assert vocabulary.extended(["zebra"]) is vocabulary


@pytest.mark.parametrize("merges", ([["▁", "zz"]], [[3, 4]], ["ab"], 5, [["a", "b", "c"]]))
def test_merges_of_a_file_join_its_pieces(merges, tmp_path):
    path = tmp_path / "vocabulary.json"
    Vocabulary.build(["low lower"], words="pieces", min_count=1).save(path)
    content = json.loads(path.read_text())
    content["model"]["merges"] = merges
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="vocabulary.json is not a vocabulary.*merges do not join"):
        Vocabulary.load(path)


def test_pieces_are_scored_by_what_does_not_depend_on_them():
    for captions, found in ((["一个红色的圆形", "两个"], ["红", "色"]), (["a red circle"], None)):
        scored = Vocabulary.build(captions, words="pieces", min_count=1).splitter.scored
        assert (scored and scored("红色")) == found


def test_a_library_splits_when_it_is_asked_and_is_named_where_it_is_missing(monkeypatch, tmp_path):
    segmenter.cache_clear()
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(UserError, match=r"words=jieba needs the extra \[languages\]: pip install"):
        Vocabulary.build(["红色"], words="jieba")
    library = SimpleNamespace(setLogLevel=str, lcut=lambda text: [text[:2], text[2:4], text[4:]])
    monkeypatch.setitem(sys.modules, "jieba", library)
    vocabulary = Vocabulary.build(["红色，圆形 cat"], words="jieba", min_count=1)
    assert vocabulary.tokens("红色圆形Cat") == ["红色", "圆形", "cat"] and vocabulary.words[3:] == [
        "cat",
        "圆形",
        "红色",
    ]
    vocabulary.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json").splitter.kind == "jieba"
    segmenter.cache_clear()


def test_a_saved_vocabulary_splits_captions_in_its_own_way(tmp_path):
    """Another way that is asked for is refused, not ignored; new captions are split as those before."""
    Vocabulary.build(["红色 circle"], words="characters", min_count=1).save(tmp_path / "vocabulary.json")
    known = {"vocabulary": str(tmp_path / "vocabulary.json")}
    for source in (
        Captions(images="a", words="pieces", **known),
        Shards(shards={"train": "a.tar"}, words="pieces", **known),
    ):
        with pytest.raises(UserError, match="data.words is pieces, but the vocabulary .*json is of words=characters: "):
            _ = source.vocabulary
        for restored in (source.restore, source.extend):
            with pytest.raises(UserError, match="data.words is pieces"):
                restored(tmp_path)
    assert Captions(images="a", words="characters", **known).vocabulary.splitter.kind == "characters"
    for words in ("characters", None):
        assert Scenes(language="chinese", words=words).vocabulary.splitter.kind == (words or "spaces")
        mine = Scenes(language="english", words=words)
        assert mine.extend(tmp_path)[0] == 11 and mine.vocabulary.splitter.kind == "characters"
        assert {*"▁ed"} - {"▁"} <= {*mine.vocabulary.words} and "red" not in mine.vocabulary.words


def test_letters_are_composed_where_captions_enter():
    caption = unicodedata.normalize("NFD", "un café  là")
    assert one_line(caption) == "un café là" != caption


def test_every_kind_has_a_class():
    assert [*KINDS] == [*Kind.__args__] and all(kind.kind == name for name, kind in KINDS.items())
    assert Pieces().split("a") == ["<unk>", "<unk>"]


def test_a_page_and_a_sheet_join_what_belongs_together(tmp_path):
    words = ["▁two", "▁do", "gs", "狗", "在"]
    picture = Image.new("RGB", (64, 64))
    write_page(tmp_path / "page.html", [PageItem("x", picture, words, torch.rand(5, 2, 2))])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    shown = re.sub("<[^>]*>", "", re.search(r'<p class="caption".*?</p>', page, re.DOTALL)[0])
    assert shown == "two dogs 狗在" and 'alt="two dogs 狗在"' in page
    described = write_sheet(tmp_path / "sheet.png", picture, words, None)
    assert Image.open(described).text["Description"] == "two dogs 狗在"


def test_the_exported_program_joins_as_the_vocabulary_does():
    pytest.importorskip("onnxruntime")
    from vision_attn.export.caption_onnx import written

    for words, gap in ((["a", "手", "机"], " "), (["▁a", "b", "▁c"], ""), (["▁手", "▁机", "▁x'", "▁="], "")):
        assert written(words, {"gap": gap, "spaceless": SPACELESS}) == joined(words)


JAPANESE = ["赤い丸が左にあります", "青い四角が右にあります", "赤い四角は青い丸の上です"]
SEGMENTED = {
    "jieba": (["红色的圆形在左边", "蓝色的方形在右边", "红色的方形在蓝色的圆形上面"], "红色", "红色的圆形在左边"),
    "fugashi": (JAPANESE, "あり", "赤い丸が左にあります"),
}


@pytest.mark.parametrize("kind", SEGMENTED)
def test_a_captioner_learns_the_words_of_a_library(kind, tmp_path, monkeypatch, capsys):
    """Trains, captions and draws, where the library is; its words are those of the language."""
    pytest.importorskip(kind, reason=f"needs {kind}, of the extra [languages]")
    if kind == "fugashi":
        pytest.importorskip("unidic_lite", reason="needs unidic-lite, of the extra [languages]")
    captions, word, whole = SEGMENTED[kind]
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    for number in range(24):
        Image.new("RGB", (56, 56), (9 * number, 0, 99)).save(f"images/{number}.png")
    rows = [f"{number}.png,{captions[number % 3]}" for number in range(24)]
    Path("images/captions.csv").write_text("\n".join(["image,caption", *rows]), encoding="utf-8")
    small = [option for option in SIZES["sat_soft_scenes"] if "data." not in option]
    data = ["--data=vision_attn.data.photographs.captions.Captions", "--data.images=images", f"--data.words={kind}"]
    data += ["--data.min_count=1", "--data.cache=null", "--data.batch_size=4", "--run.epochs=2", "--run.metric=nll"]
    data += ["--run.mode=min", "--task.validate_with=[]", "--run.sanity_check=false"]
    assert main(["train", str(CONFIGS / "sat_soft_scenes.yaml"), "--run.folder=run", *small, *data]) == 0
    vocabulary = Vocabulary.load("run/best/vocabulary.json")
    assert vocabulary.splitter.kind == kind and word in vocabulary.words and whole not in vocabulary.words
    assert [vocabulary.decode(vocabulary.encode(caption)) for caption in captions] == captions
    assert len(vocabulary.encode(whole)) < len(whole)
    capsys.readouterr()
    assert main(["caption", "run", "images/0.png", "images/1.png", "--out", "look"]) == 0
    said = [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]
    page = Path("look/index.html").read_text(encoding="utf-8")
    assert len(said) == 2 and all(f'alt="{caption}"' in page and " " not in caption for caption in said if caption)
    scored = ["score", "said.csv", "images/captions.csv", "--words", kind, "--metrics", "BLEU-2"]
    Path("said.csv").write_text("\n".join(["image,caption", *rows[:4]]), encoding="utf-8")
    assert main(scored) == 0 and "BLEU-2    100.00" in capsys.readouterr().out

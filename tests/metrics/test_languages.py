"""Captions that are not English, or not written with spaces."""

import pytest

from vision_attn.data.words import KINDS
from vision_attn.metrics import caption_metrics
from vision_attn.metrics.coco.languages import not_english, unsegmented

CHINESE = {1: "一个红色的圆形", 2: "两只狗在草地上"}


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


@pytest.mark.parametrize(
    ("caption", "said"),
    (
        ("a dog runs on the grass", ""),
        ("ein Hund läuft über die grüne Wiese", "only 0 of"),
        ("un chien court dans l' herbe", "only 0 of"),
        ("собака бежит по траве", "letters are not Latin"),
        ("كلب يركض", "letters are not Latin"),
        ("7 3 1", "only 0 of"),
    ),
)
def test_meteor_is_for_english(caption, said):
    assert said in not_english([caption] * 100, False) and bool(said) == bool(not_english([caption] * 100, False))


def test_few_captions_in_latin_letters_may_be_english():
    assert not_english(["dogs run", "cats sleep"], False) == ""

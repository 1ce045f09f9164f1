"""Which words captions say, against counts by hand; and in a config."""

import json
import math
from types import SimpleNamespace

import pytest

from vision_attn.contracts import DecodedCaption, Results
from vision_attn.metrics.named import Named
from vision_attn.system.errors import UserError

WORDS = ["red", "blue", ["grey", "gray"]]


def measured(said: list[str], references: list[list[str]], folder=None) -> dict[str, float]:
    evaluator = Named(words=WORDS, name="colours")
    for number, (caption, own) in enumerate(zip(said, references, strict=True)):
        batch = SimpleNamespace(ids=(number,), references=(own,))
        described = [DecodedCaption(caption, caption.split(), [])]
        evaluator.update(batch, Results(None, described, {}, frozenset()))
    if folder:
        evaluator.write(folder)
    return evaluator.compute()


def test_shares_are_those_counted_by_hand(tmp_path):
    said = ["a Red car , red", "a gray cat and a blue hat", "a dog"]
    references = [["a red car", "a car"], ["a grey cat", "a cat", "a grey, big cat"], ["Blue-eyed dog", "A BLUE dog!"]]
    found = measured(said, references, tmp_path)
    assert found == {"colours_said": 2 / 3, "colours_wrong": 1 / 3, "colours_missed": 1 / 3}
    assert json.loads((tmp_path / "colours.json").read_text()) == [
        {"image_id": 1, "caption": said[1], "wrong": ["blue"], "missed": []},
        {"image_id": 2, "caption": "a dog", "wrong": [], "missed": ["blue"]},
    ]


def test_a_share_of_nothing_is_no_number():
    found = measured(["a dog"], [["a dog"]])
    assert found["colours_said"] == 0 and math.isnan(found["colours_wrong"]) and math.isnan(found["colours_missed"])


@pytest.mark.parametrize("words", [[], "red", [[]]])
def test_words_must_be_a_list(words):
    with pytest.raises(UserError, match="Named: words must be a list of words"):
        Named(words=words)

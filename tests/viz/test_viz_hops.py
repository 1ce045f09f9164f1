"""Pages and pictures of what each hop read: the question on the card, weights, and scores of any sign."""

from pathlib import Path

import torch
from PIL import Image

from tests import pretend
from vision_attn.geometry.extents import WHOLE
from vision_attn.viz.memory_hops import AnsweredImage, AnsweredStory, write_image_hops, write_story_hops

QUESTION = "what shape is the red thing?"


def image(alpha: torch.Tensor) -> AnsweredImage:
    """Answered wrongly, from one object in the first of two hops."""
    box, nothing = (-0.5, -0.5, 0.5, 0.5), (float("nan"),) * 4
    return AnsweredImage(QUESTION, "star", "cross", 0.987, alpha, Image.new("RGB", (32, 32)), [box, nothing], WHOLE)


def test_the_card_of_an_image_has_its_question_and_says_what_the_number_is(tmp_path: Path, monkeypatch) -> None:
    told = pretend.sheets(monkeypatch)
    alpha = torch.tensor([[[0.1, 0.9]], [[0.5, 0.5]]])
    page = write_image_hops(tmp_path, [image(alpha)])[0].read_text()
    assert f'<p class="question" dir="auto">{QUESTION} cross (probability 0.99), correct: star</p>' in page
    assert "<details>" not in page and page.count('class="word"') == 2 and "softmax" not in page
    assert "A box is the object that the answer follows from at this hop." in page
    ((title, remark),) = told
    assert title == "" and remark.startswith("boxes: the object that the answer follows from at this hop")


def test_scores_of_an_image_are_drawn_above_and_below_0(tmp_path: Path, monkeypatch) -> None:
    told = pretend.sheets(monkeypatch)
    alpha = torch.tensor([[[2.5, -1234.0]], [[0.25, 0.0]]])
    page = write_image_hops(tmp_path, [image(alpha)], scored=True)[0].read_text()
    names = ["hop 1: +2.50", "hop 1: -1,234", "hop 2: +0.25"]  # no panel without light
    assert [page.count(f">{name}</span>") for name in names] == [1, 1, 1] and page.count('class="word"') == 3
    assert page.count('data-boxes="25.00 25.00 50.00 50.00"') == 2
    assert "This model is still in its linear start" in page and told[0][0] == "scores, still without softmax"


def test_scores_of_sentences_are_signed_and_neither_clipped_nor_percents(tmp_path: Path) -> None:
    alpha = torch.tensor([[3.0, 1.5, -0.75]])
    story = AnsweredStory("Where is Mary?", ["one", "two", "three"], [2], "hall", "hall", 0.5, alpha)
    page = write_story_hops(tmp_path / "scores.html", [story], scored=True).read_text()
    for fact, number, kind, share in (
        ("one", "-0.75", "weight below", 0.25), ("two", "+1.50", "weight", 0.5), ("three", "+3.00", "weight strong", 1),
    ):  # fmt: skip
        row = next(line for line in page.splitlines() if f"<td>{fact}</td>" in line)
        assert f'<td class="{kind}" style="--share: {share:.2f}">{number}</td>' in row
    assert page.index("<h2>Where is Mary?") < page.index("<td>one</td>"), "the question stands above its story"
    assert "percent" not in page and "without the softmax of its hops" in page
    page = write_story_hops(
        tmp_path / "weights.html", [story._replace(alpha=torch.tensor([[0.9, 0.1, 0.0]]))]
    ).read_text()
    assert ">90</td>" in page and "its weight in percent" in page and "softmax" not in page

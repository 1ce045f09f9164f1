"""Write pages and pictures of the hops of a memory network: the weight of each sentence of a story, or of each region
of an image."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.geometry.extents import Extent
from vision_attn.system.console import progress
from vision_attn.viz.attention import write_sheet
from vision_attn.viz.html import write_html
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.panel_sheets import Box, picture_name

TITLE = "What each hop read"
CHOSEN = (
    " The second half of the page are wrong answers, however rare: the first ones of the split, if there are as many."
)
SUPPORT = "Sentences with a bar are those that the answer follows from."
STORIES = "The stronger a cell, the more weight the sentence has in that hop; the number is its weight in percent. "
LINEAR = (
    "This model is still in its linear start, without the softmax of its hops: facts have scores of any sign, not "
    "weights. "
)
SCORED_STORIES = (
    LINEAR + "The number in a cell is the score of the sentence in that hop: orange above 0, blue below, the stronger "
    "the larger beside the others of the hop. "
)
POINT = "Point at a {}, or step through with the arrow keys, to see where "
IMAGES = POINT.format("hop") + "the model looked in it."
SCORED_IMAGES = (
    LINEAR + POINT.format("map") + "the scores of a hop are above 0 (+), or below (-); the number is the one furthest "
    "from 0."
)
TRUE = "the object that the answer follows from at this hop"
BOXES = f" A box is {TRUE}."
LEAST = 0.005
"""The smallest weight that is shown as a number."""


class AnsweredStory(NamedTuple):
    """A question about a story, its answer, and the weights of each hop."""

    question: str
    facts: Sequence[str]
    """The sentences of the story, in order."""
    support: Sequence[int]
    """The positions of the sentences from which the answer follows."""
    answer: str | None
    """The right answer; None if unknown."""
    said: str
    probability: float
    """The probability of `said`."""
    alpha: Float[Tensor, "K L"]
    """The weights of sentences in each hop, or their scores, the latest first."""


class AnsweredImage(NamedTuple):
    """A question about an image, its answer, and the weights of each hop."""

    question: str
    answer: str | None
    """The right answer; None if unknown."""
    said: str
    probability: float
    alpha: Float[Tensor, "K Y X"]
    """The weights of regions in each hop, or their scores."""
    picture: Image.Image
    boxes: Sequence[Box]
    """The boxes of the objects that the answer follows from, in the order in which they lead to it."""
    extent: Extent


def write_story_hops(
    path: Path, stories: Sequence[AnsweredStory], *, scored: bool = False, chosen: bool = True
) -> Path:
    """Write an HTML page of stories, with a row for each sentence and a column for each hop. Returns its path.

    scored: whether `alpha` holds scores of any sign, from a model without softmax. chosen: whether the second half of
    the stories have wrong answers.
    """
    known = any(story.support for story in stories)
    guide = (SCORED_STORIES if scored else STORIES) + SUPPORT * known + CHOSEN * chosen
    return write_html(
        path, "stories.html", stories=[_story(story, scored) for story in stories], title=TITLE, guide=guide
    )


class _Cell(NamedTuple):
    """The weight or score of a sentence in a hop.

    share: the strength of its colour, in [0, 1]."""

    number: str
    share: float
    negative: bool = False


class _Row(NamedTuple):
    """A sentence of a story.

    support: whether the answer follows from it."""

    fact: str
    support: bool
    cells: list[_Cell]


class _Story(NamedTuple):
    """The template's data of a story."""

    question: str
    said: str
    right: bool | None
    """Whether the answer is right; None if the right answer is unknown."""
    told: str
    hops: int
    rows: list[_Row]


def _story(story: AnsweredStory, scored: bool) -> _Story:
    hops, rows = len(story.alpha), []
    weights, largest = story.alpha.T.tolist(), story.alpha.abs().amax(dim=1).clamp(min=1e-9).tolist()
    for place, fact in enumerate(story.facts):
        later = len(story.facts) - 1 - place
        row = weights[later] if later < len(weights) else [0.0] * hops
        cells = map(_score, row, largest) if scored else map(_weight, row)
        rows.append(_Row(fact, place in story.support, list(cells)))
    right = None if story.answer is None else story.said == story.answer
    return _Story(story.question, story.said, right, _told(story), hops, rows)


def _told(answered: "AnsweredStory | AnsweredImage") -> str:
    """Return the text after an answer: its probability and, if it is wrong, the right answer."""
    correct = "" if answered.answer in (None, answered.said) else f", correct: {answered.answer}"
    return f" (probability {answered.probability:.2f}){correct}"


def _weight(weight: float) -> _Cell:
    return _Cell(f"{100 * weight:.0f}" if weight >= LEAST else "", weight)


def _score(score: float, largest: float) -> _Cell:
    return _Cell(_signed(score), abs(score) / largest, score <= 0)


def _signed(score: float) -> str:
    return f"{score:+.2f}" if abs(score) < 100 else f"{score:+,.0f}"


def write_image_hops(folder: Path, images: Sequence[AnsweredImage], *, scored: bool = False) -> list[Path]:
    """Write a page of all images, and a picture of each with a panel for each hop. Returns their paths, the page
    first.

    scored: whether `alpha` holds scores of any sign, from a model without softmax. A hop then has two panels: the
    scores above 0, and those below.
    """
    items = [hops_item(f"question {number}", image, scored) for number, image in enumerate(images, start=1)]
    paths = [write_hops_page(folder / "index.html", items, scored=scored, more=BOXES + CHOSEN)]
    for number, item in enumerate(progress(items, what="pictures", unit="image"), start=1):
        paths.append(write_hops_sheet(folder / picture_name(number, "hops.png"), item, scored=scored))
    return paths


def write_hops_page(path: Path, items: Sequence[PageItem], *, scored: bool, more: str = "", **view: Any) -> Path:
    """Write the page of `hops_item`s. Returns its path. more: the end of the line below its title. view: `overlay` and
    `scale`."""
    guide = (SCORED_IMAGES if scored else IMAGES) + more
    return write_page(path, items, title=TITLE, guide=guide, unit="map" if scored else "hop", **view)


def write_hops_sheet(path: Path, item: PageItem, *, scored: bool, **view: Any) -> Path:
    """Write the picture of a `hops_item`, with a panel for each hop. view: `overlay` and `scale`. Returns its path."""
    title = "scores, still without softmax" if scored else ""
    options = {"boxes": item.boxes, "extent": item.extent, "seen": item.seen, "caption": item.question}
    return write_sheet(path, item.picture, item.words, item.alpha, title=title, truth=TRUE, **options, **view)


def hops_item(title: str, image: AnsweredImage, scored: bool) -> PageItem:
    """Return an image as an item of a page, whose words are the hops; with scores, each hop has two: above 0 and
    below."""
    known, names, maps, boxes = [box for box in image.boxes if not isnan(box[0])], [], [], {}
    for hop, alpha in enumerate(image.alpha):
        for name, shown in _halves(f"hop {hop + 1}", alpha) if scored else [(f"hop {hop + 1}", alpha)]:
            names.append(name)
            maps.append(shown)
            boxes[name] = known[hop : hop + 1]
    question = f"{image.question} {image.said}{_told(image)}"
    boxes = {name: some for name, some in boxes.items() if some}
    alpha = torch.stack(maps)
    return PageItem(title, image.picture, names, alpha, boxes=boxes, extent=image.extent, question=question)


def _halves(hop: str, scores: Float[Tensor, "Y X"]) -> list[tuple[str, Float[Tensor, "Y X"]]]:
    """Return the scores above 0 and those below, without their sign, each with a name that holds the score furthest
    from 0."""
    both = [(sign, (sign * scores).clamp(min=0)) for sign in (1, -1)]
    return [(f"{hop}: {_signed(sign * float(half.max()))}", half) for sign, half in both if half.any()] or [
        (hop, scores)
    ]

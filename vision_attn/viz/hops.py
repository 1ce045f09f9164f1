"""What a memory network read in each of its hops: the sentences of a story, or the regions of an image."""

from collections.abc import Iterator, Sequence
from html import escape
from math import isnan
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.geometry.extents import Extent
from vision_attn.system.console import progress
from vision_attn.viz.attention import write_sheet
from vision_attn.viz.index import write_figures
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.sheet import DARK, Box, picture_name

TITLE = "What each hop read"
CHOSEN = (
    " The second half of the page are wrong answers, however rare: the first ones of the split, if there are as many."
)
SUPPORT = "Sentences with a bar are those that the answer follows from." + CHOSEN
STORIES = "The lighter a cell, the more weight the sentence has in that hop; the number is its weight in percent. "
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
"""Smaller weights have no number."""
ORANGE, BLUE = "255 180 84", "100 170 255"
STYLE = f"""  h2 {{ font-size: 1.1rem; font-weight: 600; margin: 0 0 .3rem; }}
  main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 0 2.5rem; }}
  table {{ width: 100%; border-collapse: separate; border-spacing: 3px; }}
  th {{ font-weight: 400; white-space: nowrap; color: {DARK.quiet}; font-size: .85rem; }}
  td {{ padding: .1rem .6rem; border-radius: 4px; }} td:first-child {{ width: 100%; }}
  td.weight {{ min-width: 3rem; text-align: center; font-variant-numeric: tabular-nums; }}
  tr.support td:first-child {{ box-shadow: inset 3px 0 {DARK.accent}; }}
  .right {{ color: #9ccc65; }} .wrong {{ color: #ef9a9a; }}
"""


class AnsweredStory(NamedTuple):
    """A question about a story, and how it was answered."""

    question: str
    facts: Sequence[str]
    """The sentences of the story, in order."""
    support: Sequence[int]
    """The positions of those that the answer follows from."""
    answer: str
    said: str
    probability: float
    """Of what was said."""
    alpha: Float[Tensor, "K L"]
    """The weights of sentences in each hop, or their scores, the latest first."""


class AnsweredImage(NamedTuple):
    """A question about an image, and how it was answered."""

    question: str
    answer: str
    said: str
    probability: float
    alpha: Float[Tensor, "K Y X"]
    """The weights of regions in each hop, or their scores."""
    picture: Image.Image
    boxes: Sequence[Box]
    """Of the objects that the answer follows from, in the order in which they lead to it."""
    extent: Extent


def write_story_hops(path: Path, stories: Sequence[AnsweredStory], *, scored: bool = False) -> Path:
    """Write an HTML page of stories, with a row for each sentence and a column for each hop. Returns its path.

    scored: `alpha` are scores of any sign, of a model without softmax.
    """
    figures = "\n".join(f"<figure>{''.join(_story(story, scored))}</figure>" for story in stories)
    guide = (SCORED_STORIES if scored else STORIES) + SUPPORT
    return write_figures(path, figures, title=TITLE, guide=guide, style=STYLE)


def _story(story: AnsweredStory, scored: bool) -> Iterator[str]:
    hops = range(len(story.alpha))
    yield "<table><tr><th></th>" + "".join(f"<th>hop {hop + 1}</th>" for hop in hops) + "</tr>\n"
    weights, largest = story.alpha.T.tolist(), story.alpha.abs().amax(dim=1).clamp(min=1e-9).tolist()
    for place, fact in enumerate(story.facts):
        later = len(story.facts) - 1 - place
        row = weights[later] if later < len(weights) else [0.0] * len(hops)
        cells = map(_score, row, largest) if scored else map(_weight, row)
        kind = " class=support" * (place in story.support)
        yield f"<tr{kind}><td>{escape(fact)}</td>{''.join(cells)}</tr>\n"
    right = "right" if story.said == story.answer else "wrong"
    said = f'<span class="{right}">{escape(story.said)}</span>'
    yield f"</table><h2>{escape(story.question)} {said}{escape(_told(story))}</h2><figcaption></figcaption>"


def _told(answered: "AnsweredStory | AnsweredImage") -> str:
    """What follows what was said: its probability and, if it is wrong, the answer."""
    return f" (probability {answered.probability:.2f})" + f", correct: {answered.answer}" * (
        answered.said != answered.answer
    )


def _weight(weight: float) -> str:
    return _cell(f"{100 * weight:.0f}" if weight >= LEAST else "", weight, ORANGE)


def _score(score: float, largest: float) -> str:
    return _cell(_signed(score), abs(score) / largest, ORANGE if score > 0 else BLUE)


def _signed(score: float) -> str:
    return f"{score:+.2f}" if abs(score) < 100 else f"{score:+,.0f}"


def _cell(number: str, share: float, colour: str) -> str:
    ink = "#101216" if share > 0.5 else "inherit"
    return f'<td class="weight" style="background: rgb({colour} / {max(share, 0.04):.2f}); color: {ink}">{number}</td>'


def write_image_hops(folder: Path, images: Sequence[AnsweredImage], *, scored: bool = False) -> list[Path]:
    """Write a page of all images, and a picture of each with a panel for each hop. Returns their paths, the page
    first.

    scored: `alpha` are scores of any sign, of a model without softmax. A hop then has two panels: what is above 0, and
    what is below.
    """
    items = [_item(number, image, scored) for number, image in enumerate(images, start=1)]
    guide = (SCORED_IMAGES if scored else IMAGES) + BOXES + CHOSEN
    paths = [write_page(folder / "index.html", items, title=TITLE, guide=guide, unit="map" if scored else "hop")]
    title = "scores, still without softmax" * scored
    for number, item in enumerate(progress(items, what="pictures", unit="image"), start=1):
        path, options = folder / picture_name(number, "hops.png"), {"boxes": item.boxes, "extent": item.extent}
        options |= {"caption": item.question, "title": title, "truth": TRUE}
        paths.append(write_sheet(path, item.picture, item.words, item.alpha, **options))
    return paths


def _item(number: int, image: AnsweredImage, scored: bool) -> PageItem:
    known, names, maps, boxes = [box for box in image.boxes if not isnan(box[0])], [], [], {}
    for hop, alpha in enumerate(image.alpha):
        for name, shown in _halves(f"hop {hop + 1}", alpha) if scored else [(f"hop {hop + 1}", alpha)]:
            names.append(name)
            maps.append(shown)
            boxes[name] = known[hop : hop + 1]
    question = f"{image.question} {image.said}{_told(image)}"
    boxes = {name: some for name, some in boxes.items() if some}
    given = {"boxes": boxes, "extent": image.extent, "question": question}
    return PageItem(f"question {number}", image.picture, names, torch.stack(maps), **given)


def _halves(hop: str, scores: Float[Tensor, "Y X"]) -> list[tuple[str, Float[Tensor, "Y X"]]]:
    """The scores above 0 and those below, without their sign, each with a name that tells the one furthest from 0."""
    both = [(sign, (sign * scores).clamp(min=0)) for sign in (1, -1)]
    return [(f"{hop}: {_signed(sign * float(half.max()))}", half) for sign, half in both if half.any()] or [
        (hop, scores)
    ]

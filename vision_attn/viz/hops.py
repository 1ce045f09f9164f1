"""What a memory network read in each of its hops: the sentences of a story, or the regions of an image."""

from collections.abc import Iterator, Sequence
from html import escape
from math import isnan
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.contracts.places import Extent
from vision_attn.system.console import progress
from vision_attn.viz.attention import write_sheet
from vision_attn.viz.index import write_figures
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.sheet import DARK, Box, picture_name

TITLE = "What each hop read"
CHOSEN = (
    " The second half of the page are wrong answers, however rare: the first ones of the split, if there are as many."
)
STORIES = (
    "The lighter a cell, the more weight the sentence has in that hop; the number is its weight in percent. While a "
    "model trains without softmaxes, weights do not add up to 100. Sentences with a bar are those that the answer "
    "follows from."
) + CHOSEN
IMAGES = "Point at a hop, or step through with the arrow keys, to see where the model looked in it. A box is an object "
IMAGES += "that the answer follows from." + CHOSEN
LEAST = 0.005
"""Smaller weights have no number."""
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
    """The weights of sentences in each hop, the latest first."""


class AnsweredImage(NamedTuple):
    """A question about an image, and how it was answered."""

    question: str
    answer: str
    said: str
    probability: float
    alpha: Float[Tensor, "K Y X"]
    """The weights of regions in each hop."""
    picture: Image.Image
    boxes: Sequence[Box]
    """Of the objects that the answer follows from, in the order in which they lead to it."""
    extent: Extent


def write_story_hops(path: Path, stories: Sequence[AnsweredStory]) -> Path:
    """Write an HTML page of stories, with a row for each sentence and a column for each hop. Returns its path."""
    figures = "\n".join(f"<figure>{''.join(_story(story))}</figure>" for story in stories)
    return write_figures(path, figures, title=TITLE, guide=STORIES, style=STYLE)


def _story(story: AnsweredStory) -> Iterator[str]:
    hops = range(len(story.alpha))
    yield "<table><tr><th></th>" + "".join(f"<th>hop {hop + 1}</th>" for hop in hops) + "</tr>\n"
    weights = story.alpha.clamp(0, 1).T.tolist()
    for place, fact in enumerate(story.facts):
        later = len(story.facts) - 1 - place
        cells = weights[later] if later < len(weights) else [0.0] * len(hops)
        kind = " class=support" * (place in story.support)
        yield f"<tr{kind}><td>{escape(fact)}</td>{''.join(map(_cell, cells))}</tr>\n"
    right = "right" if story.said == story.answer else "wrong"
    said = f'<span class="{right}">{escape(story.said)}</span> ({story.probability:.2f})'
    correct = "" if right == "right" else f", correct: {escape(story.answer)}"
    yield f"</table><h2>{escape(story.question)} {said}{correct}</h2><figcaption></figcaption>"


def _cell(weight: float) -> str:
    ink = "#101216" if weight > 0.5 else "inherit"
    number = f"{100 * weight:.0f}" if weight >= LEAST else ""
    return (
        f'<td class="weight" style="background: rgb(255 180 84 / {max(weight, 0.04):.2f}); color: {ink}">{number}</td>'
    )


def write_image_hops(folder: Path, images: Sequence[AnsweredImage]) -> list[Path]:
    """Write a page of all images, and a picture of each with a panel for each hop. Returns their paths, the page
    first."""
    items = []
    for image in images:
        hops = [f"hop {number}" for number in range(1, len(image.alpha) + 1)]
        known = [box for box in image.boxes if not isnan(box[0])]
        boxes = {hop: [box] for hop, box in zip(hops, known, strict=False)}
        said = f"{image.said} ({image.probability:.2f})" + f", correct: {image.answer}" * (image.said != image.answer)
        given = {"references": [f"{image.question} {said}"], "boxes": boxes, "extent": image.extent}
        items.append(PageItem(said, image.picture, hops, image.alpha, **given))
    paths = [write_page(folder / "index.html", items, title=TITLE, guide=IMAGES, unit="hop")]
    for number, item in enumerate(progress(items, what="pictures", unit="image"), start=1):
        path, options = folder / picture_name(number, "hops.png"), {"boxes": item.boxes, "extent": item.extent}
        paths.append(write_sheet(path, item.picture, item.words, item.alpha, caption=item.references[0], **options))
    return paths

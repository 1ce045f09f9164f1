"""Draw how a model aligned the characters of a transcript with the columns of a line: a row per character, below the
line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from PIL import Image, ImageDraw
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent, middles, nearest
from vision_attn.system.console import progress
from vision_attn.viz.foveated import GlimpseTrace
from vision_attn.viz.glimpses import write_animation, write_glimpses
from vision_attn.viz.overlay.scale import weights
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.panel_sheets import DARK, MARGIN, Box, picture_name, save_picture
from vision_attn.viz.typeface import Typeface

ROW = 18
"""The height of a character's row, in pixels."""
LABEL = 64
"""The width of the margin for characters, left of their rows, in pixels."""
SPIKES = 90
"""The height of the plot of label probabilities, in pixels."""
COLOURS = ("#ffb454", "#6ec6ff", "#9ccc65", "#f48fb1", "#ce93d8", "#80cbc4", "#ffd54f", "#ef9a9a", "#b0bec5", "#a1887f")


class Transcribed(NamedTuple):
    """The transcript of one strip by one model, with its maps."""

    title: str
    text: str
    words: Sequence[str]
    alpha: Float[Tensor, "T Y X"] | None
    """The map of each character; None for a model without maps."""
    log_prob: Sequence[float] | None
    """log p of each character, in nats; None for a model that labels columns, which only has log p of whole
    transcripts."""
    labels: Float[Tensor, "L V"] | None = None
    """The probability of each character at each column, for a model that labels columns; 0 is the blank."""
    glimpses: GlimpseTrace | None = None
    """The glimpses up to END, for a model that takes glimpses."""
    cut: bool = False
    """Whether the transcript was cut at `max_words`, before its end."""
    extent: Extent = WHOLE
    """Where the columns lie on the strip."""


class Strip(NamedTuple):
    """A strip with its transcripts by one or several models."""

    title: str
    picture: Image.Image
    items: Sequence[Transcribed]
    references: Sequence[str] = ()
    boxes: Mapping[str, Sequence[Box]] | None = None


def alignment_sheet(
    strip: Image.Image,
    items: Sequence[Transcribed],
    *,
    reference: str = "",
    boxes: Mapping[str, Sequence[Box]] | None = None,
) -> Image.Image:
    """Draw the strip, and below it the alignment of each of `items`.

    The brightest column of a row has the largest weight of its character. For models that label columns, the
    probabilities of their labels are plotted below.

    reference: the right transcript.
    boxes: the boxes of each character, outlined in its row: the n-th "7" of a transcript has the n-th box of "7".
    """
    scale = max(1, round(1000 / strip.width))
    wide, tall = strip.width * scale, strip.height * scale
    type_ = Typeface(" ".join([reference, *(item.title for item in items), *(w for item in items for w in item.words)]))
    heights = [
        40
        + ROW * (len(item.words) if item.alpha is not None and len(item.words) else 1)
        + (SPIKES if item.labels is not None else 0)
        for item in items
    ]
    page = Image.new("RGB", (2 * MARGIN + LABEL + wide, 2 * MARGIN + 30 + tall + sum(heights)), DARK.paper)
    draw = ImageDraw.Draw(page)
    left, y = MARGIN + LABEL, MARGIN + 30
    draw.text((left, MARGIN + 14), type_.shortened(reference, 20, wide), DARK.ink, type_.font(20), "ls")
    page.paste(strip.convert("RGB").resize((wide, tall), Image.Resampling.NEAREST), (left, y))
    y += tall
    for item, height in zip(items, heights, strict=True):
        told = f"{item.title}: {item.text}"
        draw.text((left, y + 30), type_.shortened(told, 16, wide), DARK.accent, type_.font(16), "ls")
        top = y + 40
        if item.alpha is None or not len(item.words):
            draw.text((left, top + 13), "no maps" if item.words else "no characters", DARK.quiet, type_.font(13), "ls")
        else:
            page.paste(_matrix(item.alpha, wide, item.extent), (left, top))
            _rows(draw, item.words, boxes or {}, left, top, wide, type_)
        if item.labels is not None:
            _spikes(draw, item.labels, left, y + height - SPIKES, wide, item.extent)
        y += height
    return page


def write_transcripts(strips: Sequence[Strip], folder: Path) -> list[Path]:
    """Write `folder/NUMBER-TITLE.png` for each strip, with all its alignments, and the page `folder/index.html`, on
    which pointing at a character shows its map. For a model that takes glimpses, also write their path as a picture and
    an animation, `folder/NUMBER-TITLE_glimpses`. Returns all paths, the page first."""
    items, paths = [], []
    for number, strip in enumerate(progress(strips, what="pictures", unit="strip"), 1):
        for item in strip.items:
            title, transcript = f"{strip.title}: {item.title}", (item.words, item.alpha, strip.references, strip.boxes)
            items.append(PageItem(title, strip.picture, *transcript, item.log_prob, extent=item.extent))
        path = folder / picture_name(number, strip.title)
        reference = strip.references[0] if strip.references else ""
        paths.append(write_alignments(path, strip.picture, strip.items, reference=reference, boxes=strip.boxes))
        for item in strip.items:
            if item.glimpses is not None:
                paths += _write_path(path.with_name(f"{path.stem}_glimpses"), item, reference)
    page = write_page(folder / "index.html", items, title="Where each character looked", unit="character")
    return [page, *paths]


def write_alignments(path: str | Path, strip: Image.Image, items: Sequence[Transcribed], **options) -> Path:
    """Write `alignment_sheet(strip, items, **options)` as a PNG. Returns its path."""
    return save_picture(path, alignment_sheet(strip, items, **options))


def _write_path(path: Path, item: Transcribed, reference: str) -> list[Path]:
    """Write the picture and the animation of glimpses, with the transcript in place of a class."""
    assert item.glimpses is not None
    label, names = None, [item.text or "nothing"]
    if reference:
        label, names = int(item.text != reference), [*names, reference]
    trace = item.glimpses._replace(label=label, names=names, probabilities=None)
    return [write_glimpses(f"{path}.png", trace), write_animation(f"{path}.gif", trace)]


def _matrix(alpha: Float[Tensor, "T Y X"], width: int, extent: Extent) -> Image.Image:
    """Draw the weights of columns, each row relative to its largest weight. Each pixel shows the nearest column."""
    columns = weights(alpha).sum(dim=1)
    columns = columns / columns.amax(dim=1, keepdim=True).clamp(min=torch.finfo(columns.dtype).tiny)
    spread = columns[:, nearest(width, columns.shape[1], extent.x0, extent.x1)]
    mask = Image.fromarray((spread.repeat_interleave(ROW, dim=0) * 255).round().byte().numpy())
    return Image.composite(Image.new("RGB", mask.size, DARK.ink), Image.new("RGB", mask.size, "#1c2027"), mask)


def _rows(
    draw: ImageDraw.ImageDraw,
    words: Sequence[str],
    boxes: Mapping[str, Sequence[Box]],
    left: int,
    top: int,
    width: int,
    type_: Typeface,
) -> None:
    """Draw the character of each row, and the outline of its box."""
    count: dict[str, int] = {}
    for row, word in enumerate(words):
        number = count.get(word, 0)
        count[word] = number + 1
        y = top + row * ROW
        draw.text((left - 12, y + ROW - 4), type_.shortened(word, 14, LABEL - 16), DARK.ink, type_.font(14), "rs")
        if number < len(boxes.get(word, ())):
            x0, _, x1, _ = (float(edge) for edge in boxes[word][number])
            across = (left + (x0 + 1) / 2 * width, y, left + (x1 + 1) / 2 * width, y + ROW - 1)
            draw.rectangle(across, outline=DARK.accent)


def _spikes(
    draw: ImageDraw.ImageDraw, labels: Float[Tensor, "L V"], left: int, top: int, width: int, extent: Extent
) -> None:
    """Draw p of each character at each column as a line, the blank in grey."""
    labels = labels.detach().float().cpu()
    floor, room = top + SPIKES - 8, SPIKES - 24
    draw.line((left, floor, left + width, floor), fill=DARK.quiet)
    x = [left + (at + 1) / 2 * width for at in middles(len(labels), extent.x0, extent.x1).clamp(-1, 1).tolist()]
    for number in range(labels.shape[1]):
        p = labels[:, number]
        if p.max() < 0.05:
            continue
        colour = DARK.quiet if number == 0 else COLOURS[number % len(COLOURS)]
        line = [(at, floor - value * room) for at, value in zip(x, p.tolist(), strict=True)]
        draw.line(line if len(line) > 1 else line * 2, fill=colour, width=1 if number == 0 else 2)

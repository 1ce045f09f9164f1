"""How a drawing comes about: the canvas after each turn, with the rectangle that the turn wrote, as PNG and GIF.

After figures 1 and 7 of DRAW (Gregor et al., 2015): a rectangle is as large as its grid of filters, and its line as
thick as the filters' sigma.
"""

import math
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from PIL import Image, ImageColor, ImageDraw, ImageFont
from torch import Tensor

from vision_attn.files import replacing
from vision_attn.viz.looks import SMOOTH, as_picture
from vision_attn.viz.sheet import DARK, MARGIN, save_film

PANEL = 112  # pixels, about, of a canvas' longer side
GAP = 4
HEAD = 24  # height of the line above
WRITE, READ = DARK.accent, "#59c3ff"
SHEER = 0.7  # opacity of lines
BORDER = "#33373f"  # around a canvas, which is black where it is empty, as the sheet almost is
TURN, END = 150, 2500  # milliseconds of a film's frame, and of its last
LONGEST = 10_000  # milliseconds of all frames but the last


class Rectangles(NamedTuple):
    """Where each turn read or wrote."""

    boxes: Float[Tensor, "B T 4"]
    """(x0, y0, x1, y1) in [-1, 1] over the image: a stride for each filter."""
    sigma: Float[Tensor, "B T"]
    """Of the filters, in pixels of the image."""


def write_strips(
    path: str | Path,
    canvases: Float[Tensor, "B T C Y X"],
    writes: Rectangles | None = None,
    *,
    reads: Rectangles | None = None,
    images: Float[Tensor, "B C Y X"] | None = None,
    columns: int = 10,
) -> Path:
    """Write a PNG with a row for each drawing: `columns` of its T turns, evenly spread, with rectangles, and what came
    out; returns its path.

    Intensities are in [0, 1]. With `images`, each row begins with the one that was read, and a read rectangle lies over
    the canvas as it was read: that of the turn before.

    Raises ValueError, before anything is written, where the tensors do not fit each other.
    """
    check(canvases, writes, reads, images)
    turns = spread(canvases.shape[1], columns)
    rows = [[enlarged(image)] for image in images] if images is not None else [[] for _ in canvases]
    for number, row in enumerate(rows):
        for turn in turns:
            row.append(marked(canvases, number, turn, writes, reads))
        row.append(enlarged(canvases[number, -1]))
    heads = (["image"] if images is not None else []) + [f"{turn + 1}" for turn in turns] + ["drawn"]
    page = laid_out(rows, heads)
    with replacing(path) as temporary:
        page.save(temporary, "PNG")
    return Path(path)


def write_film(
    path: str | Path,
    canvases: Float[Tensor, "B T C Y X"],
    writes: Rectangles | None = None,
    *,
    reads: Rectangles | None = None,
) -> Path:
    """Write an animated GIF of all drawings beside each other, one frame per turn, then, held, what came out, repeated
    for ever; returns its path.

    Raises ValueError, before anything is written, where the tensors do not fit each other.
    """
    check(canvases, writes, reads)
    num_images, num_turns = canvases.shape[:2]
    frames = [
        beside(
            [marked(canvases, number, turn, writes, reads) for number in range(num_images)],
            f"{turn + 1} of {num_turns}",
        )
        for turn in range(num_turns)
    ]
    return write_frames(path, [*frames, beside([enlarged(canvas) for canvas in canvases[:, -1]], "drawn")])


def write_frames(path: str | Path, frames: list[Image.Image], turn: int = TURN) -> Path:
    """Write an animated GIF, `turn` milliseconds a frame, or less of very many, the last one held; returns its path."""
    colours = stacked([frames[place] for place in spread(len(frames), 6)]).quantize(256, Image.Quantize.MAXCOVERAGE)
    num_turns = len(frames) - 1
    return save_film(path, frames, colours, [min(turn, LONGEST // num_turns)] * num_turns + [END])


def check(canvases: Tensor, *others: Rectangles | Tensor | None) -> None:
    """Raise a ValueError that says which of the tensors do not fit the canvases."""
    if canvases.ndim != 5 or canvases.shape[2] not in (1, 3) or 0 in canvases.shape:
        raise ValueError(f"canvases are (B, T, 1 or 3, Y, X), these are {tuple(canvases.shape)}")
    num_images, num_turns = canvases.shape[:2]
    for other in others:
        if isinstance(other, Rectangles) and other.boxes.shape != (num_images, num_turns, 4):
            raise ValueError(
                f"boxes are {tuple(other.boxes.shape)}, but there are {num_images} drawings of {num_turns} turns"
            )
        if isinstance(other, Tensor) and other.shape != canvases[:, 0].shape:
            raise ValueError(f"images are {tuple(other.shape)}, but canvases {tuple(canvases[:, 0].shape)}")


def spread(num_turns: int, columns: int) -> list[int]:
    """At most `columns` turns, evenly spread, with the first and the last."""
    places = torch.linspace(0, num_turns - 1, min(columns, num_turns))
    return places.round().long().tolist()


def enlarged(canvas: Float[Tensor, "C Y X"]) -> Image.Image:
    """A canvas as a picture whose pixels are squares, with a thin border around it."""
    picture = as_picture(canvas.detach().float().cpu())
    zoom = max(1, round(PANEL / max(picture.size)))
    picture = picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST)
    framed = Image.new("RGB", (picture.width + 2, picture.height + 2), BORDER)
    framed.paste(picture, (1, 1))
    return framed


def marked(
    canvases: Float[Tensor, "B T C Y X"],
    number: int,
    turn: int,
    writes: Rectangles | None,
    reads: Rectangles | None = None,
) -> Image.Image:
    """One canvas with the rectangles of its turn."""
    picture = enlarged(canvases[number, turn])
    zoom = (picture.width - 2) / canvases.shape[-1]
    for rectangles, colour in ((reads, READ), (writes, WRITE)):
        if rectangles is not None:
            box, sigma = rectangles.boxes[number, turn].tolist(), float(rectangles.sigma[number, turn])
            picture = outlined(picture, box, sigma * zoom, colour)
    return picture


def outlined(picture: Image.Image, box: list[float], thickness: float, colour: str) -> Image.Image:
    """A copy of a framed canvas with a rectangle on it, whose line, of at least a pixel, has its middle on the box."""
    inner = (picture.width - 2, picture.height - 2)
    half = max(1.0, thickness) / 2
    corners = [(place + 1) / 2 * inner[side % 2] for side, place in enumerate(box)]
    mask = Image.new("L", (inner[0] * SMOOTH, inner[1] * SMOOTH))
    draw = ImageDraw.Draw(mask)
    for grown, level in ((half, round(255 * SHEER)), (-half, 0)):
        moved = (-grown, -grown, grown, grown)
        ends = zip(corners, moved, 2 * mask.size, strict=True)
        x0, y0, x1, y1 = (min(max(SMOOTH * (end + by), -1), size + 1) for end, by, size in ends)
        if x0 + 1 <= x1 and y0 + 1 <= y1:  # Pillow draws both ends
            draw.rectangle((x0, y0, x1 - 1, y1 - 1), fill=level)
    mask = mask.resize(inner, Image.Resampling.BOX)
    picture = picture.copy()
    picture.paste(Image.new("RGB", inner, ImageColor.getrgb(colour)), (1, 1), mask)
    return picture


def beside(panels: list[Image.Image], head: str) -> Image.Image:
    """Pictures of one size in a wide block, below a line of text."""
    columns = math.ceil(math.sqrt(len(panels) * 1.6))
    return laid_out([panels[first : first + columns] for first in range(0, len(panels), columns)], [head])


def stacked(pictures: list[Image.Image]) -> Image.Image:
    """Pictures of one size, one below the other."""
    width, height = pictures[0].size
    page = Image.new("RGB", (width, height * len(pictures)))
    for down, picture in enumerate(pictures):
        page.paste(picture, (0, down * height))
    return page


def laid_out(rows: list[list[Image.Image]], heads: list[str]) -> Image.Image:
    """Rows of pictures of one size, a line of text above each column that has one."""
    width, height = rows[0][0].size
    across = max(len(row) for row in rows) * (width + GAP) - GAP
    page = Image.new("RGB", (across + MARGIN, HEAD + len(rows) * (height + GAP) - GAP + MARGIN), DARK.paper)
    draw = ImageDraw.Draw(page)
    left, top = MARGIN // 2, MARGIN // 2 + HEAD
    for column, head in enumerate(heads):
        draw.text((left + column * (width + GAP), top - 8), head, DARK.quiet, ImageFont.load_default(14), "ls")
    for down, row in enumerate(rows):
        for column, picture in enumerate(row):
            page.paste(picture, (left + column * (width + GAP), top + down * (height + GAP)))
    return page

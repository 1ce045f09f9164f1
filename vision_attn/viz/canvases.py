"""Draw DRAW's canvas after each time step with the write window of that step, as PNG and GIF.

After figures 1 and 7 of DRAW (Gregor et al., 2015): a rectangle covers the grid of filters, and its line width is the
sigma of the filters.
"""

import math
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from PIL import Image, ImageChops, ImageColor, ImageDraw, ImageFont
from torch import Tensor

from vision_attn.system.errors import UserError
from vision_attn.viz.foveated import SMOOTH, as_picture
from vision_attn.viz.panel_sheets import DARK, MARGIN, save_animation, save_picture

PANEL = 112  # approximate longer side of a canvas, in pixels
PLAYED = 760  # approximate width of an animation of few images
GAP = 4
HEAD = 24  # height of the line of text above
WRITE, READ = DARK.accent, "#59c3ff"
SHEER = 0.7  # opacity of lines
DASH = 6  # pixels of a dash, and of the gap after it
BORDER = "#33373f"  # an empty canvas is black, and so nearly the colour of the sheet
FRAME, LAST_FRAME = 150, 2500  # milliseconds of a frame of an animation, and of the last frame
LONGEST = 10_000  # largest total of all frames but the last, in milliseconds


class Rectangles(NamedTuple):
    """The read or write window of each time step."""

    boxes: Float[Tensor, "B T 4"]
    """The windows (x0, y0, x1, y1) in [-1, 1] over the image: one stride per filter."""
    sigma: Float[Tensor, "B T"]
    """The sigma of the filters, in pixels of the image."""


def write_strips(
    path: str | Path,
    canvases: Float[Tensor, "B T C Y X"],
    writes: Rectangles | None = None,
    *,
    reads: Rectangles | None = None,
    images: Float[Tensor, "B C Y X"] | None = None,
    columns: int = 10,
) -> Path:
    """Write a PNG with a row per drawing: `columns` of its T time steps, evenly spaced, then the result.

    Returns its path.

    canvases: intensities in [0, 1].
    writes, reads: the windows of each time step, drawn as rectangles.
    images: the images that were read, drawn at the beginning of the rows.

    Raises UserError, before anything is written, if the shapes do not fit each other.
    """
    check(canvases, writes, reads, images)
    steps = spread(canvases.shape[1], columns)
    rows = [[enlarged(image)] for image in images] if images is not None else [[] for _ in canvases]
    for number, row in enumerate(rows):
        for step in steps:
            row.append(marked(canvases, number, step, writes, reads))
        row.append(enlarged(canvases[number, -1]))
    heads = (["image"] if images is not None else []) + [f"{step + 1}" for step in steps] + ["drawn"]
    page = laid_out(rows, heads)
    return save_picture(path, page)


def write_animation(
    path: str | Path,
    canvases: Float[Tensor, "B T C Y X"],
    writes: Rectangles | None = None,
    *,
    reads: Rectangles | None = None,
) -> Path:
    """Write a looping GIF of all drawings side by side: one frame per time step, then a longer one with the results.

    Returns its path. Raises UserError, before anything is written, if the shapes do not fit each other.
    """
    check(canvases, writes, reads)
    num_images, num_steps = canvases.shape[:2]
    side = played_side(num_images)
    frames = [
        side_by_side(
            [marked(canvases, number, step, writes, reads, side) for number in range(num_images)],
            f"{step + 1} of {num_steps}",
        )
        for step in range(num_steps)
    ]
    return write_frames(path, [*frames, side_by_side([enlarged(canvas, side) for canvas in canvases[:, -1]], "drawn")])


def write_frames(path: str | Path, frames: list[Image.Image], duration: int = FRAME) -> Path:
    """Write a GIF with `duration` milliseconds per frame (less if there are very many), and `LAST_FRAME` for the last.
    Returns its path."""
    colours = stacked([frames[place] for place in spread(len(frames), 6)]).quantize(256, Image.Quantize.MAXCOVERAGE)
    num_steps = len(frames) - 1
    return save_animation(path, frames, colours, [min(duration, LONGEST // num_steps)] * num_steps + [LAST_FRAME])


def check(canvases: Tensor, *others: Rectangles | Tensor | None) -> None:
    """Raise a UserError that names the tensors that do not fit the canvases."""
    if canvases.ndim != 5 or canvases.shape[2] not in (1, 3) or 0 in canvases.shape:
        raise UserError(f"canvases are (B, T, 1 or 3, Y, X), these are {tuple(canvases.shape)}")
    num_images, num_steps = canvases.shape[:2]
    for other in others:
        if isinstance(other, Rectangles) and other.boxes.shape != (num_images, num_steps, 4):
            raise UserError(
                f"boxes are {tuple(other.boxes.shape)}, but there are {num_images} drawings of {num_steps} time steps"
            )
        if isinstance(other, Tensor) and other.shape != canvases[:, 0].shape:
            raise UserError(f"images are {tuple(other.shape)}, but canvases {tuple(canvases[:, 0].shape)}")


def spread(num_steps: int, columns: int) -> list[int]:
    """Select at most `columns` evenly spaced time steps, including the first and the last."""
    places = torch.linspace(0, num_steps - 1, min(columns, num_steps))
    return places.round().long().tolist()


def enlarged(canvas: Float[Tensor, "C Y X"], side: int = PANEL) -> Image.Image:
    """Convert a canvas to a picture with square pixels and a thin border.

    side: the approximate longer side, in pixels.
    """
    picture = as_picture(canvas.detach().float().cpu())
    zoom = max(1, round(side / max(picture.size)))
    picture = picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST)
    framed = Image.new("RGB", (picture.width + 2, picture.height + 2), BORDER)
    framed.paste(picture, (1, 1))
    return framed


def marked(
    canvases: Float[Tensor, "B T C Y X"],
    number: int,
    step: int,
    writes: Rectangles | None,
    reads: Rectangles | None = None,
    side: int = PANEL,
) -> Image.Image:
    """Draw one canvas with the rectangles of its time step. If there are writes, reads are dashed."""
    picture = enlarged(canvases[number, step], side)
    zoom = (picture.width - 2) / canvases.shape[-1]
    for rectangles, colour in ((reads, READ), (writes, WRITE)):
        if rectangles is not None:
            box, sigma = rectangles.boxes[number, step].tolist(), float(rectangles.sigma[number, step])
            dashed = rectangles is reads and writes is not None
            picture = outlined(picture, box, sigma * zoom, colour, dashed=dashed)
    return picture


def outlined(
    picture: Image.Image, box: list[float], thickness: float, colour: str, *, dashed: bool = False
) -> Image.Image:
    """Return a copy of a framed canvas with a rectangle, whose line is centred on `box` and at least one pixel wide."""
    inner = (picture.width - 2, picture.height - 2)
    half = max(1.0, thickness) / 2
    corners = [(place + 1) / 2 * inner[side % 2] for side, place in enumerate(box)]
    mask = Image.new("L", (inner[0] * SMOOTH, inner[1] * SMOOTH))
    draw = ImageDraw.Draw(mask)
    for grown, level in ((half, round(255 * SHEER)), (-half, 0)):
        moved = (-grown, -grown, grown, grown)
        ends = zip(corners, moved, 2 * mask.size, strict=True)
        x0, y0, x1, y1 = (min(max(SMOOTH * (end + by), -1), size + 1) for end, by, size in ends)
        if x0 + 1 <= x1 and y0 + 1 <= y1:  # Pillow includes both ends
            draw.rectangle((x0, y0, x1 - 1, y1 - 1), fill=level)
    mask = mask.resize(inner, Image.Resampling.BOX)
    if dashed:  # by diagonal stripes, which cut every side
        across, down = (torch.arange(side) for side in inner)
        stripes = ((down[:, None] + across) // DASH % 2 * 255).to(torch.uint8)
        mask = ImageChops.multiply(mask, Image.fromarray(stripes.numpy()))
    picture = picture.copy()
    picture.paste(Image.new("RGB", inner, ImageColor.getrgb(colour)), (1, 1), mask)
    return picture


def landscape(number: int) -> int:
    """Return the number of columns that arrange `number` panels in a block that is wider than high, with few empty
    places."""
    ideal = math.sqrt(number * 2.2)
    near = range(max(1, math.ceil(ideal * 0.67)), max(math.ceil(ideal * 1.6), 2))
    return min(near, key=lambda columns: (-number % columns / columns + abs(math.log(columns / ideal)), columns))


def played_side(number: int) -> int:
    """Return the longer side, in pixels, of a panel in an animation of `number` images: few images are large."""
    return min(max(PLAYED // landscape(number), PANEL), 2 * PANEL)


def side_by_side(panels: list[Image.Image], head: str) -> Image.Image:
    """Arrange pictures of one size in a landscape block below a line of text."""
    columns = landscape(len(panels))
    return laid_out([panels[first : first + columns] for first in range(0, len(panels), columns)], [head])


def stacked(pictures: list[Image.Image]) -> Image.Image:
    """Stack pictures of one size vertically."""
    width, height = pictures[0].size
    page = Image.new("RGB", (width, height * len(pictures)))
    for down, picture in enumerate(pictures):
        page.paste(picture, (0, down * height))
    return page


def laid_out(rows: list[list[Image.Image]], heads: list[str]) -> Image.Image:
    """Arrange rows of pictures of one size, with the texts `heads` above the columns."""
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

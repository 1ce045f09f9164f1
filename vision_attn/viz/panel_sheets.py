"""The building blocks of all pictures: light on a darkened picture, boxes, sheets of panels, and animations."""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Float
from PIL import Image, ImageDraw, ImageEnhance
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from vision_attn.system.files import replacing, shortened
from vision_attn.system.inputs import WRITER
from vision_attn.viz.typeface import Typeface, right_to_left

PANEL = 224  # pixels of a panel's longer side
GAP = 16
SEAM = 4  # gap between the two pictures of one word
MARGIN = 32
TITLE = 32  # height of the line above a panel
BAR_LINE = 20  # height of a line of the scale below all panels

DIM = 0.6  # brightness and
PALE = 0.5  # colour saturation of the picture where there is no light
VEIL = 0.4  # white blended in at full light; 1 - DIM, so that light changes black and white pixels by the same amount

Box = Sequence[float | int] | Float[Tensor, "4"]
"""(x0, y0, x1, y1) in [-1, 1] over the picture."""


class Palette(NamedTuple):
    """The colours of a sheet."""

    paper: str = "#101216"
    ink: str = "#f3f1ec"
    quiet: str = "#8d929c"
    accent: str = "#ffb454"


DARK = Palette()


class Bar(NamedTuple):
    """The scale below the panels of a sheet: its colours, with a text before and after them."""

    before: str
    colours: Image.Image | None
    after: str


class Panel(NamedTuple):
    """One picture of a sheet, with a word and a small note on the line above it. `below` is an optional second picture
    of the same word and size.
    """

    picture: Image.Image
    word: str = ""
    note: str = ""
    below: Image.Image | None = None


def save_picture(path: str | Path, picture: Image.Image, **options: Any) -> Path:
    """Write a PNG that names this package as its software. Returns its path.

    options: of Pillow's `save`.
    """
    told = options.setdefault("pnginfo", PngInfo())
    told.add_text("Software", WRITER)
    with replacing(path) as temporary:
        picture.save(temporary, "PNG", **options)
    return Path(path)


def save_animation(
    path: str | Path, frames: Iterable[Image.Image], colours: Image.Image | None, durations: Sequence[int]
) -> Path:
    """Write an endlessly looping GIF whose frames last `durations` milliseconds. Returns its path.

    colours: a picture whose palette all frames share, so that only changed pixels are stored. None: each frame has its
        own palette, as photographs need, and is dithered.
    """
    first, *others = (_own_palette(frame) if colours is None else _quantized(frame, colours) for frame in frames)
    with replacing(path) as temporary:
        options = {"duration": list(durations), "loop": 0, "comment": WRITER}
        first.save(temporary, "GIF", save_all=True, append_images=others, **options)
    return Path(path)


def _quantized(frame: Image.Image, colours: Image.Image) -> Image.Image:
    return frame.quantize(256, palette=colours, dither=Image.Dither.NONE)


def _own_palette(frame: Image.Image) -> Image.Image:
    """Reduce a frame to its own palette by an octree. Unlike median cut, the default, it keeps rare colours, such as
    the one of the largest weight."""
    colours = frame.quantize(256, Image.Quantize.FASTOCTREE)
    return frame.quantize(256, palette=colours, dither=Image.Dither.FLOYDSTEINBERG)


def picture_name(number: int, title: str) -> str:
    """Return the file name `NUMBER-STEM.png` for the picture of an image called `title`: short and without white space.

    White space, control characters, slashes and lone surrogates become hyphens; a long stem is cut. The number
    distinguishes images of the same name.
    """
    kept = "".join(
        "-" if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp", "Zs") or c in "/\\" else c for c in Path(title).stem
    )
    return f"{number:02d}-{shortened(kept)}.png"


def fitted(picture: Image.Image, side: int = PANEL) -> Image.Image:
    """Resize `picture` to a longer side of `side` pixels, in RGB. Small pictures keep sharp pixel edges."""
    picture = picture.convert("RGB")
    scale = side / max(picture.size)
    width, height = (max(1, round(length * scale)) for length in picture.size)
    if scale >= 2:
        whole = math.ceil(scale)
        picture = picture.resize((picture.width * whole, picture.height * whole), Image.Resampling.NEAREST)
    picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    picture.info = {}  # do not copy the colour profile or EXIF data of the photograph
    return picture


def darkened(picture: Image.Image) -> Image.Image:
    """Return the picture as it appears without light."""
    return ImageEnhance.Brightness(ImageEnhance.Color(picture).enhance(PALE)).enhance(DIM)


def glowing(picture: Image.Image, light: Float[Tensor, "height width"], veil: float = VEIL) -> Image.Image:
    """Light `picture` by `light`, in [0, 1] and of the same size: dark at 0, under a white veil at 1."""
    mask = Image.fromarray((light.clamp(0, 1) * 255).round().byte().cpu().numpy())
    veiled = Image.blend(picture, Image.new("RGB", picture.size, "white"), veil)
    return Image.composite(veiled, darkened(picture), mask)


def boxed(picture: Image.Image, boxes: Iterable[Box], colour: str = DARK.accent) -> Image.Image:
    """Return a copy of `picture` with thin boxes drawn on it."""
    picture = picture.copy()
    draw = ImageDraw.Draw(picture)
    for x0, y0, x1, y1 in boxes:
        across = sorted(min(max((float(x) + 1) / 2, 0), 1) * (picture.width - 1) for x in (x0, x1))
        down = sorted(min(max((float(y) + 1) / 2, 0), 1) * (picture.height - 1) for y in (y0, y1))
        draw.rectangle((across[0], down[0], across[1], down[1]), outline=colour, width=2)
    return picture


def sheet(
    panels: Sequence[Panel],
    *,
    caption: str,
    title: str = "",
    remark: str = "",
    legend: str = "",
    bar: Bar | None = None,
    palette: Palette = DARK,
) -> Image.Image:
    """Arrange panels of one size in reading order. A right-to-left caption is laid out right to left.

    caption: the large text above the panels.
    title: the small text above the caption; cut if there is no room for it and the remark.
    remark: the small text after the title.
    legend: a text in the empty space below the first panel, if words have two pictures each and it fits.
    bar: the scale below all panels.

    `remark` follows the title, which is cut if there is no room for both. If words have two pictures each, `legend` is
    written in the empty space below the first panel, if it fits. `bar` stands below all panels. A
    right-to-left caption is laid out right to left.
    """
    width, height = panels[0].picture.size
    tall = 2 * height + SEAM if any(panel.below for panel in panels) else height
    columns = _columns(len(panels), tall / height)
    inner = columns * (width + GAP) - GAP
    type_ = Typeface(" ".join([caption, title, *(panel.word for panel in panels)]))
    remark = f" · {remark}" if title and remark else remark
    title = type_.shortened(title, 15, inner - type_.width(remark, 15)) + remark
    lines = type_.wrapped(caption, 30, inner)
    head = (28 if title else 0) + 40 * len(lines) + (16 if title or lines else 0)
    rows = math.ceil(len(panels) / columns)
    body = head + rows * (TITLE + tall + GAP) - GAP
    below = [] if bar is None else bar_lines(bar, type_, inner)
    foot = BAR_LINE * len(below) + 8 if below else 0
    page = Image.new("RGB", (inner + 2 * MARGIN, body + foot + 2 * MARGIN), palette.paper)
    draw = ImageDraw.Draw(page)
    backwards = right_to_left(caption)
    start, anchor = (MARGIN + inner, "rs") if backwards else (MARGIN, "ls")  # text baseline at y
    draw.text((start, MARGIN + 13), title, palette.quiet, type_.font(15), anchor)
    for line, text in enumerate(lines):
        y = MARGIN + (28 if title else 0) + 40 * line + 28
        draw.text((start, y), text, palette.ink, type_.font(30), anchor)
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        x = MARGIN + (columns - 1 - column if backwards else column) * (width + GAP)
        y = MARGIN + head + row * (TITLE + tall + GAP)
        page.paste(panel.picture, (x, y + TITLE))
        if panel.below:
            page.paste(panel.below, (x, y + TITLE + height + SEAM))
        _heading(draw, panel, x, y + TITLE - 11, width, type_, palette, backwards)
    told = type_.wrapped(legend, 13, width)
    for line, text in enumerate(told if 20 * len(told) + 8 <= tall - height else ()):
        y = MARGIN + head + TITLE + height + 24 + 20 * line
        draw.text((start, y), text, palette.quiet, type_.font(13), anchor)
    if bar is not None:
        draw_bar(page, bar, below, MARGIN + body + 8, type_, palette)
    return page


def bar_lines(bar: Bar, type_: Typeface, inner: int) -> list[str]:
    """Return the lines of the text after the colours."""
    return type_.wrapped(bar.after, 13, inner - _bar_start(bar, type_))


def _bar_start(bar: Bar, type_: Typeface) -> int:
    """Return where the text after the colours begins."""
    return 0 if bar.colours is None else math.ceil(type_.width(bar.before, 13)) + bar.colours.width + 16


def draw_bar(page: Image.Image, bar: Bar, lines: Sequence[str], top: int, type_: Typeface, palette: Palette) -> None:
    draw = ImageDraw.Draw(page)
    if bar.colours is not None:
        draw.text((MARGIN, top + 15), bar.before, palette.quiet, type_.font(13), "ls")
        page.paste(bar.colours, (MARGIN + math.ceil(type_.width(bar.before, 13)) + 8, top + 5))
    for line, text in enumerate(lines):
        place = (MARGIN + _bar_start(bar, type_), top + 15 + BAR_LINE * line)
        draw.text(place, text, palette.quiet, type_.font(13), "ls")


def _columns(panels: int, tall: float) -> int:
    """Return the number of columns of a landscape grid with few empty places.

    tall: the height of a panel divided by its width.
    """
    if panels <= 5:
        return panels

    def cost(columns: int) -> float:
        rows = math.ceil(panels / columns)
        return (columns * rows - panels) / columns + abs(math.log(columns / rows / 1.7 / tall))

    return min(range(4, 11), key=cost)


def _note(panel: Panel, width: int, type_: Typeface) -> str:
    """Return as many of the first parts of the note as fit next to the word."""
    parts = panel.note.split(" · ")
    room = width - (type_.width(panel.word, 13) + 8 if panel.word else 0)
    while parts and type_.width(" · ".join(parts), 13) > room:
        parts.pop()
    return " · ".join(parts) if panel.word else type_.shortened(panel.note, 13, width)


def _heading(
    draw: ImageDraw.ImageDraw,
    panel: Panel,
    x: int,
    y: int,
    width: int,
    type_: Typeface,
    palette: Palette,
    backwards: bool,
) -> None:
    note = _note(panel, width, type_)
    room = width - (type_.width(note, 13) + 8 if note else 0)
    size = next((size for size in range(20, 13, -1) if type_.width(panel.word, size) <= room), 13)
    word = type_.shortened(panel.word, size, room)
    near, far = ((x + width, "rs"), (x, "ls")) if backwards else ((x, "ls"), (x + width, "rs"))
    draw.text((near[0], y), word, palette.ink, type_.font(size), near[1])
    if note and not word:
        far = near
    draw.text((far[0], y), note, palette.quiet, type_.font(13), far[1])

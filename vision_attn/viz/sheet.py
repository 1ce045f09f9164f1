"""What every picture of looking is drawn with: light on a darkened picture, thin boxes, and panels on a sheet.

Text is set in the typeface that Pillow carries, which knows plain Latin letters only. Where a text needs more, a
typeface of the machine is looked for; letters that none has lose their accents, or show as empty boxes.
"""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Float
from PIL import Image, ImageDraw, ImageEnhance, ImageFont
from torch import Tensor

from vision_attn.files import replacing, shortened

PANEL = 224  # pixels of a panel's longer side
GAP = 16
SEAM = 4  # between the two pictures of one word
MARGIN = 32
TITLE = 32  # height of the line above a panel

DIM = 0.3  # brightness and
PALE = 0.5  # colour that are left of the picture where no light falls
VEIL = 0.3  # white mixed in where the light is full

Box = Sequence[float | int] | Float[Tensor, "4"]
"""(x0, y0, x1, y1) in [-1, 1] over the picture."""


class Palette(NamedTuple):
    """Colours of a sheet."""

    paper: str = "#101216"
    ink: str = "#f3f1ec"
    quiet: str = "#8d929c"
    accent: str = "#ffb454"


DARK = Palette()
LIGHT = Palette(paper="#ffffff", ink="#15171b", quiet="#777c86", accent="#e07a00")


class Panel(NamedTuple):
    """One picture of a sheet, the word above it, a quiet note at the end of the same line; and perhaps a second picture
    of the same word, as large, right below the first.
    """

    picture: Image.Image
    word: str = ""
    note: str = ""
    below: Image.Image | None = None


def save_film(path: str | Path, frames: Iterable[Image.Image], colours: Image.Image, durations: Sequence[int]) -> Path:
    """Write an animated GIF, repeated for ever, of frames that last `durations` milliseconds; returns its path.

    All have the palette of the picture `colours`, so that only what changes is stored.
    """
    first, *others = (frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames)
    with replacing(path) as temporary:
        first.save(temporary, "GIF", save_all=True, append_images=others, duration=list(durations), loop=0)
    return Path(path)


def picture_name(number: int, title: str) -> str:
    """`NUMBER-STEM.png` for the picture of an image called `title`: one short word, whatever the title holds.

    White space, control characters, slashes and what is no text become hyphens; a long stem is cut. Numbers keep two
    images of one name apart.
    """
    kept = "".join(
        "-" if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp", "Zs") or c in "/\\" else c for c in Path(title).stem
    )
    return f"{number:02d}-{shortened(kept)}.png"


def fitted(picture: Image.Image, side: int = PANEL) -> Image.Image:
    """`picture` in RGB, its longer side `side` pixels. Small ones grow by whole pixels, so drawn edges stay sharp."""
    picture = picture.convert("RGB")
    scale = side / max(picture.size)
    width, height = (max(1, round(length * scale)) for length in picture.size)
    if scale >= 2:
        whole = math.ceil(scale)
        picture = picture.resize((picture.width * whole, picture.height * whole), Image.Resampling.NEAREST)
    picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    picture.info = {}  # no profile or EXIF block of the photograph travels into what is written
    return picture


def darkened(picture: Image.Image) -> Image.Image:
    """The picture where no light falls."""
    return ImageEnhance.Brightness(ImageEnhance.Color(picture).enhance(PALE)).enhance(DIM)


def glowing(picture: Image.Image, light: Float[Tensor, "height width"]) -> Image.Image:
    """`picture` lit by `light`, in [0, 1] and as large as the picture: dark at 0, under a white veil at 1."""
    mask = Image.fromarray((light.clamp(0, 1) * 255).round().byte().cpu().numpy())
    veiled = Image.blend(picture, Image.new("RGB", picture.size, "white"), VEIL)
    return Image.composite(veiled, darkened(picture), mask)


def boxed(picture: Image.Image, boxes: Iterable[Box], colour: str = DARK.accent) -> Image.Image:
    """A copy of `picture` with thin boxes on it."""
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
    palette: Palette = DARK,
) -> Image.Image:
    """Panels in reading order under `title` (small) and `caption` (large). All panels have the first one's size.

    A `remark` on the whole stands after the title, which is cut where there is no room for both.
    Where words have two pictures each, `legend` stands in the empty place below the first panel, if it fits.
    A caption that is read from right to left runs from right to left on the sheet too.
    """
    width, height = panels[0].picture.size
    tall = 2 * height + SEAM if any(panel.below for panel in panels) else height
    columns = _columns(len(panels), tall / height)
    inner = columns * (width + GAP) - GAP
    type_ = _Typeface(" ".join([caption, title, *(panel.word for panel in panels)]))
    remark = f" · {remark}" if title and remark else remark
    title = type_.shortened(title, 15, inner - type_.width(remark, 15)) + remark
    lines = type_.wrapped(caption, 30, inner)
    head = (28 if title else 0) + 40 * len(lines) + (16 if title or lines else 0)
    rows = math.ceil(len(panels) / columns)
    page = Image.new("RGB", (inner + 2 * MARGIN, head + rows * (TITLE + tall + GAP) - GAP + 2 * MARGIN), palette.paper)
    draw = ImageDraw.Draw(page)
    backwards = right_to_left(caption)
    start, anchor = (MARGIN + inner, "rs") if backwards else (MARGIN, "ls")  # letters stand on the line at y
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
    return page


def right_to_left(text: str) -> bool:
    """Whether the first letter with a direction runs from right to left, as the web's `dir=auto` decides it."""
    return next((kind != "L" for kind in map(unicodedata.bidirectional, text) if kind in ("L", "R", "AL")), False)


def _columns(panels: int, tall: float) -> int:
    """The grid with few empty places that is somewhat wider than high, of panels `tall` times as high as wide."""
    if panels <= 5:
        return panels

    def cost(columns: int) -> float:
        rows = math.ceil(panels / columns)
        return (columns * rows - panels) / columns + abs(math.log(columns / rows / 1.7 / tall))

    return min(range(4, 11), key=cost)


def _heading(
    draw: ImageDraw.ImageDraw,
    panel: Panel,
    x: int,
    y: int,
    width: int,
    type_: "_Typeface",
    palette: Palette,
    backwards: bool,
) -> None:
    note = type_.shortened(panel.note, 13, width)
    room = width - (type_.width(note, 13) + 8 if note else 0)
    size = next((size for size in range(20, 13, -1) if type_.width(panel.word, size) <= room), 13)
    word = type_.shortened(panel.word, size, room)
    near, far = ((x + width, "rs"), (x, "ls")) if backwards else ((x, "ls"), (x + width, "rs"))
    draw.text((near[0], y), word, palette.ink, type_.font(size), near[1])
    if note and not word:
        far = near
    draw.text((far[0], y), note, palette.quiet, type_.font(13), far[1])


class _Typeface:
    """The first typeface that has every letter of `text`, else the one that lacks the fewest; and setting in it."""

    FILES = (
        "NotoSans-Regular.ttf", "DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf", "LiberationSans-Regular.ttf",
        "NotoSansCJK-Regular.ttc", "wqy-microhei.ttc", "msyh.ttc", "msgothic.ttc", "malgun.ttf", "PingFang.ttc",
        "NotoSansArabic-Regular.ttf", "NotoSansHebrew-Regular.ttf", "NotoSansDevanagari-Regular.ttf", "Nirmala.ttf",
    )  # fmt: skip

    def __init__(self, text: str) -> None:
        letters = frozenset(_plain(text))
        self.file, self.missing = None, _missing(None, letters)
        for file in self.FILES if self.missing else ():
            missing = _missing(file, letters)
            if len(missing) < len(self.missing):
                self.file, self.missing = file, missing
        bare = {letter: _bare(letter) for letter in self.missing}
        self.instead = {ord(letter): base for letter, base in bare.items() if not _missing(self.file, frozenset(base))}

    def font(self, size: int) -> ImageFont.FreeTypeFont:
        return _font(self.file, size)

    def width(self, text: str, size: int) -> float:
        return self.font(size).getlength(self._set(text))

    def shortened(self, text: str, size: int, room: float | int) -> str:
        """`text`, cut with an ellipsis where it is wider than `room`."""
        text = self._set(text)
        if self.width(text, size) <= room:
            return text
        kept = len(text)
        while kept and self.width(text[:kept] + "…", size) > room:
            kept -= 1
        return text[:kept].rstrip() + "…"

    def wrapped(self, text: str, size: int, room: float | int) -> list[str]:
        """`text` in the fewest lines no wider than `room`, broken between words, none much shorter than the others."""
        lines = self._filled(text, size, room)
        for part in range(97, 50, -3):
            tighter = self._filled(text, size, room * part / 100)
            if len(tighter) != len(lines) or " ".join(tighter) != " ".join(lines):  # one line more, or a word cut
                break
            lines = tighter
        return lines

    def _filled(self, text: str, size: int, room: float | int) -> list[str]:
        lines: list[str] = []
        for word in self._set(text).split():
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and self.width(longer, size) <= room:
                lines[-1] = longer
            else:
                lines.append(self.shortened(word, size, room))
        return lines

    def _set(self, text: str) -> str:
        return _plain(text).translate(self.instead)


def _plain(text: str) -> str:
    """`text` on one line, with a question mark for control characters and lone surrogates, which cannot be set."""
    return "".join("?" if unicodedata.category(c) in ("Cc", "Cs") else c for c in " ".join(text.split()))


def _bare(letter: str) -> str:
    """`letter` without its accents: e for é."""
    return "".join(c for c in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(c)) or letter


@lru_cache(maxsize=256)
def _font(file: str | None, size: int):
    return ImageFont.load_default(size) if file is None else ImageFont.truetype(file, size)


@lru_cache(maxsize=1024)
def _missing(file: str | None, letters: frozenset) -> frozenset:
    """The letters that typeface `file` has no shape for: they come out as its sign for an unknown one."""
    try:
        font = _font(file, 20)
    except OSError:
        return letters
    unknown = font.getmask("\U0010ffff")
    shapes = {letter: font.getmask(letter) for letter in letters if not letter.isspace()}
    return frozenset(c for c, shape in shapes.items() if shape.size == unknown.size and bytes(shape) == bytes(unknown))

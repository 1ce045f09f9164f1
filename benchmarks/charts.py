"""Draw line charts side by side, in the colours of our pages."""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from vision_attn.system.files import replacing
from vision_attn.viz.panel_sheets import DARK

COLOURS = (
    "#ffb454", "#59c3ff", "#4cc38a", "#ff6b62", "#c58fff", "#f3f1ec", "#e0d04a", "#ff8fc8", "#7fe0d4", "#a98a6a",
)  # fmt: skip
WIDTH, HEIGHT, MARGIN = 560, 420, 70
FRAME, GRID = "#33373f", "#22262d"
LETTERS, SMALL = 16, 13
DOTS = 60
"""The largest number of points of a line that are drawn one by one; a line of more is a curve."""


class Axis(NamedTuple):
    """The title of an axis, how its numbers are written, and whether it is logarithmic."""

    title: str
    written: Callable[[float], str] = "{:g}".format
    logarithmic: bool = True

    def range(self, values: Sequence[float]) -> tuple[float, float]:
        """The ends of an axis: a little below the smallest value, and a little above the largest."""
        low, high = min(values), max(values)
        if self.logarithmic:
            return low / 1.3, high * 1.3
        spread = (high - low or 1) / 20
        return low - spread, high + spread

    def share(self, value: float, ends: tuple[float, float]) -> float:
        """The position of a value between the ends, from 0 to 1."""
        low, high, value = map(math.log, (*ends, value)) if self.logarithmic else (*ends, value)
        return (value - low) / (high - low)

    def ticks(self, ends: tuple[float, float]) -> list[float]:
        """Round numbers between the ends: at most eight."""
        low, high = ends
        if not self.logarithmic:
            step = next(step for step in _round(high - low) if (high - low) / step <= 8)
            return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1, 2, 5), (1,)):
            ticks = [digit * 10.0**power for power in powers for digit in digits if low < digit * 10.0**power < high]
            if len(ticks) <= 8:
                break
        return ticks if len(ticks) > 1 else self._replace(logarithmic=False).ticks(ends)


class Chart(NamedTuple):
    """Lines, by name, of points (x, y). Points that a logarithmic axis cannot show are left out."""

    lines: dict[str, list[tuple[float, float]]]
    x: Axis
    y: Axis
    scattered: frozenset[str] = frozenset()
    """The lines whose points are not connected."""


def save(charts: Sequence[Chart], picture: str | Path) -> None:
    """Write the charts side by side as a PNG. All have the same lines, which are named in the first one that
    has room for it."""
    page = Image.new("RGB", (len(charts) * (WIDTH + MARGIN) + MARGIN, HEIGHT + 2 * MARGIN), DARK.paper)
    draw = ImageDraw.Draw(page)
    corners = [(MARGIN + number * (WIDTH + MARGIN), MARGIN // 2) for number in range(len(charts))]
    drawn = [point for chart, corner in zip(charts, corners, strict=True) for point in _draw(draw, chart, corner)]
    names, font = list(charts[0].lines), ImageFont.load_default(LETTERS)
    width, height = 44 + max(font.getlength(name) for name in names), len(names) * (LETTERS + 8) + 8
    x, y = _emptiest(corners, drawn, width, height)
    for number, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        middle = y + 16 + number * (LETTERS + 8)
        draw.ellipse((x + 12, middle - 5, x + 22, middle + 5), colour)
        draw.text((x + 32, middle), name, DARK.ink, font, "lm", **HALO)
    with replacing(picture) as path:
        page.save(path, "PNG", optimize=True)


HALO = {"stroke_width": 3, "stroke_fill": DARK.paper}
"""Names stay readable where a line passes behind them."""


def folders(command: str, named: Sequence[str]) -> dict[str, Path]:
    """Read the folder of each line from arguments NAME=FOLDER. Ends the program if there are none, or too many."""
    by_name = {name: Path(folder) for name, _, folder in (argument.partition("=") for argument in named)}
    if not 0 < len(by_name) <= len(COLOURS):
        sys.exit(f"{command}: give from 1 to {len(COLOURS)} NAME=FOLDER")
    return by_name


def short(number: float) -> str:
    """A number in thousands, millions or billions: 20k, 3M, 1G."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def _emptiest(
    corners: Sequence[tuple[int, int]], points: Sequence[tuple[float, float]], width: float, height: float
) -> tuple[float, float]:
    """Find where, in the charts with these upper left corners, a key of this size covers the fewest points: its left
    and upper edge."""

    def covered(corner: tuple[float, float]) -> int:
        return sum(0 <= x - corner[0] <= width and 0 <= y - corner[1] <= height for x, y in points)

    across, down = (0, (WIDTH - width) / 2, WIDTH - width), (HEIGHT - height, 0)
    return min(((left + x, top + y) for left, top in corners for y in down for x in across), key=covered)


def _draw(draw: ImageDraw.ImageDraw, chart: Chart, corner: tuple[int, int]) -> list[tuple[float, float]]:
    """Draw one chart with its upper left corner there, and return where its points lie on the page."""
    left, top = corner
    shown = {
        name: [
            point for point in points
            if not any(axis.logarithmic and value <= 0 for axis, value in zip((chart.x, chart.y), point, strict=True))
        ]
        for name, points in chart.lines.items()
    }  # fmt: skip
    across = chart.x.range([x for points in shown.values() for x, _ in points])
    up = chart.y.range([y for points in shown.values() for _, y in points])

    def place(x: float, y: float) -> tuple[float, float]:
        return left + chart.x.share(x, across) * WIDTH, top + (1 - chart.y.share(y, up)) * HEIGHT

    small, font = ImageFont.load_default(SMALL), ImageFont.load_default(LETTERS)
    for tick in chart.y.ticks(up):
        y = place(across[0], tick)[1]
        draw.line((left, y, left + WIDTH, y), GRID)
        draw.text((left - 8, y), chart.y.written(tick), DARK.quiet, small, "rm")
    for tick in chart.x.ticks(across):
        x = place(tick, up[0])[0]
        draw.line((x, top, x, top + HEIGHT), GRID)
        draw.text((x, top + HEIGHT + 8), chart.x.written(tick), DARK.quiet, small, "mt")
    draw.rectangle((left, top, left + WIDTH, top + HEIGHT), outline=FRAME)
    title = f"{chart.y.title}, by {chart.x.title}"
    draw.text((left + WIDTH / 2, top + HEIGHT + 34), title, DARK.ink, font, "mt")
    drawn = []
    for (name, points), colour in zip(shown.items(), COLOURS, strict=False):
        places = [place(*point) for point in points]
        if len(places) > 1 and name not in chart.scattered:
            draw.line(places, colour, 3, "curve")
        for x, y in places if len(places) <= DOTS else ():
            draw.ellipse((x - 4, y - 4, x + 4, y + 4), colour)
        drawn += places
    return drawn


def _round(span: float) -> list[float]:
    """Steps 1, 2 and 5 times a power of ten, from much smaller than `span` on."""
    power = math.floor(math.log10(span)) - 2
    return [digit * 10.0 ** (power + more) for more in range(4) for digit in (1, 2, 5)]

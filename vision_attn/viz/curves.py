"""Lay out charts of curves for HTML pages: the numbers of several runs or methods, plotted against the step."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, RIGHT, ABOVE, BELOW = 360, 210, 48, 20, 10, 26
"""The size of a chart, in units of its drawing, and the margins around its curves."""
LETTER = 12
"""The smallest distance between the numbers at the ends of curves."""
MOST = 1000
"""The largest number of points of a curve that are drawn."""

Curve = Sequence[tuple[int | float, float]]
"""Pairs of a step and a value."""


class Tick(NamedTuple):
    """A round number of an axis, and its place on this axis."""

    place: float
    text: str


class _Line(NamedTuple):
    """A curve in the coordinates of the chart.

    number: the number of its colour and dashes on the page."""

    name: str
    number: int
    points: list[tuple[float, float]]
    end: float
    """The height of the number at the curve's end."""


class Plot(NamedTuple):
    """The layout of a chart, for `templates/chart.html`."""

    name: str
    across: list[Tick]
    """The ticks of the horizontal axis."""
    up: list[Tick]
    lines: list[_Line]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    foot: int = HEIGHT - BELOW


def plot(name: str, curves: Mapping[str, Curve], names: Sequence[str], *, shown: Sequence[int | float] = ()) -> Plot:
    """Return the layout of a chart of `curves`.

    name: the title of the chart.
    names: the names of the curves of all charts of the page, which decide their colours.
    shown: values that the vertical axis always includes, so that small differences look small.
    """
    steps, values = zip(*(point for curve in curves.values() for point in curve), strict=True)
    left, right, marks = min(steps), max(steps), ticks(min([*values, *shown]), max([*values, *shown]), outside=True)
    low, high = marks[0], marks[-1]

    def across(step: int | float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (step - left) / ((right - left) or 1), 1)

    def up(value: float) -> float:
        return round(ABOVE + (HEIGHT - ABOVE - BELOW) * (1 - (value - low) / ((high - low) or 1)), 1)

    thinned = {run: curve[:: -(-len(curve) // MOST)] for run, curve in curves.items()}
    points = {run: [(across(step), up(value)) for step, value in curve] for run, curve in thinned.items()}
    ends = apart([line[-1][1] for line in points.values()])
    lines = [_Line(run, names.index(run), points[run], end) for run, end in zip(points, ends, strict=True)]
    return Plot(
        name,
        [Tick(across(step), short(step)) for step in ticks(left, right) if left <= step <= right],
        [Tick(up(value), short(value)) for value in marks],
        lines,
    )


def ticks(low: int | float, high: int | float, *, outside: bool = False) -> list[float]:
    """Return two to six round numbers from `low` to `high`, or one if both are equal.

    outside: whether the numbers enclose `low` and `high`.
    """
    span = high - low
    if span <= abs(high) * 1e-9:
        return [low]
    step = 10 ** math.floor(math.log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step * 4.5 >= span)
    first, last = (math.floor, math.ceil) if outside else (math.ceil, math.floor)
    places = range(first(round(low / step, 6)), last(round(high / step, 6)) + 1)
    return [float(f"{place * step:.12g}") for place in places]


def short(number: int | float) -> str:
    """Format a round number in few letters: 0.25, 20k, 3M, 1e-05."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "")):
        if abs(number) >= size:
            return f"{number / (size if letter else 1e3):g}{letter or 'k'}"
    return f"{number:g}"


def apart(heights: Sequence[float]) -> list[float]:
    """Return heights that are at least `LETTER` apart and within the chart, moved as little as possible."""
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    moved = dict.fromkeys(order, 0.0)
    above = -math.inf
    for place in order:
        above = moved[place] = max(heights[place], above + LETTER)
    below = float(HEIGHT)
    for place in reversed(order):
        below = moved[place] = min(moved[place], below - LETTER)
    return [round(moved[place], 1) for place in range(len(heights))]

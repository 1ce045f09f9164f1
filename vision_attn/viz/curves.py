"""A page of curves: how the numbers of several runs went on from step to step."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vision_attn.viz.html import write_html

WIDTH, HEIGHT, LEFT, BELOW = 640, 280, 100, 32
MOST = 1000
"""Points of a curve that are drawn."""

Curve = Sequence[tuple[int | float, float]]
"""Steps and values."""


class Label(NamedTuple):
    """A number at the end of an axis. `anchor`: which side of the text is at `x`, "start" or "end"."""

    x: int
    y: int
    anchor: str
    text: str


class Line(NamedTuple):
    """A curve in the coordinates of the chart. `number`: which colour of the page it has."""

    name: str
    number: int
    points: list[tuple[float, float]]


class Plot(NamedTuple):
    """A chart that `templates/chart.html` draws."""

    name: str
    labels: list[Label]
    lines: list[Line]
    width: int = WIDTH
    height: int = HEIGHT


def write_curves(path: Path, curves: Mapping[str, Mapping[str, Curve]], *, title: str) -> Path:
    """Write an HTML page with a plot for each name in `curves`, of a curve for each run. Returns its path."""
    runs = list(dict.fromkeys(run for plot in curves.values() for run in plot))
    plots = [plot(name, some, runs) for name, some in curves.items()]
    guide = "Each plot against the step. Point at a curve for the name of its run."
    return write_html(path, "curves.html", runs=runs, plots=plots, title=title, guide=guide)


def plot(name: str, curves: Mapping[str, Curve], names: Sequence[str], *, shown: Sequence[int | float] = ()) -> Plot:
    """Place the points of curves on a chart. names: of the curves of all charts of the page, which share colours.
    shown: values that the vertical axis reaches in any case, so that small differences look small."""
    steps, values = zip(*(point for curve in curves.values() for point in curve), strict=True)
    left, right, low, high = min(steps), max(steps), min([*values, *shown]), max([*values, *shown])

    def placed(step: int | float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - 8) * (step - left) / max(right - left, 1e-9)
        y = (HEIGHT - BELOW - 8) * (1 - (value - low) / max(high - low, 1e-9)) + 8
        return round(x, 1), round(y, 1)

    lines = [
        Line(run, names.index(run), [placed(*point) for point in curve[:: -(-len(curve) // MOST)]])
        for run, curve in curves.items()
    ]
    labels = [
        Label(LEFT - 8, 18, "end", f"{high:.3g}"), Label(LEFT - 8, HEIGHT - BELOW, "end", f"{low:.3g}"),
        Label(LEFT, HEIGHT - 6, "start", f"{left:g}"), Label(WIDTH - 8, HEIGHT - 6, "end", f"{right:g}"),
    ]  # fmt: skip
    return Plot(name, labels, lines)

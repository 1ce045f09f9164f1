"""Draw figures for papers that consist of charts: curves and metrics of runs, and the faithfulness of maps."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from vision_attn.system.errors import UserError
from vision_attn.viz.curves import MOST, Curve
from vision_attn.viz.figures.drawing import Letters, PaperFigure, drawing
from vision_attn.viz.figures.paper import Paper

CHART = 2.1, 1.5
"""The approximate width of a chart and the height of a row of charts, in inches."""
LEGEND = 0.17
"""The height of a line of the legend, in inches."""
COLOURS = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"
"""The colours of Okabe and Ito, which people with any colour vision can tell apart; with 4 dashes they make 28 kinds of
lines."""
DASHES = "-", "--", "-.", ":"


def curves_figure(curves: Mapping[str, Mapping[str, Curve]], paper: Paper) -> PaperFigure:
    """Draw a small chart for each metric, with a curve for each run against the step, and one legend. Raises UserError
    without curves."""
    if not curves:
        raise UserError("these runs have no metrics.jsonl, so there are no curves to draw")
    with drawing(paper):
        figure, charts, columns, runs = _small_charts(curves, paper)
        for axes, some in zip(charts, curves.values(), strict=True):
            _lines(axes, some, runs)
        for axes in charts[max(0, len(charts) - columns) :]:
            axes.set_xlabel("step")
        return _fitted(figure)


def bars_figure(numbers: Mapping[str, Mapping[str, float]], paper: Paper) -> PaperFigure:
    """Draw a small chart for each metric, with a bar for each run, and one legend. The labels of runs begin with a
    number, which names their bars."""
    with drawing(paper):
        figure, charts, _, runs = _small_charts(numbers, paper)
        for axes, some in zip(charts, numbers.values(), strict=True):
            for run, value in some.items():
                axes.bar(runs.index(run), value, 0.6, color=_style(runs.index(run))["color"])
            axes.set_xticks(range(len(runs)), [run.partition(" ")[0] for run in runs])
            axes.set(xlim=(-0.5, len(runs) - 0.5), axisbelow=True)
            axes.grid(visible=False, axis="x")
            axes.yaxis.set_major_locator(MaxNLocator(4))
        return _fitted(figure)


def _small_charts(
    measured: Mapping[str, Mapping[str, Any]], paper: Paper
) -> tuple[PaperFigure, list[Axes], int, list[str]]:
    """Return a figure with an empty titled chart for each metric, these charts, the number of columns, and the names of
    runs."""
    runs = list(dict.fromkeys(run for chart in measured.values() for run in chart))
    columns = min(len(measured), max(1, round(paper.width / CHART[0])))
    figure, charts = _charts(paper, ceil(len(measured) / columns), columns, runs)
    for axes in charts[len(measured) :]:
        axes.remove()
    for axes, name in zip(charts, measured, strict=False):
        _titled(axes, name)
    _head(figure, paper)
    return figure, charts[: len(measured)], columns, runs


def measured_figure(numbers: Mapping[str, Any], model: str, paper: Paper) -> PaperFigure:
    """Draw the gain of each method with its interval, and the mean curves of deletion and insertion.

    numbers: see `vision_attn.faithfulness.report.all_numbers`.
    model: the name of the model, for the title.
    """
    names = sorted(numbers["methods"], key=lambda name: numbers["methods"][name]["gain"])
    lines = [*reversed(names), "random"]
    steps = numbers["settings"]["steps"]
    with drawing(paper):
        columns = 3 if paper.width >= 5 else 1
        figure, (gains, *others) = _charts(paper, 3 // columns, columns, lines)
        _titled(gains, "gain over a random order")
        for place, name in enumerate(names):
            method, style = numbers["methods"][name], _style(lines.index(name))
            ends = method["gain_interval"]
            if ends is not None:
                gains.plot(ends, (place, place), color=style["color"])
            gains.plot(method["gain"], place, "o", color=style["color"], markersize=4)
        gains.axvline(0, color=paper.quiet, linewidth=0.8)
        gains.set_yticks(range(len(names)), names)
        gains.margins(y=0.6 / max(1, len(names)))
        for axes, curve, better in zip(others, ("deletion", "insertion"), ("lower", "higher"), strict=True):
            _titled(axes, f"{curve} ({better} is better)")
            curves = {
                name: [(100 * n / steps, y) for n, y in enumerate(numbers["curves"][name][curve])] for name in lines
            }
            _lines(axes, curves, lines)
            axes.set(xlabel=f"regions {'deleted' if curve == 'deletion' else 'inserted'}, %")
            axes.set_ylabel(numbers["score"])
        images = f"{numbers['images']} image{'s' * (numbers['images'] != 1)}"
        _head(figure, paper, f"{model}, {images}" + ", random weights" * bool(numbers["random_weights"]))
        return _fitted(figure)


def _head(figure: PaperFigure, paper: Paper, title: str = "") -> None:
    """Write the paper's title, or `title`, above all charts."""
    if title := paper.title or title:
        letters = Letters(title)
        figure.suptitle(letters.shortened(title, 9, 72 * paper.width), fontproperties=letters.properties, fontsize=9)


def _charts(paper: Paper, rows: int, columns: int, names: Sequence[str]) -> tuple[PaperFigure, list[Axes]]:
    """Return a figure with empty charts, and one legend below them."""
    across = max(1, int(paper.width / (0.5 + max(Letters(name).width(name, 7) for name in names) / 72)))
    across = min(across, len(names))
    height = rows * CHART[1] + 0.3 + ceil(len(names) / across) * LEGEND
    figure = PaperFigure(paper, height, layout="constrained")
    charts = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    handles = [Line2D([], [], label=name, **_style(number)) for number, name in enumerate(names)]
    legend = figure.legend(
        handles=handles, loc="outside lower center", ncols=across, columnspacing=1.2, handlelength=2.6
    )
    for text in legend.get_texts():
        letters = Letters(text.get_text())
        text.set_text(letters.shortened(text.get_text(), 7, 72 * (paper.width - 0.6)))
        text.set_fontproperties(letters.properties)
        text.set_fontsize(7)
    return figure, charts


def _titled(axes: Axes, title: str) -> None:
    axes.set_title(title, fontproperties=Letters(title).properties, fontsize=8, loc="left")


def _fitted(figure: PaperFigure) -> PaperFigure:
    """Shrink or cut titles that are wider than their chart."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        title, room = axes.get_title(loc="left"), axes.get_window_extent().width / figure.dpi
        letters = Letters(title)
        size = letters.size(title, 8, room)
        options: dict[str, Any] = {"fontproperties": letters.properties, "fontsize": size, "loc": "left"}
        axes.set_title(letters.shortened(title, size, 72 * room), **options)
    return figure


def _lines(axes: Axes, curves: Mapping[str, Curve], names: Sequence[str]) -> None:
    """Draw curves, each in the colour and dash of its name; a curve of one point as a point."""
    for name, curve in curves.items():
        points = curve[:: -(-len(curve) // MOST)]
        axes.plot(*zip(*points, strict=True), marker="." if len(points) == 1 else "", **_style(names.index(name)))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_locator(MaxNLocator(4))


def _style(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}

"""A page of curves: how the numbers of several runs went on from step to step."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from vision_attn.viz.index import write_figures

COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#0072b2", "#999999")
"""Of runs, in turn (Okabe and Ito 2008: distinct also without seeing red or green)."""
WIDTH, HEIGHT, LEFT, BELOW = 640, 280, 100, 32
MOST = 1000
"""Points of a curve that are drawn."""

Curve = Sequence[tuple[int | float, float]]
"""Steps and values."""


def write_curves(path: Path, curves: Mapping[str, Mapping[str, Curve]], *, title: str) -> Path:
    """Write an HTML page with a plot for each name in `curves`, of a curve for each run. Returns its path."""
    runs = list(dict.fromkeys(run for plot in curves.values() for run in plot))
    colours = {run: COLOURS[number % len(COLOURS)] for number, run in enumerate(runs)}
    legend = "".join(
        f'<p style="margin:0"><span style="color:{colour}">&#9644;</span> {escape(run)}</p>'
        for run, colour in colours.items()
    )
    plots = "\n".join(plot(name, some, colours) for name, some in curves.items())
    guide = "Each plot against the step. Point at a curve for the name of its run."
    return write_figures(path, f"{legend}\n{plots}", title=title, guide=guide)


def plot(name: str, curves: Mapping[str, Curve], colours: Mapping[str, str]) -> str:
    """One plot as SVG in a figure, whose labels have the colour of its text. colours: of each curve."""
    steps, values = zip(*(point for curve in curves.values() for point in curve), strict=True)
    left, right, low, high = min(steps), max(steps), min(values), max(values)

    def placed(step: int | float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - 8) * (step - left) / max(right - left, 1e-9)
        y = (HEIGHT - BELOW - 8) * (1 - (value - low) / max(high - low, 1e-9)) + 8
        return round(x, 1), round(y, 1)

    drawn = []
    for run, curve in curves.items():
        points = [placed(*point) for point in curve[:: -(-len(curve) // MOST)]]
        line = " ".join(f"{x},{y}" for x, y in points)
        dots = "".join(f'<circle cx="{x}" cy="{y}" r="3"/>' for x, y in points) if len(points) <= 40 else ""
        drawn.append(
            f'<g stroke="{colours[run]}" fill="{colours[run]}"><title>{escape(run)}</title>'
            f'<polyline points="{line}" fill="none" stroke-width="2"/>{dots}</g>'
        )
    labels = [
        (LEFT - 8, 18, "end", f"{high:.3g}"), (LEFT - 8, HEIGHT - BELOW, "end", f"{low:.3g}"),
        (LEFT, HEIGHT - 6, "start", f"{left:g}"), (WIDTH - 8, HEIGHT - 6, "end", f"{right:g}"),
    ]  # fmt: skip
    texts = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in labels)
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(name)}" '
        f'font-size="17" fill="currentColor" style="max-width:100%">{texts}{"".join(drawn)}</svg>'
        f"<figcaption>{escape(name)}</figcaption></figure>"
    )

"""Draw figures for papers of RAM's glimpses, DRAW's reads, and DRAW's drawings."""

from collections.abc import Sequence
from functools import partial

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from PIL import Image
from torch import Tensor

from vision_attn.viz.canvases import READ, WRITE, Rectangles, check, spread
from vision_attn.viz.figures.drawing import PaperFigure
from vision_attn.viz.figures.layout import FigurePanel, Mark, PanelRow, columns_of, drawn, wrapped
from vision_attn.viz.figures.paper import Paper
from vision_attn.viz.foveated import GlimpseTrace, as_picture, checked
from vision_attn.viz.glimpses import seen
from vision_attn.viz.panel_sheets import DARK
from vision_attn.viz.read_windows import ReadTrace

GLIMPSES = "Numbered points: glimpses in their order. Squares: what the last one saw."
WINDOWS = "A rectangle is the grid of filters, its line as thick as their sigma."
READS = WINDOWS + " Below it: what was read."
SHARP = 896
"""The side, in pixels, of the picture of a glimpse."""
STEPS = 8
"""The number of time steps of a drawing that are shown."""


def glimpses_figure(traces: Sequence[GlimpseTrace], paper: Paper) -> PaperFigure:
    """Draw each image with the path of its glimpses, then the pixels of each glimpse, with the likeliest class after
    this glimpse. Raises UserError if the shapes of a trace do not fit each other."""
    lines: list[PanelRow] = []
    for trace in map(checked, traces):
        size = 6.0 if len(traces) == 1 else 4.0
        path = FigurePanel(as_picture(trace.image), "image", marks=[partial(_path, trace=trace, size=size)])
        panels = [path, *(_glimpse(trace, step) for step in range(len(trace.locations)))]
        columns = columns_of(len(panels), trace.size[0] / trace.size[1], paper) if len(traces) == 1 else len(panels)
        lines += wrapped(panels, columns, ": ".join(filter(None, (trace.title, trace.verdict))))
    return drawn(lines, paper, foot=GLIMPSES)


def reads_figure(traces: Sequence[ReadTrace], paper: Paper) -> PaperFigure:
    """Draw two rows for each image: the window of each time step, and below it the pixels read, with the likeliest
    class after this time step."""
    lines: list[PanelRow] = []
    for trace in traces:
        value, said = (tensor.tolist() for tensor in trace.probabilities.max(dim=1))
        named = partial(_class_name, names=trace.names)
        answer = f"said {named(said[-1])}, p {value[-1]:.2f}"
        if trace.label is not None:
            answer += ": right" if trace.label == said[-1] else f": wrong, it is {named(trace.label)}"
        picture = as_picture(trace.image.detach().float().cpu())
        windows, read = [], []
        for step, (box, sigma, patch) in enumerate(zip(trace.boxes, trace.sigma, trace.patches, strict=True)):
            windows.append(FigurePanel(picture, f"read {step + 1}", marks=[_window(box, sigma, trace.image, READ)]))
            seen_there = as_picture(patch.detach().float().cpu())
            read.append(FigurePanel(seen_there, note=f"{named(said[step])} {value[step]:.2f}"))
        title = ": ".join(filter(None, (trace.title, answer)))
        lines += [PanelRow([FigurePanel(picture, "image"), *windows], title), PanelRow([None, *read])]
    return drawn(lines, paper, foot=READS)


def answers_figure(answers: Sequence[tuple[Image.Image, str, str]], paper: Paper) -> PaperFigure:
    """Draw images with titles and answers, for a model that sees whole images.

    answers: the picture, the title and the answer of each image.
    """
    panels = [FigurePanel(picture, title, answer) for picture, title, answer in answers]
    aspect = sum(panel.picture.width / panel.picture.height for panel in panels) / len(panels)
    return drawn(wrapped(panels, columns_of(len(panels), aspect, paper)), paper)


def drawings_figure(
    canvases: Float[Tensor, "B T C Y X"],
    writes: Rectangles | None,
    paper: Paper,
    *,
    reads: Rectangles | None = None,
    images: Float[Tensor, "B C Y X"] | None = None,
) -> PaperFigure:
    """Draw a row for each drawing: some of its time steps with the write window, then the result. The arguments are
    those of `viz.canvases.write_strips`. Raises UserError if the shapes do not fit each other."""
    check(canvases, writes, reads, images)
    steps, lines = spread(canvases.shape[1], STEPS), []
    for row, drawing in enumerate(canvases.detach().float().cpu()):
        panels = [] if images is None else [FigurePanel(as_picture(images[row].detach().float().cpu()))]
        for step in steps:
            marks = [
                _window(some.boxes[row, step], some.sigma[row, step], drawing[0], colour)
                for some, colour in ((reads, READ), (writes, WRITE))
                if some is not None
            ]
            panels.append(FigurePanel(as_picture(drawing[step]), marks=marks))
        lines.append(PanelRow([*panels, FigurePanel(as_picture(drawing[-1]))]))
    heads = ["image"] * (images is not None) + [f"step {step + 1}" for step in steps] + ["drawn"]
    kinds = "Orange: written; blue: read." if writes is not None and reads is not None else ""
    foot = " ".join(filter(None, (WINDOWS, kinds))) if writes is not None or reads is not None else ""
    return drawn(lines, paper, heads=heads, foot=foot)


def _glimpse(trace: GlimpseTrace, step: int) -> FigurePanel:
    """Return the panel of one glimpse."""
    picture = seen(trace, slice(step, step + 1), SHARP)
    if trace.probabilities is None:
        return FigurePanel(picture, f"{step + 1}")
    value, said = trace.probabilities[step].max(0)
    return FigurePanel(picture, f"{step + 1}", f"{trace.named(int(said))} {value:.2f}")


def _path(axes: Axes, trace: GlimpseTrace, size: float | int) -> None:
    """Draw numbered points, `size` points wide, joined by a line, and the squares of the last glimpse."""
    places = trace.locations
    (x, y), (num_scales, _, side, _) = places[-1].tolist(), trace.patches.shape[1:]
    for width, colour in ((3, DARK.paper), (1.4, DARK.accent)):
        axes.plot(*places.T.tolist(), color=colour, linewidth=width, solid_joinstyle="round")
    for scale in range(num_scales):
        across, down = (side * 2**scale / length for length in trace.size)
        for width, colour in ((1.6, DARK.paper), (0.8, DARK.accent)):
            box = Rectangle((x - across, y - down), 2 * across, 2 * down, fill=False, linewidth=width, edgecolor=colour)
            axes.add_patch(box)
    for number, place in enumerate(places.tolist(), start=1):
        axes.plot(*place, "o", color=DARK.accent, markersize=size, markeredgecolor=DARK.paper, markeredgewidth=0.5)
        axes.annotate(
            str(number),
            place,
            ha="center",
            va="center_baseline",
            fontsize=0.75 * size,
            color=DARK.paper,
            annotation_clip=True,
        )


def _window(box: Float[Tensor, "4"], sigma: Float[Tensor, ""], image: Float[Tensor, "C Y X"], colour: str) -> Mark:
    """Return the mark of one time step's window, its line as thick as the sigma of the filters."""
    down, across = (float(sigma) / length for length in image.shape[1:])
    return partial(_framed, box=box.tolist(), across=across, down=down, colour=colour)


def _framed(axes: Axes, box: list[float], across: float | int, down: float | int, colour: str) -> None:
    """Draw a frame on `box` whose line extends by `across` and `down` to both sides, and is never too thin to be
    seen."""
    x0, y0, x1, y1 = box
    outer = [(x0 - across, y0 - down), (x1 + across, y0 - down), (x1 + across, y1 + down), (x0 - across, y1 + down)]
    inner = [(x0 + across, y0 + down), (x0 + across, y1 - down), (x1 - across, y1 - down), (x1 - across, y0 + down)]
    rings = [outer, inner] if x1 - x0 > 2 * across and y1 - y0 > 2 * down else [outer]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(rings)
    shape = Path([corner for ring in rings for corner in (*ring, ring[0])], codes)
    axes.add_patch(PathPatch(shape, facecolor=colour, edgecolor=colour, linewidth=0.5, alpha=0.75))


def _class_name(number: int, names: Sequence[str]) -> str:
    return names[number] if names else str(number)

"""Lay out the panels of a figure in rows: pictures of one width, with titles above and notes below. The height of the
figure follows."""

from collections.abc import Callable, Sequence
from itertools import chain
from math import ceil
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from PIL import Image

from vision_attn.system.console import complain
from vision_attn.system.errors import UserError
from vision_attn.viz.figures.drawing import Letters, PaperFigure, drawing
from vision_attn.viz.figures.paper import Paper

MARGIN, GAP = 0.06, 0.07
"""The margin around the figure, and the gap between panels, in inches."""
PANEL = 1.2
"""The smallest width of a panel of a landscape photograph, in inches, if panels may be wrapped."""
WIDE, NARROW = 4 / 3, 0.75
"""The aspect of a landscape photograph, and the factor by which a panel of a portrait may be narrower."""
TALLEST = 1.2
"""The largest height of a panel for a width of 1; higher pictures are drawn narrower."""
TITLE, NOTE, HEAD = 8, 6, 9
"""The sizes of letters, in points."""
LINE = 1.35 / 72
"""The height of a line, in inches per point of its letters."""
BAR = 1.7, 0.08
"""The width and height of a colour bar, in inches."""

HIGHEST = 100
"""The largest height of a figure, in inches. Acrobat limits a PDF to 200 inches, matplotlib a PNG to 65,536 dots."""

FRAME = 1.5
"""The largest height of the text above and below the panels, in inches."""

Mark = Callable[[Axes], object]
"""A function that draws on a panel, in coordinates from -1 to 1 of the picture."""


class FigurePanel(NamedTuple):
    """A picture in a figure, with its texts."""

    picture: Image.Image
    title: str = ""
    note: str = ""
    marks: Sequence[Mark] = ()
    paint: Callable[[Image.Image], Image.Image] | None = None
    """A function that changes the picture once it has its size in pixels."""


class PanelRow(NamedTuple):
    """Panels side by side, below a title; None is an empty place."""

    panels: Sequence[FigurePanel | None]
    title: str = ""


class FigureBar(NamedTuple):
    """The colour bar: the weight at full colour, and the meaning of its numbers."""

    most: float | int
    label: str
    colours: str | Colormap
    """The colour map, or its name in matplotlib."""


def columns_of(number: int, aspect: float | int, paper: Paper) -> int:
    """Return the number of columns into which `number` panels of this aspect are wrapped."""
    fitting = max(1, int(paper.width / (PANEL * max(NARROW, aspect / WIDE))))
    return ceil(number / ceil(number / min(number, fitting)))


def wrapped(panels: Sequence[FigurePanel], columns: int, title: str = "") -> list[PanelRow]:
    """Wrap panels into lines of `columns`; the title stands above the first."""
    return [
        PanelRow(panels[first : first + columns], title if first == 0 else "")
        for first in range(0, len(panels), columns)
    ]


def width_of(columns: int, paper: Paper) -> float:
    """Return the width of a panel, in inches."""
    return (paper.width - 2 * MARGIN - (columns - 1) * GAP) / columns


def fitting(rows: Sequence[Sequence[PanelRow]], paper: Paper) -> list[PanelRow]:
    """Return the lines of as many rows as the figure has room for, at least the first. Logs how many are left out.

    rows: the lines of each row; there is one row for each image.
    """
    columns = max(len(line.panels) for row in rows for line in row)
    with drawing(paper):
        page = _Page(paper, TALLEST)
        page.paragraph(paper.title, HEAD, paper.ink)
        page.down(FRAME)
        for number, row in enumerate(rows):
            for line in row:
                page.paragraph(line.title, TITLE, paper.ink)
                page.down(page.heights(line.panels, width_of(columns, paper)).all)
            if page.top > HIGHEST and number:
                told = f"{number} of {len(rows)} images: no figure is higher than {HIGHEST} inches"
                complain(f"the figure shows the first {told}")
                return [*chain(*rows[:number])]
        return [*chain(*rows)]


def drawn(
    lines: Sequence[PanelRow],
    paper: Paper,
    *,
    title: str = "",
    heads: Sequence[str] = (),
    bar: FigureBar | None = None,
    foot: str = "",
    tallest: float | int = TALLEST,
) -> PaperFigure:
    """Draw lines of panels; the longest line decides the width of all panels.

    heads: texts above the columns.
    foot: a text below all panels, beside the colour bar.
    tallest: the largest height of a panel for a width of 1.
    """
    columns = max(len(line.panels) for line in lines)
    number = sum(panel is not None for line in lines for panel in line.panels)
    with drawing(paper):
        page = _Page(paper, tallest)
        page.paragraph(paper.title or title, HEAD, paper.ink)
        width = width_of(columns, paper)
        for column, head in enumerate(heads):
            page.write(head, TITLE, MARGIN + column * (width + GAP), width, paper.ink)
        page.down(TITLE * LINE * bool(heads))
        for line in lines:
            page.paragraph(line.title, TITLE, paper.ink)
            page.line(line.panels, width, number)
        page.end(bar, foot)
        return page.finished()


class _Heights(NamedTuple):
    """The heights of a line of panels, in inches: its titles, its pictures and its notes."""

    above: float
    tall: float
    below: float

    @property
    def all(self) -> float:
        return self.above + self.tall + self.below + 0.03 * bool(self.below) + GAP


class _Page:
    """A page that is filled from top to bottom, in inches; its height is known at the end."""

    def __init__(self, paper: Paper, tallest: float | int) -> None:
        self.paper, self.figure, self.top, self.tallest = paper, PaperFigure(paper), MARGIN, tallest
        self._axes: list[tuple[Axes, float, float, float, float]] = []
        self._texts: list[tuple[Any, float, float]] = []

    def down(self, inches: float | int) -> None:
        self.top += inches

    def write(
        self,
        text: str,
        size: float | int,
        x: float | int,
        room: float | int,
        colour: str,
        *,
        below: float | int = 0.0,
        right: bool = False,
    ) -> None:
        """Write a line of text, in a smaller size, then cut, if it is wider than `room`. Lengths are in inches.

        x: the left end of the line, or the right end if `right`.
        below: the distance from the current height down to the top of the line.
        """
        if text:
            letters, baseline = Letters(text), self.top + below + size / 72
            size = letters.size(text, size, room)
            kept = letters.shortened(text, size, 72 * room)
            place, side = (x + room, "right") if right else (x, "left")
            options: dict[str, Any] = {
                "fontsize": size,
                "fontproperties": letters.properties,
                "color": colour,
                "ha": side,
            }
            self._texts.append((self.figure.text(0, 0, kept, **options), place, baseline))

    def paragraph(self, text: str, size: float | int, colour: str) -> None:
        """Write a text over the whole width, and move down."""
        room = self.paper.width - 2 * MARGIN
        for line in Letters(text).wrapped(text, size, 72 * room) if text else ():
            self.write(line, size, MARGIN, room, colour)
            self.down(size * LINE)
        self.down(0.04 * bool(text))

    def line(self, panels: Sequence[FigurePanel | None], width: float | int, number: int) -> None:
        """Draw panels side by side, and move down."""
        heights = self.heights(panels, width)
        above, tall, _ = heights
        for column, panel in enumerate(panels):
            if panel is None:
                continue
            x = MARGIN + column * (width + GAP)
            across, high = self.shape(panel.picture, width)
            self.write(panel.title, TITLE, x, width, self.paper.ink)
            axes = self.figure.add_axes((0, 0, 1, 1), frameon=False)
            axes.set(xticks=(), yticks=())
            picture = self.paper.fitted(panel.picture, across, number)
            picture = panel.paint(picture) if panel.paint else picture
            axes.imshow(picture, extent=(-1, 1, 1, -1), aspect="auto", interpolation="none")
            for mark in panel.marks:
                mark(axes)
            axes.set(xlim=(-1, 1), ylim=(1, -1))
            self._axes.append((axes, x, self.top + above, across, high))
            self.write(panel.note, NOTE, x, width, self.paper.quiet, below=above + tall + 0.03)
        self.down(heights.all)

    def heights(self, panels: Sequence[FigurePanel | None], width: float | int) -> _Heights:
        there = [panel for panel in panels if panel is not None]
        tall = max(self.shape(panel.picture, width)[1] for panel in there)
        above, below = any(panel.title for panel in there), any(panel.note for panel in there)
        return _Heights(TITLE * LINE * above, tall, NOTE * LINE * below)

    def shape(self, picture: Image.Image, width: float | int) -> tuple[float, float]:
        """Return the width and height of a picture in a panel, in inches."""
        aspect = picture.width / picture.height
        high = min(width / aspect, self.tallest * width)
        return high * aspect, high

    def end(self, told: FigureBar | None, foot: str) -> None:
        """Write the foot, and draw the colour bar to its right, or below it if there is no room."""
        room = self.paper.width - 2 * MARGIN
        narrow = room < 2 * BAR[0]
        beside = room if told is None or narrow else room - BAR[0] - 0.2
        lines = Letters(foot).wrapped(foot, NOTE, 72 * beside) if foot else []
        for number, line in enumerate(lines):
            self.write(line, NOTE, MARGIN, beside, self.paper.quiet, below=number * NOTE * LINE)
        tall = len(lines) * NOTE * LINE
        if told is not None:
            self.down(tall * narrow)
            axes = self.figure.add_axes((0, 0, 1, 1))
            bar = self.figure.colorbar(
                ScalarMappable(Normalize(0, told.most), told.colours), cax=axes, orientation="horizontal"
            )
            assert bar.solids is not None
            bar.solids.set_rasterized(True)  # or viewers show seams between its colours
            bar.outline.set_visible(False)
            bar.locator = axes.xaxis.get_major_locator()
            axes.grid(False)
            axes.tick_params(labelsize=NOTE, pad=1.5)
            x = self.paper.width - MARGIN - BAR[0] - 0.08
            self.write(told.label, NOTE, x - 0.3, BAR[0] + 0.38, self.paper.quiet, right=True)
            self._axes.append((axes, x, self.top + NOTE * LINE + 0.02, *BAR))
            tall = max(tall * (not narrow), NOTE * LINE + 0.02 + BAR[1] + 0.16)
        self.down(tall)

    def finished(self) -> PaperFigure:
        """Set the height of the figure, and place all that was drawn."""
        wide, high = float(self.paper.width), self.top + MARGIN
        if high > HIGHEST:
            raise UserError(f"the figure would be {high:.0f} inches high: draw fewer images, or widen it")
        self.figure.set_size_inches(wide, high)
        for axes, x, y, across, tall in self._axes:
            axes.set_position((x / wide, 1 - (y + tall) / high, across / wide, tall / high))
        for text, x, y in self._texts:
            text.set_position((x / wide, 1 - y / high))
        return self.figure

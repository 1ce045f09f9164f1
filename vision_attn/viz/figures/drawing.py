"""Set up matplotlib for a paper: its style, its typefaces, and saving a figure. Importing this file imports matplotlib
(without pyplot), so it is imported where a figure is drawn."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from matplotlib import get_data_path, rc_context, rcParamsDefault
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from vision_attn.system.files import replacing
from vision_attn.viz.figures.paper import DPI, Paper, ending_of
from vision_attn.viz.figures.signature import sign
from vision_attn.viz.typeface import Typeface

LARGE = 200
"""The size at which the width of a text is measured."""
SMALLEST = 5
"""The smallest size of letters, in points; a text that needs smaller ones is cut."""
DATELESS: dict[str, dict[str, Any]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}
"""The metadata of a file without its date, so that the same figure gives the same file, as version control needs."""

_DRAWING = RLock()
"""Held while drawing, since settings of matplotlib belong to the whole process."""

STYLE = {name: value for name, value in rcParamsDefault.items() if not name.startswith(("backend", "interactive"))}
STYLE |= {
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "vision_attn",
    "text.parse_math": False, "image.composite_image": False, "legend.frameon": False,
    "font.size": 8, "font.sans-serif": ["DejaVu Sans"], "axes.labelsize": 7, "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5, "axes.linewidth": 0.6, "lines.linewidth": 1.2, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5,
}  # fmt: skip


@contextmanager
def drawing(paper: Paper) -> Iterator[None]:
    """Context manager: set matplotlib's style to that of this paper, whatever the user's own style is. Other threads
    wait."""
    style: Any = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), paper.ink)
    style |= dict.fromkeys(("figure.facecolor", "axes.facecolor", "legend.facecolor"), paper.ground)
    with _DRAWING, rc_context(STYLE | style | {"axes.edgecolor": paper.quiet, "grid.color": paper.quiet}):
        yield


class PaperFigure(Figure):
    """A figure of matplotlib whose `savefig` keeps text as text, and the colours of its paper."""

    def __init__(self, paper: Paper, height: float | int = 1.0, **options: Any) -> None:
        self.paper = paper
        super().__init__(figsize=(paper.width, height), dpi=paper.dpi or DPI, **options)
        FigureCanvasAgg(self)

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save the figure, as `Figure.savefig` does."""
        with drawing(self.paper):
            super().savefig(fname, **options)


class Letters(Typeface):
    """The typeface for a text in a figure: matplotlib's, or an installed one if that lacks letters of the text."""

    FIRST = str(Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))

    def width(self, text: str, size: float | int) -> float | int:
        """Return the width in points. It is not rounded to pixels of a screen, as Pillow does at small sizes."""
        return super().width(text, LARGE) * size / LARGE

    def size(self, text: str, size: float | int, room: float | int) -> float | int:
        """Return the largest size, in points and at most `size`, at which `text` is no wider than `room` inches; at
        least `SMALLEST`."""
        return min(size, max(SMALLEST, 0.99 * size * 72 * room / max(1.0, self.width(text, size))))

    @property
    def properties(self) -> FontProperties:
        """Return the typeface for matplotlib."""
        font = self.font(10)
        return FontProperties(family=font.getname()[0], fname=str(font.path))


def save(figure: PaperFigure, path: Path) -> Path:
    """Write a figure in the format of its ending. Returns its path."""
    ending = ending_of(path)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=ending[1:], metadata=DATELESS[ending])
        sign(temporary, ending)
    return path

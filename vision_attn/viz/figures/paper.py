"""The page that a figure is drawn on: its width in inches, its colours, its typefaces, and how it is saved.

Importing this file imports matplotlib (without pyplot), so it is imported where a figure is drawn.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from matplotlib import get_data_path, rc_context, rcParamsDefault
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from PIL import Image

from vision_attn.system.errors import UserError
from vision_attn.system.files import replacing
from vision_attn.viz.page import DRAWN
from vision_attn.viz.sheet import fitted
from vision_attn.viz.typeface import Typeface

ENDINGS = (".pdf", ".svg", ".png")
WIDTH, DPI = 6.5, 300
"""Of a figure in inches: the text of a page of one column; and dots per inch."""
LARGEST = 50, 2400
"""Of both."""
LARGE = 200
"""Size at which the width of a text is measured."""
SMALLEST = 5
"""Size of letters, in points, below which a text is rather cut."""
PIXELS = 550_000
"""Of all pictures of a PDF or SVG together, unless `dpi` is given: each pixel takes 2 to 3 bytes, since they are stored
without loss, and a file should stay below 2 MB."""
DATELESS: dict[str, dict[str, Any]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}
"""The metadata of a file, which depends on the figure alone: it can be kept under version control."""

_DRAWING = RLock()
"""Settings of matplotlib belong to the whole process."""


class Paper(NamedTuple):
    """How a figure is drawn."""

    width: float | int = WIDTH
    """In inches."""
    dpi: int | None = None
    """Dots per inch of pictures and of a PNG. None: 300, or less where a PDF or SVG has many pictures: see `PIXELS`."""
    dark: bool = False

    @property
    def ink(self) -> str:
        return "#f3f1ec" if self.dark else "#111111"

    @property
    def quiet(self) -> str:
        """Of notes."""
        return "#b6bac2" if self.dark else "#555555"

    @property
    def ground(self) -> str:
        return "#101216" if self.dark else "#ffffff"

    def checked(self) -> "Paper":
        """This paper. Raises UserError for a size that no figure can have."""
        for name, value, most in (("width", self.width, LARGEST[0]), ("dpi", self.dpi or DPI, LARGEST[1])):
            if not (isinstance(value, int | float) and math.isfinite(value) and 1 <= value <= most):
                raise UserError(f"{name} of a figure is {value}, but must be from 1 to {most}")
        return self

    def fitted(self, picture: Image.Image, inches: float, number: int) -> Image.Image:
        """`picture` with the pixels that it needs to be `inches` wide, one of `number` pictures. A photograph is not
        enlarged; small pictures keep sharp pixel edges."""
        aspect = picture.width / picture.height
        width = inches * (self.dpi or DPI)
        if self.dpi is None:
            width = min(width, math.sqrt(PIXELS / number * aspect))
        side = round(width * max(1, 1 / aspect))
        return fitted(picture, side if max(picture.size) <= DRAWN else min(side, max(picture.size)))

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Within this context, matplotlib draws in the style of this paper, whatever the user's own style is; other
        threads wait."""
        colours = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), self.ink)
        colours |= dict.fromkeys(("figure.facecolor", "axes.facecolor", "legend.facecolor"), self.ground)
        with _DRAWING, rc_context(STYLE | colours | {"axes.edgecolor": self.quiet, "grid.color": self.quiet}):
            yield


STYLE = {name: value for name, value in rcParamsDefault.items() if not name.startswith(("backend", "interactive"))}
STYLE |= {
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "vision_attn",
    "text.parse_math": False, "image.composite_image": False, "legend.frameon": False,
    "font.size": 8, "font.sans-serif": ["DejaVu Sans"], "axes.labelsize": 7, "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5, "axes.linewidth": 0.6, "lines.linewidth": 1.2, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5,
}  # fmt: skip


class PaperFigure(Figure):
    """A figure of matplotlib. Its `savefig` keeps text as text, and the colours of its paper."""

    def __init__(self, paper: Paper, height: float = 1.0, **options: Any) -> None:
        self.paper = paper
        super().__init__(figsize=(paper.width, height), dpi=paper.dpi or DPI, **options)
        FigureCanvasAgg(self)

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save the figure, as `Figure.savefig` does."""
        with self.paper.drawing():
            super().savefig(fname, **options)


class Letters(Typeface):
    """The typeface that a figure writes a text in: matplotlib's, or an installed one for letters that it lacks."""

    FIRST = str(Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))

    def width(self, text: str, size: float) -> float:
        """In points; not rounded to pixels of a screen, as Pillow does at small sizes."""
        return super().width(text, LARGE) * size / LARGE

    def size(self, text: str, size: float, room: float) -> float:
        """The largest size, in points and at most `size`, at which `text` is no wider than `room` inches; not below
        `SMALLEST`."""
        return min(size, max(SMALLEST, 0.99 * size * 72 * room / max(1.0, self.width(text, size))))

    @property
    def properties(self) -> FontProperties:
        """The typeface for matplotlib."""
        font = self.font(10)
        return FontProperties(family=font.getname()[0], fname=font.path)


def save(figure: PaperFigure, path: Path) -> Path:
    """Write a figure as its ending says. Returns its path."""
    ending = ending_of(path)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=ending[1:], metadata=DATELESS[ending])
    return path


def ending_of(path: Path) -> str:
    """The ending of the name of a figure. Raises UserError for one that is none."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"{path}: a figure is a .pdf, .svg or .png: give a name that ends so")
    return path.suffix.lower()

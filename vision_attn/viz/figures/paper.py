"""`Paper`, the format of a figure: its width in inches, its dots per inch, and whether it is dark. Importing this file
does not import matplotlib."""

import math
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from vision_attn.system.errors import UserError
from vision_attn.viz.page import DRAWN
from vision_attn.viz.panel_sheets import fitted

ENDINGS = (".pdf", ".svg", ".png")
WIDTH, DPI = 6.5, 300
"""The default width of a figure in inches, that of a page with one column of text; and its dots per inch."""
LARGEST = 50, 2400
"""The largest width and dots per inch."""
PIXELS = 550_000
"""The largest total number of pixels of the pictures in a PDF or SVG, unless `dpi` is given. Pixels are stored without
loss, in 2 to 3 bytes each, and a file should stay below 2 MB."""


class Paper(NamedTuple):
    """The size and the colours of a figure."""

    width: float | int = WIDTH
    """The width in inches."""
    dpi: int | None = None
    """The dots per inch of pictures and of a PNG. None: 300, or less if a PDF or SVG has many pictures: see
    `PIXELS`."""
    dark: bool = False
    title: str = ""
    """The title above the figure, instead of its own."""

    @property
    def ink(self) -> str:
        return "#f3f1ec" if self.dark else "#111111"

    @property
    def quiet(self) -> str:
        """The colour of notes."""
        return "#b6bac2" if self.dark else "#555555"

    @property
    def ground(self) -> str:
        return "#101216" if self.dark else "#ffffff"

    def checked(self) -> "Paper":
        """Return this paper. Raises UserError for a size that no figure can have."""
        for name, value, most in (
            ("width", self.width, LARGEST[0]),
            ("dpi", DPI if self.dpi is None else self.dpi, LARGEST[1]),
        ):
            if not (isinstance(value, int | float) and math.isfinite(value) and 1 <= value <= most):
                raise UserError(f"{name} of a figure is {value}, but must be from 1 to {most}")
        return self

    def fitted(self, picture: Image.Image, inches: float | int, number: int) -> Image.Image:
        """Resize a picture to the pixels that it needs. A photograph is not enlarged; small pictures keep sharp pixel
        edges.

        inches: its width in the figure.
        number: the number of pictures in the figure.
        """
        aspect = picture.width / picture.height
        width = inches * (self.dpi or DPI)
        if self.dpi is None:
            width = min(width, math.sqrt(PIXELS / number * aspect))
        side = round(width * max(1, 1 / aspect))
        return fitted(picture, side if max(picture.size) <= DRAWN else min(side, max(picture.size)))


def ending_of(path: Path) -> str:
    """Return the ending of a figure's file name. Raises UserError if it is not one of `ENDINGS`."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"{path}: a figure is a .pdf, .svg or .png: give a name that ends so")
    return path.suffix.lower()

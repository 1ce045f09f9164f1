"""What compiling (`run.compile=true`) adds: the steps of RAM and DRAW again, ours compiled."""

from benchmarks.draw import draw
from benchmarks.ram import ram
from benchmarks.shapes import Shapes


def compiled(shapes: Shapes, repeats: int) -> str:
    """The tables of `ram` and of `draw`. Compiling takes half a minute a row, which is not counted."""
    return ram(shapes, repeats, compile=True) + "\n" + draw(shapes, repeats, compile=True)

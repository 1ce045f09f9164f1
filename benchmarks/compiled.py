"""Measure the speed-up from compiling (`run.compile=true`): the training steps of RAM and DRAW again, ours compiled."""

from benchmarks.draw import draw
from benchmarks.ram import ram
from benchmarks.shapes import Shapes


def compiled(shapes: Shapes, repeats: int) -> str:
    """The tables of `ram` and `draw`. Compilation takes half a minute per row and is not measured."""
    return ram(shapes, repeats, compile=True) + "\n" + draw(shapes, repeats, compile=True)

"""Measure RAM's glimpse alone, as runs have it and by plain torch; both build the pyramid once per batch."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.measure import accelerated, seconds, several, table
from benchmarks.shapes import Shapes
from vision_attn.attention.glimpse import Pyramid, Retina

GLIMPSES = 6
"""The number of glimpses of one batch, which share the cost of its pyramid."""
TIMES = 5
"""The number of batches in one measurement."""


class Setting(NamedTuple):
    """The sizes of a row of the table: width of the image and of the finest patch in pixels, number of patches."""

    canvas: int
    size: int
    num_scales: int

    def __str__(self) -> str:
        return f"{self.canvas}x{self.canvas}, {self.size}x{self.size} x {self.num_scales}"


SETTINGS = (Setting(28, 8, 1), Setting(60, 12, 3), Setting(100, 12, 4))


def glimpse(shapes: Shapes, repeats: int) -> str:
    """The table of milliseconds per glimpse. A batch has twice `shapes.images` images, 128 by default."""
    batch = 2 * shapes.images
    rows = [compare(setting, batch, repeats) for setting in shapes.some(SETTINGS)]
    title = f"A glimpse of each of {batch} images, ms, {GLIMPSES} per batch"
    columns = ("", "glimpse", "pyramid", f"glimpse + pyramid / {GLIMPSES}", "plain", "to plain", "results differ by")
    return table(title, columns, rows)


def compare(setting: Setting, batch: int, repeats: int) -> tuple[str, ...]:
    """A row of the table."""
    images, locations = random_inputs(setting, batch)
    plain = Retina(size=setting.size, num_scales=setting.num_scales)
    retina = accelerated(Retina(size=setting.size, num_scales=setting.num_scales))

    def glimpses(retina: Retina, pyramid: Pyramid | None = None) -> list[Tensor]:
        pyramid = retina.pyramid(images) if pyramid is None else pyramid
        return [retina(pyramid, location[:, None]) for location in locations]

    runs = {
        "glimpse": partial(glimpses, retina, retina.pyramid(images)),
        "pyramid": partial(retina.pyramid, images),
        "ours": partial(glimpses, retina),
        "plain": partial(glimpses, plain),
    }
    taken = seconds({name: several(run, TIMES) for name, run in runs.items()}, repeats, str(setting))
    ms = {name: 1000 * spent / TIMES / (1 if name == "pyramid" else GLIMPSES) for name, spent in taken.items()}
    error = max((a - b).abs().max().item() for a, b in zip(glimpses(retina), glimpses(plain), strict=True))
    figures = (f"{ms[name]:.3f}" for name in runs)
    return str(setting), *figures, f"{ms['plain'] / ms['ours']:.1f}x", f"{error:.0e}"


def random_inputs(setting: Setting, batch: int) -> tuple[Tensor, list[Tensor]]:
    """Images, and locations anywhere in them."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 1, setting.canvas, setting.canvas, generator=generator)
    return images, list(2 * torch.rand(GLIMPSES, batch, 2, generator=generator) - 1)

"""RAM's glimpse alone: ours, whose pyramid is built once per batch, and a loop that crops image by image."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.measure import accelerated, seconds, several, table
from benchmarks.plain_ram import plain_glimpse
from benchmarks.shapes import Shapes
from vision_attn.attention.glimpse import Retina

GLIMPSES = 6
"""Glimpses of one batch, which share the cost of its pyramid."""
TIMES = 5
"""Batches in one measurement."""


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
    title = (
        f"A glimpse of each of {batch} images, ms, {GLIMPSES} per batch. Plain slices with elements of a tensor, as "
        "popular replications do; fetched, with integers copied to Python at once"
    )
    columns = (
        "",
        "glimpse",
        "pyramid",
        f"glimpse + pyramid / {GLIMPSES}",
        "plain",
        "fetched",
        "to plain",
        "to fetched",
    )
    return table(title, (*columns, "results differ by"), rows)


def compare(setting: Setting, batch: int, repeats: int) -> tuple[str, ...]:
    """A row of the table."""
    images, locations = random_inputs(setting, batch)
    retina = accelerated(Retina(size=setting.size, num_scales=setting.num_scales))
    pyramid = retina.pyramid(images)

    def glimpses() -> list[Tensor]:
        return [retina(pyramid, location[:, None]) for location in locations]

    def pyramid_and_glimpses() -> list[Tensor]:
        built = retina.pyramid(images)
        return [retina(built, location[:, None]) for location in locations]

    def plain(fetched: bool = False) -> list[Tensor]:
        shift = 0.5 / setting.canvas  # or truncation would move some locations to the previous pixel
        sizes = (setting.size, setting.num_scales)
        return [plain_glimpse(images, location + shift, *sizes, fetched=fetched) for location in locations]

    runs = {
        "glimpse": glimpses,
        "pyramid": partial(retina.pyramid, images),
        "ours": pyramid_and_glimpses,
        "plain": plain,
        "fetched": partial(plain, fetched=True),
    }
    taken = seconds({name: several(run, TIMES) for name, run in runs.items()}, repeats, str(setting))
    ms = {name: 1000 * spent / TIMES / (1 if name == "pyramid" else GLIMPSES) for name, spent in taken.items()}
    figures = (ms["glimpse"], ms["pyramid"], ms["ours"], ms["plain"], ms["fetched"])
    ratios = (ms["plain"] / ms["ours"], ms["fetched"] / ms["ours"])
    error = max((a.flatten(1) - b.flatten(1)).abs().max().item() for a, b in zip(glimpses(), plain(), strict=True))
    return (
        str(setting),
        *(f"{figure:.3f}" for figure in figures),
        *(f"{ratio:.1f}x" for ratio in ratios),
        f"{error:.0e}",
    )


def random_inputs(setting: Setting, batch: int) -> tuple[Tensor, list[Tensor]]:
    """Images, and locations at corners between pixels, where the plain reference, limited to whole pixels, is exact."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 1, setting.canvas, setting.canvas, generator=generator)
    corners = torch.randint(setting.canvas, (GLIMPSES, batch, 2), generator=generator)
    return images, list(2 * corners / setting.canvas - 1)

"""RAM's glimpse alone: ours, whose pyramid is built once per batch, and the loop that crops image by image."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.measure import seconds, table
from benchmarks.plain_ram import plain_glimpse
from benchmarks.shapes import Shapes
from vision_attn.attention.glimpse import Retina

GLIMPSES = 6
"""Looks at one batch, which share the cost of its pyramid."""
TIMES = 5
"""Batches in one measurement."""


class Sight(NamedTuple):
    """A row of the table: pixels of the square image, of the finest patch, and the number of patches."""

    canvas: int
    size: int
    num_scales: int

    def __str__(self) -> str:
        return f"{self.canvas}x{self.canvas}, {self.size}x{self.size} x {self.num_scales}"


SIGHTS = (Sight(28, 8, 1), Sight(60, 12, 3), Sight(100, 12, 4))


def glimpse(shapes: Shapes, repeats: int) -> str:
    """The table of milliseconds per glimpse. A batch is two of `shapes.images`: 128 where nothing else is asked for."""
    batch = 2 * shapes.images
    rows = [compare(sight, batch, repeats) for sight in shapes.some(SIGHTS)]
    title = (
        f"A glimpse at {batch} images, ms, {GLIMPSES} at each batch. Plain slices with elements of a tensor, as "
        "popular replications do; fetched, with integers fetched at once"
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


def compare(sight: Sight, batch: int, repeats: int) -> tuple[str, ...]:
    """A row of the table."""
    images, locations = draw(sight, batch)
    retina = Retina(size=sight.size, num_scales=sight.num_scales)
    pyramid = retina.pyramid(images)

    def look() -> list[Tensor]:
        return [retina(pyramid, location[:, None]) for location in locations]

    def build_and_look() -> list[Tensor]:
        built = retina.pyramid(images)
        return [retina(built, location[:, None]) for location in locations]

    def plain(fetched: bool = False) -> list[Tensor]:
        ahead = 0.5 / sight.canvas  # or rounding would cut some locations down to the pixel before
        return [plain_glimpse(images, at + ahead, sight.size, sight.num_scales, fetched=fetched) for at in locations]

    runs = {
        "glimpse": look,
        "pyramid": partial(retina.pyramid, images),
        "ours": build_and_look,
        "plain": plain,
        "fetched": partial(plain, fetched=True),
    }
    taken = seconds({name: several(run) for name, run in runs.items()}, repeats, str(sight))
    ms = {name: 1000 * spent / TIMES / (1 if name == "pyramid" else GLIMPSES) for name, spent in taken.items()}
    figures = (ms["glimpse"], ms["pyramid"], ms["ours"], ms["plain"], ms["fetched"])
    ratios = (ms["plain"] / ms["ours"], ms["fetched"] / ms["ours"])
    apart = max((a.flatten(1) - b.flatten(1)).abs().max().item() for a, b in zip(look(), plain(), strict=True))
    return (
        str(sight),
        *(f"{figure:.3f}" for figure in figures),
        *(f"{ratio:.1f}x" for ratio in ratios),
        f"{apart:.0e}",
    )


def draw(sight: Sight, batch: int) -> tuple[Tensor, list[Tensor]]:
    """Images, and locations at corners between pixels, where the plain way, which knows only whole pixels, is exact."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 1, sight.canvas, sight.canvas, generator=generator)
    corners = torch.randint(sight.canvas, (GLIMPSES, batch, 2), generator=generator)
    return images, list(2 * corners / sight.canvas - 1)


def several(run: Callable[[], object]) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(TIMES):
            run()

    return repeat

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
TIMES = 20
"""Calls in one measurement."""


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
    rows, apart = [], 0.0
    for sight in SIGHTS:
        retina = Retina(size=sight.size, num_scales=sight.num_scales)
        images, location = draw(sight, batch)
        pyramid, locations = retina.pyramid(images), location[:, None]
        crop = partial(plain_glimpse, images, location + 0.5 / sight.canvas, sight.size, sight.num_scales)
        apart = max(apart, (retina(pyramid, locations).flatten(1, 3) - crop()).abs().max().item())

        runs = {
            "glimpse": partial(retina, pyramid, locations),
            "pyramid": partial(retina.pyramid, images),
            "plain": crop,
            "fetched": partial(crop, fetched=True),
        }
        taken = seconds({name: several(run) for name, run in runs.items()}, repeats, str(sight))
        ms = {name: 1000 * spent / TIMES for name, spent in taken.items()}
        ours = ms["glimpse"] + ms["pyramid"] / GLIMPSES
        figures = (ms["glimpse"], ms["pyramid"], ours, ms["plain"], ms["fetched"])
        ratios = (ms["plain"] / ours, ms["fetched"] / ours)
        rows.append((str(sight), *(f"{figure:.3f}" for figure in figures), *(f"{ratio:.0f}x" for ratio in ratios)))
    title = (
        f"One glimpse at {batch} images, ms; a pyramid serves {GLIMPSES} (results differ by {apart:.0e}). "
        "Plain slices with elements of a tensor, as popular replications do; `fetched` with integers fetched at once"
    )
    columns = ("", "glimpse", "pyramid", f"glimpse + pyramid / {GLIMPSES}", "plain", "fetched", "ratio", "to fetched")
    return table(title, columns, rows)


def draw(sight: Sight, batch: int) -> tuple[Tensor, Tensor]:
    """Images, and locations at corners between pixels: there the plain way, which knows only whole pixels, is exact."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 1, sight.canvas, sight.canvas, generator=generator)
    corner = torch.randint(sight.canvas, (batch, 2), generator=generator)
    return images, 2 * corner / sight.canvas - 1


def several(run: Callable[[], Tensor]) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(TIMES):
            run()

    return repeat

"""Measure where the cells of a convolutional network look: the extent of the centres of their receptive fields.

Arithmetic of strides and paddings alone is not enough: the weights count too. The cells of the included captioner's
MobileNetV2 look 6% of the image's side to the upper left of their places in an even grid, where arithmetic says 3.5%.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.geometry.extents import WHOLE, Extent

Maps = Callable[[UInt8[Tensor, "B 3 Y X"]], Float[Tensor, "B D rows columns"]]

FINE, COARSE, CELLS = 8, 24, 12
"""The smallest number of images: `FINE` for maps with at least `CELLS` cells along both sides, `COARSE` for coarser
maps, whose error is larger."""
MOST, PIXELS = 256, 8 * 224 * 224
"""For small images, as many are used as have `PIXELS` pixels together, but at most `MOST`. The standard error with 48
images of 40 pixels is a fifteenth of a cell."""
AT_ONCE = 8
"""The number of images in a batch."""
MIDDLE = 0.5
"""Marks are put into the middle of an image, over this share of its side: elsewhere the border cuts off receptive
fields."""
REACH = 0.25
"""The distance from a mark, as a share of the side, up to which cells are counted."""


class Fields:
    """A cache of the extents of a module's maps, which are measured once, and again after its weights have changed."""

    def __init__(self) -> None:
        self._made_from: tuple[Any, dict[Any, tuple[Extent, tuple[int, int]]]] = None, {}
        """The versions of the weights, and the extents measured with them. A single attribute, so that threads read and
        set both at once."""

    def of(self, key: Any, module: nn.Module, maps: Maps, size: tuple[int, int]) -> tuple[Extent, tuple[int, int]]:
        """Return `measured_extent(maps, size)` from the cache, or measure it.

        module: the module that holds the weights of `maps`.
        key, size: distinguish measurements with the same weights.
        """
        weights, (before, known) = versions(module), self._made_from
        if weights != before:
            known = {}
            self._made_from = weights, known
        if (key, size) not in known:
            known[key, size] = measured_extent(maps, size)
        return known[key, size]


def versions(module: nn.Module) -> list[tuple[int, int]]:
    """Return numbers that differ after a parameter or buffer of `module` has been changed in place, or moved."""
    tensors = module.state_dict().values()
    return [(tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors]


@torch.no_grad()
def measured_extent(maps: Maps, size: tuple[int, int]) -> tuple[Extent, tuple[int, int]]:
    """Measure where the cells of a map look in an image of `size` (height and width in pixels). Returns the extent, and
    the rows and columns of the map.

    A small square is drawn on images of noise, and the centre of the change of the map is compared with the place of
    the square. The noise and the places are the same each time. The distance between cells follows from the sizes: see
    `stride`. An offset within twice its standard error counts as 0. If no map changes, the extent is the whole image.
    """
    rows, columns = grid = tuple(maps(noise(1, size, torch.Generator().manual_seed(0))).shape[2:])
    least = FINE if min((side for side in grid if side > 1), default=0) >= CELLS else COARSE
    number = max(least, min(MOST, PIXELS // (size[0] * size[1])))
    images_of = _kept_images if number * size[0] * size[1] <= PIXELS else _images
    plain, changed, places = images_of(number, size, (rows, columns))
    strides = [stride(pixels, cells) for pixels, cells in zip(size, grid, strict=True)]
    batches = zip(plain.split(AT_ONCE), changed.split(AT_ONCE), strict=True)
    pairs = [(maps(before).float(), maps(after).float()) for before, after in batches]
    change = torch.cat([(after - before).square().sum(dim=1) for before, after in pairs]).double().cpu()
    change = (change - change.flatten(1).median(dim=1).values[:, None, None]).clamp(min=0)  # what changes everywhere
    total = change.sum(dim=(1, 2))
    known = (total > 0) & total.isfinite()
    if not known.any():
        return WHOLE, (rows, columns)
    change, places = (change / total[:, None, None])[known], places[known]
    y0, y1 = _axis(change.sum(dim=2), places[:, 0], size[0], strides[0])
    x0, x1 = _axis(change.sum(dim=1), places[:, 1], size[1], strides[1])
    return Extent(x0, y0, x1, y1), (rows, columns)


def stride(pixels: int, cells: int) -> float:
    """Return the distance between neighbouring cells of a convolutional network, in pixels.

    If the cells do not divide the image evenly, because convolutions leave out or add pixels at the border, it is the
    power of two nearest to an even division: 32 for 260 pixels in 9 cells, or for 299 in 8.
    """
    if pixels % cells and cells > 2:
        near = 2 ** round(torch.tensor(pixels / cells).log2().item())
        if pixels / (cells + 2) <= near <= pixels / (cells - 1):
            return float(near)
    return pixels / cells


def noise(number: int, size: tuple[int, int], generator: torch.Generator) -> UInt8[Tensor, "B 3 Y X"]:
    """Make images of smooth noise at all scales, like photographs in contrast and spectrum."""
    images = torch.zeros(number, 3, *size)
    for parts in (4, 8, 16, 32, 64):
        coarse = [max(2, round(parts * side / max(size))) for side in size]
        grains = torch.randn(number, 3, *coarse, generator=generator)
        images += F.interpolate(grains, size, mode="bicubic", align_corners=False) * (4 / parts) ** 0.7
    return (images / images.std() * 55 + 115).round().clamp(0, 255).to(torch.uint8)


def _images(
    number: int, size: tuple[int, int], grid: tuple[int, int]
) -> tuple[UInt8[Tensor, "N 3 Y X"], UInt8[Tensor, "N 3 Y X"], Int[Tensor, "N 2"]]:
    """Return the images of every measurement of this size and grid: of noise, the same with marks, and the places of
    the marks."""
    generator = torch.Generator().manual_seed(0)
    noise(1, size, generator)  # by which the grid was learned
    plain = noise(number, size, generator)
    strides = [stride(pixels, cells) for pixels, cells in zip(size, grid, strict=True)]
    places = torch.stack([_places(number, *axis, generator) for axis in zip(size, grid, strides, strict=True)], dim=1)
    return plain, marked(plain, places, [max(1, round(step / 4)) for step in strides]), places


_kept_images = lru_cache(maxsize=4)(_images)
"""`_images`, kept for further models: making them takes as long as the maps of a small network. Two megabytes each."""


def _places(number: int, pixels: int, cells: int, step: float, generator: torch.Generator) -> Int[Tensor, "N"]:
    """Return the centres of marks along an axis, in random order. They are spread evenly over fewer cells than there
    are marks, so that they fall on different parts of a cell."""
    span = min(max(1, int(cells * MIDDLE)), number - 1) * step
    even = (torch.randperm(number, generator=generator) + 0.5) / number - 0.5
    return (pixels / 2 + even * span).round().long()


def marked(
    images: UInt8[Tensor, "N 3 Y X"], places: Int[Tensor, "N 2"], half: Sequence[int]
) -> UInt8[Tensor, "N 3 Y X"]:
    """Draw a square into each image. Each channel becomes black where it was bright, else white.

    places: the centre of each square.
    half: half the height and width of a square.
    """
    images = images.clone()
    for image, (y, x) in zip(images, places.tolist(), strict=True):
        square = image[:, max(y - half[0], 0) : y + half[0], max(x - half[1], 0) : x + half[1]]
        bright = square.float().mean(dim=(1, 2), keepdim=True) > 127
        square.copy_(torch.where(bright, 0, 255).expand_as(square))
    return images


def _axis(change: Float[Tensor, "N cells"], places: Int[Tensor, "N"], pixels: int, step: float) -> tuple[float, float]:
    """Return both ends of the cells along an axis, in [-1, 1], from the change of each cell for marks at `places`."""
    cells = change.shape[1]
    if cells == 1:
        return -1.0, 1.0
    at = pixels / 2 + (torch.arange(cells, dtype=torch.float64) - (cells - 1) / 2) * step
    distance = at - places[:, None]
    reach, offset = max(REACH * pixels, step), 0.0
    for _ in range(20):  # the mean within a window around itself: the border of the grid does not move it
        near = change * ((distance - offset).abs() <= reach)
        offset = float((near * distance).sum() / near.sum().clamp(min=1e-12))
    deviations = (near * (distance - offset)).sum(dim=1)
    if abs(offset) < 2 * float(deviations.std(correction=0)) / len(deviations) ** 0.5:
        offset = 0.0
    low, high = (2 * (-offset + side * cells * step / 2) / pixels for side in (-1, 1))
    return round(low, 4), round(high, 4)

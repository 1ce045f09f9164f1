"""Where the regions of a grid lie on an image: their boxes, their centres, and the region nearest to each pixel.

The cells of a convolutional network are not spread evenly over the image: each padded convolution of stride 2 moves the
centres of their receptive fields to the upper left. So a grid has an extent, which `geometry/receptive_fields.py`
measures.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Extent(NamedTuple):
    """The outline of a grid of regions on an image, in coordinates in [-1, 1]; (-1, -1) is the top left corner of the
    image. A grid may end within the image or reach beyond it. The default is the whole image."""

    x0: float = -1.0
    y0: float = -1.0
    x1: float = 1.0
    y1: float = 1.0

    def within(self, outer: "Extent") -> "Extent":
        """Convert this extent from coordinates of a part of an image, `outer`, to those of the image."""
        x0, x1 = (outer.x0 + (edge + 1) / 2 * (outer.x1 - outer.x0) for edge in (self.x0, self.x1))
        y0, y1 = (outer.y0 + (edge + 1) / 2 * (outer.y1 - outer.y0) for edge in (self.y0, self.y1))
        return Extent(*(round(edge, 4) for edge in (x0, y0, x1, y1)))

    def seen_from(self, outer: "Extent") -> "Extent":
        """Convert this extent from coordinates of an image to those of a part of it, `outer`: the inverse of
        `within`."""
        x0, x1 = (2 * (edge - outer.x0) / (outer.x1 - outer.x0) - 1 for edge in (self.x0, self.x1))
        y0, y1 = (2 * (edge - outer.y0) / (outer.y1 - outer.y0) - 1 for edge in (self.y0, self.y1))
        return Extent(*(round(edge, 4) for edge in (x0, y0, x1, y1)))


WHOLE = Extent()


class Mask(NamedTuple):
    """The pixels of an object, and where they lie on an image."""

    pixels: Bool[Tensor, "Y X"]
    extent: Extent = WHOLE

    def seen_from(self, outer: Extent) -> "Mask":
        """Convert this mask from coordinates of an image to those of a part of it, `outer`."""
        return self._replace(extent=self.extent.seen_from(outer))

    def contains(self, points: Float[Tensor, "L 2"]) -> Bool[Tensor, "L"]:
        """Return whether each point (x, y) lies on the object."""
        low, high = torch.tensor(self.extent, dtype=points.dtype).view(2, 2)
        size = torch.tensor(self.pixels.shape[::-1])
        cells = ((points - low) / (high - low) * size).floor().long()
        column, row = cells.clamp(min=0).minimum(size - 1).unbind(dim=1)
        return self.pixels[row, column] & ((cells >= 0) & (cells < size)).all(dim=1)


def middles(number: int, low: float = -1.0, high: float = 1.0) -> Float[Tensor, "number"]:
    """Return the centres of `number` equal intervals from `low` to `high`, in float64."""
    return low + (high - low) * (torch.arange(number, dtype=torch.float64) + 0.5) / number


def centres(rows: int, columns: int, extent: Extent = WHOLE) -> Float[Tensor, "L 2"]:
    """Return the centre (x, y) of each region, row by row, in float64. A centre outside the image is moved to the
    border, since a region sees only the image."""
    x, y = middles(columns, extent.x0, extent.x1), middles(rows, extent.y0, extent.y1)
    return torch.stack([x.repeat(rows), y.repeat_interleave(columns)], dim=1).clamp(-1, 1)


def cell(region: int, rows: int, columns: int, extent: Extent = WHOLE) -> tuple[float, float, float, float]:
    """Return the box (x0, y0, x1, y1), in [-1, 1], of the part of the image that is nearer to a region than to any
    other. Regions are counted row by row from 0; regions at the border of the grid reach to the border of the image."""
    row, column = divmod(region, columns)
    left, right = _part(column, columns, extent.x0, extent.x1)
    top, bottom = _part(row, rows, extent.y0, extent.y1)
    return left, top, right, bottom


def _part(index: int, number: int, low: float, high: float) -> tuple[float, float]:
    """Return both ends of one of `number` parts of an axis."""
    first = -1.0 if index == 0 else low + (high - low) * index / number
    last = 1.0 if index == number - 1 else low + (high - low) * (index + 1) / number
    return min(max(first, -1.0), 1.0), min(max(last, -1.0), 1.0)


def positions(pixels: int, number: int, low: float = -1.0, high: float = 1.0) -> Float[Tensor, "pixels"]:
    """Return the position of each pixel's centre along an axis, in units of regions: 0 is the centre of the first
    region.

    number: the number of regions.
    low, high: the ends of the regions, in [-1, 1] of the pixels.
    """
    return ((middles(pixels) - low) * number / (high - low) - 0.5).float()


def nearest(pixels: int, number: int, low: float = -1.0, high: float = 1.0) -> Int[Tensor, "pixels"]:
    """Return the region nearest to each pixel along an axis."""
    return (positions(pixels, number, low, high) + 0.5).floor().long().clamp(0, number - 1)

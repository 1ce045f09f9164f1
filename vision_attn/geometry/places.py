"""Convert places on a photograph (points, boxes and masks) to weights of the regions of a grid."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent

WHOLE_WEIGHT = 1e-3
"""A map whose sum differs from 1 by at most this is not normalised, so that a model's own map is used bit for bit."""


class RegionGrid:
    """A grid of regions on a photograph, in rows and columns.

    A region counts as the area that is nearest to it, so regions at the border of the grid reach to the border of the
    part that the model sees.

    seen: the part of the photograph that the model sees.
    extent: where the regions lie on this part.
    """

    def __init__(self, rows: int, columns: int, extent: Extent = WHOLE, seen: Extent = WHOLE) -> None:
        self.rows, self.columns, self.extent, self.seen = rows, columns, extent, seen

    def at_point(self, x: float | int, y: float | int) -> Float[Tensor, "Y X"] | None:
        """Spread a point over its four nearest cells by bilinear interpolation. Returns None if the model does not see
        the point."""
        seen, extent = self.seen, self.extent
        if not (seen.x0 <= x <= seen.x1 and seen.y0 <= y <= seen.y1):
            return None
        across = _nearest_two(_rescaled(x, seen.x0, seen.x1), self.columns, extent.x0, extent.x1)
        down = _nearest_two(_rescaled(y, seen.y0, seen.y1), self.rows, extent.y0, extent.y1)
        return down[:, None] * across

    def on_mask(self, mask: Float[Tensor, "Y X"], box: Extent = WHOLE) -> Float[Tensor, "rows columns"] | None:
        """Return the share of a mask's weight that lies on each cell; None if the model sees nothing of the mask. A box
        is a mask of one pixel.

        mask: densities over pixels of equal size.
        box: where these pixels lie on the photograph.
        """
        across = _overlaps(self._edges(self.columns, 0), _even_edges(mask.shape[1], box.x0, box.x1))
        down = _overlaps(self._edges(self.rows, 1), _even_edges(mask.shape[0], box.y0, box.y1))
        weights = down @ mask.double() @ across.mT
        return weights / weights.sum() if weights.any() else None

    def _edges(self, number: int, axis: int) -> Float[Tensor, "edges"]:
        """Return the edges of the cells along an axis of the photograph."""
        low, high = self.extent[axis], self.extent[axis + 2]
        edges = _even_edges(number, low, high).clamp(-1, 1)
        edges[0], edges[-1] = -1, 1
        first, last = self.seen[axis], self.seen[axis + 2]
        return first + (edges + 1) / 2 * (last - first)


def as_map(weights: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Normalise the weights of regions to sum to 1. They are unchanged if their sum is 1 up to rounding."""
    total = weights.double().sum()
    return weights if abs(total - 1) < WHOLE_WEIGHT else (weights.double() / total).to(weights.dtype)


def is_box(place: Sequence[float]) -> bool:
    """Return whether (x0, y0, x1, y1) is a box in [-1, 1] with an area."""
    x0, y0, x1, y1 = place
    return -1 <= x0 < x1 <= 1 and -1 <= y0 < y1 <= 1


def _rescaled(x: float | int, low: float | int, high: float | int) -> float:
    return 2 * (x - low) / (high - low) - 1


def _nearest_two(x: float, number: int, low: float | int, high: float | int) -> Float[Tensor, "number"]:
    """Return the weights of `number` cells from `low` to `high` along an axis for a point at x. Only the two cells
    whose centres are nearest have a weight. Beyond the first and the last centre, the nearest cell has all of it."""
    position = min(max((x - low) * number / (high - low) - 0.5, 0.0), number - 1.0)
    return (1 - (torch.arange(number, dtype=torch.float64) - position).abs()).clamp(min=0)


def _even_edges(number: int, low: float | int, high: float | int) -> Float[Tensor, "edges"]:
    return torch.linspace(low, high, number + 1, dtype=torch.float64)


def _overlaps(cells: Float[Tensor, "m"], parts: Float[Tensor, "n"]) -> Float[Tensor, "cells parts"]:
    """Return the length that each cell shares with each part; both are given by their edges."""
    ends = torch.minimum(cells[1:, None], parts[1:]) - torch.maximum(cells[:-1, None], parts[:-1])
    return ends.clamp(min=0)

"""`resampled`: interpolate a map onto another grid."""

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.explain.explained_models import Map
from vision_attn.geometry.extents import WHOLE, positions


def resampled(heatmap: Map, grid: tuple[int, int]) -> Float[Tensor, "rows columns"]:
    """Resample a map on another grid that covers the image: linear between the centres of its cells, averaged over each
    region."""
    down, across = (
        _weights(size, number, *ends)
        for size, number, ends in zip(
            grid,
            heatmap.weights.shape,
            ((heatmap.extent.y0, heatmap.extent.y1), (heatmap.extent.x0, heatmap.extent.x1)),
            strict=True,
        )
    )
    return down @ heatmap.weights @ across.mT


def _weights(regions: int, cells: int, low: float, high: float) -> Float[Tensor, "regions cells"]:
    """Return the weight of each cell of a map in each region along one axis; each row sums to 1. A grid of the same
    size and place is unchanged."""
    if regions == cells and (low, high) == (WHOLE.x0, WHOLE.x1):
        return torch.eye(regions)
    samples = regions * max(4, -(-2 * cells // regions))
    place = positions(samples, cells, low, high).clamp(0, cells - 1)
    near = (1 - (place[:, None] - torch.arange(cells)).abs()).clamp(min=0)
    return near.unflatten(0, (regions, -1)).mean(dim=1)

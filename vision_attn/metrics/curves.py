"""Insertion and deletion curves (Petsiuk et al. 2018, "RISE", arXiv:1806.07421): how faithful a map is to a model.

Regions are taken from an image in the order of a map, or put into an empty one, and the score of the answer is
followed. A good map finds what the answer depends on: the score falls early when its regions are deleted, and rises
early when they are inserted.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.contracts.places import WHOLE, Extent, nearest


class Curves(NamedTuple):
    """The score after each step, from none to all regions."""

    deletion: Float[Tensor, "steps"]
    insertion: Float[Tensor, "steps"]

    @property
    def areas(self) -> dict[str, float]:
        """The area under each curve, over the share of regions. deletion: lower is better; insertion: higher."""
        return {name: float(torch.trapezoid(curve)) / (len(curve) - 1) for name, curve in self._asdict().items()}


@torch.no_grad()
def perturbation_curves(
    score: Callable[[Tensor], Tensor],
    image: Float[Tensor, "C Y X"],
    weights: Float[Tensor, "rows columns"],
    *,
    steps: int = 16,
    empty: Float[Tensor, "C Y X"] | None = None,
    extent: Extent = WHOLE,
) -> Curves:
    """Delete the regions of `image` by falling weight, and insert them into `empty`, in `steps` steps.

    score: images (B, C, Y, X) -> a score of each, such as the probability of the answer.
    weights: the map, a weight for each region; equal weights in the order of the regions.
    empty: the image without content; by default the mean colour of `image`.
    extent: where the regions lie on the image. A pixel belongs to the region nearest to it.

    Differs from the paper: whole regions are taken, not pixels, and the same empty image serves both curves (the paper
    inserts into a blurred image).
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}, but must be at least 1")
    empty = image.mean(dim=(1, 2), keepdim=True).expand_as(image) if empty is None else empty
    order = weights.flatten().argsort(descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    numbers = torch.linspace(0, len(order), steps + 1, device=order.device).round()
    taken = (rank < numbers[:, None]).float().unflatten(1, weights.shape)[:, None]  # (steps + 1, 1, rows, columns)
    (_, height, width), (rows, columns) = image.shape, weights.shape
    down, across = nearest(height, rows, extent.y0, extent.y1), nearest(width, columns, extent.x0, extent.x1)
    taken = taken[..., down.to(order.device), :][..., across.to(order.device)].to(image.dtype)
    deleted = score(image * (1 - taken) + empty * taken)
    inserted = score(image * taken + empty * (1 - taken))
    return Curves(deleted.float().cpu(), inserted.float().cpu())

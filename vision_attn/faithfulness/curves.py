"""Insertion and deletion curves (Petsiuk et al. 2018, "RISE", arXiv:1806.07421): how faithful a map is to a model.

Regions are deleted from an image in the order of a map, or inserted into an empty image, while the score of the answer
is measured. A good map finds the regions that the answer depends on: the score falls early when they are deleted, and
rises early when they are inserted.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.metrics.perturbations import Fill, Score, mean, ranks, scores_without
from vision_attn.system.errors import UserError


class Curves(NamedTuple):
    """The scores of each map after each step, from none to all regions."""

    deletion: Float[Tensor, "*maps steps"]
    insertion: Float[Tensor, "*maps steps"]

    @property
    def areas(self) -> dict[str, Float[Tensor, "*maps"]]:
        """Return the area under each curve, over the share of regions. Lower is better for deletion, higher for
        insertion."""
        return {name: torch.trapezoid(curve) / (curve.shape[-1] - 1) for name, curve in self._asdict().items()}


def perturbation_curves(
    score: Score,
    image: Float[Tensor, "C Y X"],
    weights: Float[Tensor, "*maps rows columns"],
    *,
    steps: int = 16,
    fill: Fill = mean,
    extent: Extent = WHOLE,
) -> Curves:
    """Delete the regions of `image` by falling weight, and insert them into an empty image, in `steps` steps.

    weights: a map with a weight for each region, or several maps; ties are broken at random.
    fill: fills deleted regions; see `metrics.perturbations`.
    extent: where the regions lie on the image. A pixel belongs to the nearest region.

    Differs from the paper: whole regions are deleted, not pixels, and the same `fill` serves both curves (the paper
    inserts into a blurred image).
    """
    if steps < 1:
        raise UserError(f"steps is {steps}, but must be at least 1")
    order = ranks(weights.flatten(-2))
    numbers = torch.linspace(0, order.shape[-1], steps + 1, device=order.device).round()
    taken = (order[..., None, :] < numbers[:, None]).unflatten(-1, weights.shape[-2:])  # (*maps, steps + 1, ...)
    between = taken[..., 1:-1, :, :].flatten(0, -3)
    whole = torch.zeros(1, *weights.shape[-2:], dtype=torch.bool, device=order.device)  # both ends, of all maps
    values = scores_without(score, image, torch.cat([whole, ~whole, between, ~between]), fill, extent)
    first, last, deleted, inserted = values.split([1, 1, len(between), len(between)])

    def curve(some: Tensor, *ends: Tensor) -> Tensor:
        some = some.view(*weights.shape[:-2], steps - 1)
        start, end = (value.expand(*some.shape[:-1], 1) for value in ends)
        return torch.cat([start, some, end], dim=-1)

    return Curves(curve(deleted, first, last), curve(inserted, last, first))


def best_order(
    score: Score, image: Float[Tensor, "C Y X"], grid: tuple[int, int], *, sign: int, fill: Fill = mean
) -> Float[Tensor, "rows columns"]:
    """Find weights whose order is greedy: each step deletes or inserts the region that lowers or raises the score most.
    Needs about n^2 / 2 scores for n regions.

    sign: 1 for deletion, -1 for insertion.
    """
    rows, columns = grid
    taken, weights = torch.zeros(rows * columns, dtype=torch.bool), torch.zeros(rows * columns)
    for step in range(rows * columns):
        left = (~taken).nonzero()[:, 0]
        tried = taken.repeat(len(left), 1)
        tried[torch.arange(len(left)), left] = True
        gone = (tried if sign > 0 else ~tried).unflatten(1, grid).to(image.device)
        chosen = left[(sign * scores_without(score, image, gone, fill)).argmin()]
        taken[chosen], weights[chosen] = True, rows * columns - step
    return weights.unflatten(0, grid)

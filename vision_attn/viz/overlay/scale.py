"""Convert the weights of a map to shares, interpolate them at pixels, and compute the end of the colour scale and the
levels of contours."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent, positions
from vision_attn.system.errors import UserError

Scale = Literal["own", "one"]
"""Where the scale of a word ends: at its own largest weight, or at the largest of all words."""

SHARES = (0.5, 0.9)
"""The shares of the weight within contours. The line of the first is twice as thick."""


def check_scale(scale: str) -> None:
    """Raise UserError for an unknown scale."""
    if scale not in get_args(Scale):
        raise UserError(f"scale is {scale}: choose own (of each word) or one (for all words)")


def weights(alpha: Float[Tensor, "T *map"]) -> Float[Tensor, "T *map"]:
    """Return `alpha` on the CPU in float32, with 0 in place of invalid weights (NaN, infinite, negative)."""
    alpha = alpha.detach().float().cpu()
    return torch.where(alpha.isfinite(), alpha, 0).clamp(min=0)


def shares(alpha: Float[Tensor, "T *map"]) -> Float[Tensor, "T *map"]:
    """Return the share of the weight in each region: `weights` divided by their sum; 0 for a map of zeros."""
    alpha = weights(alpha)
    total = alpha.flatten(1).sum(dim=1).clamp(min=torch.finfo(alpha.dtype).tiny)
    return alpha / total.view(-1, *[1] * (alpha.dim() - 1))


def number(share: float) -> str:
    """Format a share of the weight with two digits: 0.47, 0.0051."""
    return f"{share:.2g}"


def ends(shares: Float[Tensor, "T *map"], scale: Scale = "own") -> list[float]:
    """Return the end of each word's scale: the largest share of its own map ("own"), or of all maps ("one")."""
    largest = shares.flatten(1).amax(dim=1)
    return (largest if scale == "own" or not len(largest) else largest.amax().expand(len(largest))).tolist()


def interpolated(
    alpha: Float[Tensor, "T Y X"], height: int, width: int, extent: Extent = WHOLE
) -> Float[Tensor, "T height width"]:
    """Interpolate the weights of regions at the pixels of a picture.

    The centre of a region has its weight, so that numbers can be read from a scale; between centres, values rise or
    fall smoothly and monotonically. Outside the extent of the regions, a pixel has the value of the nearest region.

    Differs from the paper: its figures enlarge bilinearly, then blur with a Gaussian of 1.25 regions, which lowers
    narrow peaks below wide ones that have less weight.
    """
    down = _between(alpha.shape[1], height, extent.y0, extent.y1)
    return down @ weights(alpha) @ _between(alpha.shape[2], width, extent.x0, extent.x1).mT


def light(
    alpha: Float[Tensor, "T Y X"], height: int, width: int, extent: Extent = WHOLE
) -> Float[Tensor, "T height width"]:
    """Upsample the weights of regions to the pixels of a picture, in [0, 1]; each word's brightest pixel is 1.

    Values are divided by the word's maximum and not shifted to start at 0, so a uniform map lights the whole picture
    evenly. A map of zeros stays dark. See `interpolated`.
    """
    shone = interpolated(alpha, height, width, extent)
    return shone / shone.amax((1, 2), keepdim=True).clamp(min=torch.finfo(shone.dtype).tiny)


def levels(values: Float[Tensor, "*any"], held: Sequence[float] = SHARES) -> list[float]:
    """Return the level of the contour for each share: the smallest set of pixels that holds this share of the total has
    values down to this level."""
    ordered = values.flatten().double().sort(descending=True).values
    total = ordered.cumsum(dim=0)
    places = torch.searchsorted(total, total[-1] * torch.tensor(held, dtype=torch.float64)).clamp(max=len(ordered) - 1)
    return ordered[places].tolist()


def _between(regions: int, pixels: int, low: float, high: float) -> Float[Tensor, "pixels regions"]:
    """Return the weight of each region at each pixel along one axis: 1 at its centre, and 0 from the centres of its
    neighbours on. Each row sums to 1."""
    place = positions(pixels, regions, low, high).clamp(0, regions - 1)
    near = (1 - (place[:, None] - torch.arange(regions)).abs()).clamp(min=0)
    return near**2 * (3 - 2 * near)

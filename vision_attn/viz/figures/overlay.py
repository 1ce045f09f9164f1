"""A map on a picture in print: colours of viridis, the more opaque the larger the weight; and its cells as they are."""

import numpy as np
import torch
from jaxtyping import Float
from matplotlib import colormaps
from PIL import Image
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent, nearest, positions

COLOURS = "viridis"
OPAQUE = 0.8
"""The opacity of the largest weight; that of others falls with the root of their share, so that small ones are seen."""


def overlaid(picture: Image.Image, share: Float[Tensor, "height width"]) -> Image.Image:
    """`picture` under the colours of `share`, in [0, 1] and of the same size."""
    colours = colormaps[COLOURS](share.numpy())[..., :3] * 255
    opacity = OPAQUE * share.sqrt().numpy()[..., None]
    mixed = np.asarray(picture.convert("RGB")) * (1 - opacity) + colours * opacity
    return Image.fromarray(mixed.round().astype(np.uint8))


def plain(share: Float[Tensor, "height width"]) -> Image.Image:
    """The colours of `share` by themselves."""
    return Image.fromarray(colormaps[COLOURS](share.numpy(), bytes=True)[..., :3])


def interpolated(
    alpha: Float[Tensor, "*F Y X"], height: int, width: int, extent: Extent = WHOLE
) -> Float[Tensor, "*F height width"]:
    """The weight at each pixel: linear between the centres of regions, so that a picture has the numbers of its colour
    bar. Beyond the outer centres it is that of the nearest region."""
    down, across = (
        _between(pixels, number, *ends)
        for pixels, number, ends in (
            (height, alpha.shape[-2], (extent.y0, extent.y1)),
            (width, alpha.shape[-1], (extent.x0, extent.x1)),
        )
    )
    return down @ alpha @ across.mT


def in_cells(
    alpha: Float[Tensor, "*F Y X"], height: int, width: int, extent: Extent = WHOLE
) -> Float[Tensor, "*F height width"]:
    """The weight of the region nearest to each pixel."""
    rows = nearest(height, alpha.shape[-2], extent.y0, extent.y1)
    columns = nearest(width, alpha.shape[-1], extent.x0, extent.x1)
    return alpha[..., rows, :][..., columns]


def _between(pixels: int, number: int, low: float, high: float) -> Float[Tensor, "pixels number"]:
    """The part of each region in the weight of each pixel along one axis; each row sums to 1."""
    place = positions(pixels, number, low, high).clamp(0, number - 1)
    return (1 - (place[:, None] - torch.arange(number)).abs()).clamp(min=0)

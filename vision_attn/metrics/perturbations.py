"""Delete regions from images: order the regions by a map, fill the deleted ones, and score the changed images.

The fill must not reveal the shape of the deleted regions: a square of the mean colour is itself a visible shape.
`noisy_interpolation` closes the holes smoothly from their borders (Rong et al. 2022, "A Consistent and Efficient
Evaluation Strategy for Attribution Methods", ROAD, arXiv:2202.00449).
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torchvision.transforms.v2.functional import gaussian_blur

from vision_attn.fast.holes import closed
from vision_attn.geometry.extents import WHOLE, Extent, nearest

Fill = Callable[[Float[Tensor, "C Y X"], Bool[Tensor, "N Y X"]], Float[Tensor, "N C Y X"]]
"""A function from an image and the pixels that are deleted in each of N copies to the copies."""

Score = Callable[[Float[Tensor, "B C Y X"]], Float[Tensor, "B"]]
"""A function from images to a score of each, such as the probability of an answer."""
BATCH = 32
"""The number of changed images that are scored at once."""
PIXELS = 8 * 224 * 224
"""The largest number of their pixels on a CPU: the system clears the memory of larger tensors each time, which took
half of the time with images of 448 pixels."""
NOISE = 0.01
"""The standard deviation of the noise of `noisy_interpolation`, as a share of the range of the image's values."""
BLUR = 12
"""The side of an image divided by the standard deviation of the Gaussian of `blur`."""


def ranks(weights: Float[Tensor, "*maps L"]) -> Int[Tensor, "*maps L"]:
    """Return the place of each region in the order of falling weight, from 0. Equal weights are in random order;
    otherwise a map of zeros would favour the upper left corner."""
    shuffled = torch.rand_like(weights, dtype=torch.float32).argsort(dim=-1)
    order = shuffled.gather(-1, weights.gather(-1, shuffled).argsort(dim=-1, descending=True, stable=True))
    return order.argsort(dim=-1)


def on_pixels(
    regions: Bool[Tensor, "*rest rows columns"], size: Sequence[int], extent: Extent = WHOLE
) -> Bool[Tensor, "*rest Y X"]:
    """Convert a mask of regions to a mask of pixels: a pixel belongs to the nearest region.

    size: height and width of the image.
    extent: where the regions lie on the image.
    """
    (height, width), (rows, columns) = size, regions.shape[-2:]
    down, across = nearest(height, rows, extent.y0, extent.y1), nearest(width, columns, extent.x0, extent.x1)
    return regions[..., down.to(regions.device), :][..., across.to(regions.device)]


def constant(value: Float[Tensor, "C Y X"]) -> Fill:
    """Return a fill that replaces deleted pixels by those of `value`, an image of the same size."""
    return lambda image, gone: torch.where(gone[:, None], value, image)


def mean(image: Float[Tensor, "C Y X"], gone: Bool[Tensor, "N Y X"]) -> Float[Tensor, "N C Y X"]:
    """Fill deleted pixels with the mean colour of the image."""
    return constant(image.mean(dim=(1, 2), keepdim=True))(image, gone)


def blur(image: Float[Tensor, "C Y X"], gone: Bool[Tensor, "N Y X"]) -> Float[Tensor, "N C Y X"]:
    """Fill deleted pixels with those of the blurred image."""
    spread = max(image.shape[1:]) / BLUR
    kernel = [min(2 * int(3 * spread) + 1, 2 * side - 1) for side in image.shape[:0:-1]]
    return constant(gaussian_blur(image, kernel, [spread, spread]))(image, gone)


def noisy_interpolation(image: Float[Tensor, "C Y X"], gone: Bool[Tensor, "N Y X"]) -> Float[Tensor, "N C Y X"]:
    """Fill by noisy linear interpolation (Rong et al. 2022, section 4): each deleted pixel is the mean of its eight
    neighbours, those at a side with twice the weight of those at a corner, with a little noise. An image without pixels
    gets the mean colour. The noise comes from torch's generator."""
    filled = closed(image, gone)
    noise = NOISE * (image.max() - image.min()) * torch.randn_like(filled)
    return torch.where(gone[:, None], filled + noise, image)


FILLS: dict[str, Fill] = {"linear": noisy_interpolation, "mean": mean, "blur": blur}
"""The fills of deleted regions by name; the first is the default."""


@torch.no_grad()
def scores_without(
    score: Score,
    image: Float[Tensor, "C Y X"],
    gone: Bool[Tensor, "N rows columns"],
    fill: Fill,
    extent: Extent = WHOLE,
) -> Float[Tensor, "N"]:
    """Score an image without some of its regions, in batches that need little memory. The scores are on the CPU."""
    size = image.shape[1:]
    most = min(BATCH, max(1, PIXELS // size.numel())) if image.device.type == "cpu" else BATCH
    batches = (score(fill(image, on_pixels(some, size, extent))).float().cpu() for some in gone.split(most))
    return torch.cat(list(batches))

"""Attribution maps for any architecture: Integrated Gradients and SmoothGrad (by `captum`), Score-CAM, and
occlusion."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vision_attn.metrics.perturbations import BATCH, Fill, Score, noisy_interpolation, scores_without
from vision_attn.system.errors import UserError

STEPS = 32
"""The number of points on the line from zeros to the input at which Integrated Gradients takes a gradient."""
SAMPLES, SPREAD = 16, 0.15
"""SmoothGrad's number of noisy copies, and the standard deviation of their noise as a share of the input's range."""
CHANNELS = 64
"""The number of channels that Score-CAM uses: those that differ most between places."""
REGION, MOST = 7, 14
"""The smallest side of a region in pixels, and the largest number of regions along a side of an image."""

Value = Callable[[Float[Tensor, "N ..."]], Float[Tensor, "N"]]
"""A function from the inputs of a model to the score that is explained, with a gradient."""


def regions_of(size: Sequence[int]) -> tuple[int, int]:
    """Return the rows and columns of regions for an image of `size` pixels."""
    rows, columns = (max(1, min(MOST, side // REGION)) for side in size)
    return rows, columns


def integrated_gradients(value: Value, inputs: Float[Tensor, "1 ..."]) -> Float[Tensor, "1 ..."]:
    """Compute Integrated Gradients (Sundararajan et al. 2017, eq. 1) from zeros with `captum`."""
    captum = _captum()
    with torch.enable_grad():
        attribution = captum.IntegratedGradients(value).attribute(inputs, n_steps=STEPS, internal_batch_size=BATCH)
    return attribution.detach()


def smoothgrad(value: Value, inputs: Float[Tensor, "1 ..."]) -> Float[Tensor, "1 ..."]:
    """Compute SmoothGrad (Smilkov et al. 2017, section 3) with `captum`: the absolute value of the mean gradient over
    noisy copies of the input. The noise comes from torch's generator.

    Gradients are averaged with their sign, so they cancel where copies disagree. The absolute value is taken before
    channels are summed, as the paper does for photographs.
    """
    captum = _captum()
    noise = SPREAD * float(inputs.max() - inputs.min())
    with torch.enable_grad():
        tunnel = captum.NoiseTunnel(captum.Saliency(value))
        attribution = tunnel.attribute(
            inputs, nt_type="smoothgrad", nt_samples=SAMPLES, nt_samples_batch_size=8, stdevs=noise, abs=False
        )
    return attribution.detach().abs()


@torch.no_grad()
def score_cam(
    score: Score, image: Float[Tensor, "C Y X"], features: Float[Tensor, "1 D rows columns"]
) -> Float[Tensor, "rows columns"]:
    """Compute Score-CAM (Wang et al. 2020, eq. 3 to 5): the positive part of the sum of a layer's channels, each
    weighted by how much the score of the image, multiplied by that channel, exceeds the score of an empty image.

    Differs from the paper: only the `CHANNELS` that differ most between places are used.
    """
    channels = features[0]
    channels = channels[channels.flatten(1).std(dim=1).argsort(descending=True)[:CHANNELS]]
    low, high = (getattr(channels, end)(dim=(1, 2), keepdim=True) for end in ("amin", "amax"))
    lit = F.interpolate(((channels - low) / (high - low).clamp(min=1e-12))[:, None], image.shape[1:], mode="bilinear")
    values = torch.cat([score(image * some) for some in lit.split(BATCH)]) - score(0 * image[None])
    return (values[:, None, None].to(channels) * channels).sum(dim=0).clamp(min=0)


def occlusion(
    score: Score, image: Float[Tensor, "C Y X"], grid: tuple[int, int], fill: Fill = noisy_interpolation
) -> Float[Tensor, "rows columns"]:
    """Return how much the score falls without each region of a `grid` (Zeiler and Fergus 2014, section 4.2).

    Differs from the paper: `fill` replaces a region, not a grey square (see `metrics.perturbations`)."""
    alone = torch.eye(grid[0] * grid[1], dtype=torch.bool, device=image.device).unflatten(1, grid)
    scores = scores_without(score, image, torch.cat([0 * alone[:1] > 0, alone]), fill)
    return (scores[0] - scores[1:]).unflatten(0, grid)


def _captum():
    try:
        import captum.attr
    except ImportError as error:
        raise UserError(
            "Integrated Gradients and SmoothGrad need the package captum: pip install 'vision-attn[explain]'"
        ) from error
    return captum.attr

"""Maps that need a model's scores alone: Integrated Gradients and SmoothGrad of `captum`, Score-CAM, and occlusion."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vision_attn.metrics.perturbations import BATCH, Fill, Score, linear, scores_without
from vision_attn.system.errors import UserError

STEPS = 32
"""Points of Integrated Gradients on the line from zeros to the input."""
SAMPLES, SPREAD = 16, 0.15
"""Of SmoothGrad: noisy copies, and the standard deviation of their noise as a share of the input's range."""
CHANNELS = 64
"""Channels of Score-CAM: those that differ most between places."""
REGION, MOST = 7, 14
"""Pixels that a side of a region has at least, and regions that a side of an image has at most."""

Value = Callable[[Float[Tensor, "N ..."]], Float[Tensor, "N"]]
"""Inputs of a model -> the score that is explained, with a gradient."""


def regions_of(size: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of regions of an image of `size` pixels."""
    rows, columns = (max(1, min(MOST, side // REGION)) for side in size)
    return rows, columns


def integrated_gradients(value: Value, inputs: Float[Tensor, "1 ..."]) -> Float[Tensor, "1 ..."]:
    """Integrated Gradients (Sundararajan et al. 2017, eq. 1) from zeros, as `captum` computes them."""
    captum = _captum()
    with torch.enable_grad():
        found = captum.IntegratedGradients(value).attribute(inputs, n_steps=STEPS, internal_batch_size=BATCH)
    return found.detach()


def smoothgrad(value: Value, inputs: Float[Tensor, "1 ..."]) -> Float[Tensor, "1 ..."]:
    """SmoothGrad (Smilkov et al. 2017, section 3): the mean of the gradient over noisy copies of the input, as `captum`
    computes it, without its sign. Noise is torch's.

    The mean is of gradients with their sign, which cancel where they differ between copies. Leaving out the sign of the
    mean, before channels are summed, is a choice of how a map is shown, which the paper takes for photographs.
    """
    captum = _captum()
    noise = SPREAD * float(inputs.max() - inputs.min())
    with torch.enable_grad():
        tunnel = captum.NoiseTunnel(captum.Saliency(value))
        found = tunnel.attribute(
            inputs, nt_type="smoothgrad", nt_samples=SAMPLES, nt_samples_batch_size=8, stdevs=noise, abs=False
        )
    return found.detach().abs()


@torch.no_grad()
def score_cam(
    score: Score, image: Float[Tensor, "C Y X"], features: Float[Tensor, "1 D rows columns"]
) -> Float[Tensor, "rows columns"]:
    """Score-CAM (Wang et al. 2020, eq. 3 to 5): the positive part of the sum of a layer's channels, each weighted by
    how much the score rises from that of an empty image if the image is lit by that channel alone.

    Differs from the paper: only the `CHANNELS` that differ most between places are used.
    """
    channels = features[0]
    channels = channels[channels.flatten(1).std(dim=1).argsort(descending=True)[:CHANNELS]]
    low, high = (getattr(channels, end)(dim=(1, 2), keepdim=True) for end in ("amin", "amax"))
    lit = F.interpolate(((channels - low) / (high - low).clamp(min=1e-12))[:, None], image.shape[1:], mode="bilinear")
    values = torch.cat([score(image * some) for some in lit.split(BATCH)]) - score(0 * image[None])
    return (values[:, None, None].to(channels) * channels).sum(dim=0).clamp(min=0)


def occlusion(
    score: Score, image: Float[Tensor, "C Y X"], grid: tuple[int, int], fill: Fill = linear
) -> Float[Tensor, "rows columns"]:
    """By how much the score falls without each region (Zeiler and Fergus 2014, section 4.2). Differs from the paper,
    which covers a region with a grey square: see `metrics.perturbations`."""
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

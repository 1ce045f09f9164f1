"""Padding of batches whose images have different numbers of regions, with vectors of zeros.

If an encoder pads (`Encoder.pads`), a vector that is exactly zero is padding. The mask is computed from the vectors
themselves, on their device, so that models and tasks need not pass a mask along.
"""

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor
from torch.nn import functional as F


def real_regions(regions: Num[Tensor, "B L D"]) -> Bool[Tensor, "B L"]:
    """Return which vectors are not padding. If all vectors of an image are zero, none counts as padding, so that its
    weights still sum to 1."""
    real = (regions != 0).any(dim=-1)
    return real | ~real.any(dim=-1, keepdim=True)


def mean_region(regions: Float[Tensor, "B L D"], real: Bool[Tensor, "B L"] | None) -> Float[Tensor, "B D"]:
    """Return the mean annotation vector of each image, without padding."""
    if real is None:
        return regions.mean(dim=1)
    return regions.sum(dim=1) / real.sum(dim=1, keepdim=True)


def mask_padding(scores: Float[Tensor, "B R L"], real: Bool[Tensor, "B L"] | None) -> Float[Tensor, "B R L"]:
    """Set the scores of padding to -inf, so that its weights are exactly 0."""
    return scores if real is None else scores.masked_fill(~real[:, None], -torch.inf)


def rounded(size: int) -> int:
    """Round up to one of few sizes: the even numbers to 16, then four for each doubling (20, 24, 28, 32, 40, ..)."""
    step = max(2, 2 ** ((size - 1).bit_length() - 1) // 4)
    return -(-size // step) * step


def padded(tensor: Tensor, longest: int | None = None) -> Tensor:
    """Add zeros to the last dimension, up to one of few sizes (see `rounded`), or to `longest` if that is less."""
    size = tensor.shape[-1]
    return F.pad(tensor, (0, max(0, min(rounded(size), longest or rounded(size)) - size)))

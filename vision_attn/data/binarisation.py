"""Binarisation of images: each pixel becomes 1 with a probability equal to its intensity, and 0 otherwise."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

# The constants of the hash function splitmix64 (Steele et al., 2014), as signed integers.
FIRST, SECOND, STEP = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15, -0x61C8864680B583EB


def stochastic(images: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B C Y X"]:
    """Return new samples at every call: stochastic binarisation (Salakhutdinov and Murray 2008)."""
    return torch.bernoulli(images)


def fixed(images: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B C Y X"]:
    """Return the same binary pixels of an image in every batch, in every run and on every device: fixed binarisation.

    The thresholds are pseudorandom numbers that depend on the image alone, by a hash of its 256 levels of intensity.
    """
    levels = (images.flatten(1) * 255).round().long()
    position = torch.arange(1, levels.shape[1] + 1, device=images.device) * STEP
    seed = (levels * (_mixed(position) | 1)).sum(dim=1, keepdim=True)  # int64 wraps around the same way everywhere
    thresholds = _upper(_mixed(seed + position), 24).float() / 2**24
    return (thresholds < images.flatten(1)).to(images.dtype).view_as(images)


def _mixed(numbers: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Mix the bits of numbers as splitmix64 does: every bit of the result depends on every bit of the input."""
    numbers = (numbers ^ _upper(numbers, 34)) * FIRST
    numbers = (numbers ^ _upper(numbers, 37)) * SECOND
    return numbers ^ _upper(numbers, 33)


def _upper(numbers: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """Return the upper `bits` bits, shifted right without extending the sign."""
    return (numbers >> (64 - bits)) & (2**bits - 1)

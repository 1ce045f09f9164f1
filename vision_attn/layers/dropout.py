"""Dropout with a mask that neighbouring rows can share."""

from torch import Tensor
from torch.nn import functional as F


def dropout(input: Tensor, p: float, training: bool, *, shared: int = 1) -> Tensor:
    """Dropout of (..., N, H) with one mask for every `shared` neighbours along N.

    Sampled runs of the same caption are compared with each other, and independent masks would add to the variance of
    the difference.
    """
    if not training or not p:
        return input
    if shared == 1:
        return F.dropout(input, p)
    runs = input.unflatten(-2, (-1, shared))
    return (runs * F.dropout(runs.new_ones(*runs.shape[:-2], 1, runs.shape[-1]), p)).flatten(-3, -2)

"""Dropout whose mask may be shared by neighbouring rows."""

from torch import Tensor
from torch.nn import functional as F


def dropout(input: Tensor, p: float, training: bool, *, shared: int = 1) -> Tensor:
    """Dropout of (..., N, H) with one mask for each `shared` neighbours along N.

    Sampled runs of one caption are compared with each other: independent masks would add their own variance to the
    difference.
    """
    if not training or not p:
        return input
    if shared == 1:
        return F.dropout(input, p)
    runs = input.unflatten(-2, (-1, shared))
    return (runs * F.dropout(runs.new_ones(*runs.shape[:-2], 1, runs.shape[-1]), p)).flatten(-3, -2)

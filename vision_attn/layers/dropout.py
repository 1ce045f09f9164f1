"""Dropout with a mask that neighbouring rows can share, drawn cheaply on a CPU."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def dropout(input: Tensor, p: float, training: bool, *, shared: int = 1) -> Tensor:
    """Dropout of (..., N, H) with one mask for every `shared` neighbours along N.

    Sampled runs of the same caption are compared with each other, and independent masks would add to the variance of
    the difference.
    """
    if not training or not p:
        return input
    if shared == 1:
        return input * _mask(input, input.shape, p)
    runs = input.unflatten(-2, (-1, shared))
    return (runs * _mask(runs, (*runs.shape[:-2], 1, runs.shape[-1]), p)).flatten(-3, -2)


class Dropout(nn.Dropout):
    """`nn.Dropout` with `dropout`, whose masks cost a CPU a fraction of torch's."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training)


def _mask(like: Tensor, size: Sequence[int], p: float) -> Tensor:
    """Random numbers that are 0 with probability `p` and else 1 / (1 - p).

    Drawing one random number for each costs a CPU as much as a twentieth of a training step. So each gets 16 bits of a
    64-bit number, and `p` is rounded to a multiple of 2^-16.
    """
    if like.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(like.new_ones(size), p)
    number, dropped = math.prod(size), round(p * 2**16)
    if dropped >= 2**16:
        return like.new_zeros(size)
    bits = torch.empty(-(-number // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:number]
    return (bits >= dropped - 2**15).view(size).to(like.dtype).div_(1 - dropped / 2**16)

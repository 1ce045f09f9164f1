"""Extend a beam by one word on a GPU, by one kernel. The plain version is `decode.beams._extend`."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from vision_attn.fast.launch import launch, operation

MOST = 1024
"""The largest number of candidates of an image; for more, tensor operations are used."""


@operation("extend_beam")
def extend(
    log_prob: Tensor, words: Tensor, total: Tensor, ended: Tensor, K: int, penalty: Tensor | None, end: int, pad: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return parent, word, gain, total and end (B, K) of the next K rows of each image. K is at most R + R E.
    Registers hold about a thousand candidates.

    log_prob, words: (B, R, E), E continuations of each row.
    total, ended: (B, R), the state of each row.
    """
    B, R, E = log_prob.shape
    outputs = _outputs(log_prob, K)
    given = log_prob.contiguous(), words.contiguous(), total.contiguous(), ended.contiguous()
    less = log_prob if penalty is None else penalty.contiguous()
    block = triton.next_power_of_2(R + R * E)
    launch(_extend, (B,), *given, less, *outputs, R, E, K, end, pad, penalty is not None, block, num_warps=1)
    return outputs


@extend.register_fake
def _(log_prob: Tensor, words, total, ended, K: int, penalty, end: int, pad: int):
    return _outputs(log_prob, K)


def _outputs(log_prob: Tensor, K: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtypes = torch.int64, torch.int64, torch.float32, torch.float32, torch.bool
    parent, word, gain, total, end = (log_prob.new_empty(len(log_prob), K, dtype=dtype) for dtype in dtypes)
    return parent, word, gain, total, end


@triton.jit
@no_type_check
def _extend(
    log_prob, words, total, ended, penalty, parents, next_words, gains, totals, ends, R, E, K, end, pad,
    PENALTY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first R candidates are the rows without a further word. Rows that have ended win over all others."""
    image, index = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    stays, option = index < R, index - R
    row = tl.where(stays, index, option // E)
    inside, goes = index < R + R * E, (index >= R) & (index < R + R * E)
    so_far = tl.load(total + image * R + row, mask=inside, other=-float("inf"))
    over = tl.load(ended + image * R + row, mask=inside, other=0) != 0
    gain = tl.load(log_prob + image * R * E + option, mask=goes, other=0.0)
    word = tl.load(words + image * R * E + option, mask=goes, other=0)
    compared = gain
    if PENALTY:
        compared -= tl.load(penalty + image * R * E + option, mask=goes, other=0.0)
    value = tl.where(stays == over, tl.where(stays, so_far, so_far + compared), -float("inf"))
    value = tl.where(inside, value, -float("inf"))
    rank = tl.where(stays & (value > -float("inf")) & (value < float("inf")), float("inf"), value)
    free = inside
    for k in range(K):
        top = tl.max(tl.where(free, rank, -float("inf")))
        place = tl.min(tl.where(free & (rank == top), index, BLOCK))
        here = index == place
        kept = tl.max(tl.where(here, value, -float("inf")))
        nobody = (place < R) | (kept == -float("inf"))
        said = tl.where(nobody, pad, tl.sum(tl.where(here, word, 0)))
        at = image * K + k
        tl.store(parents + at, tl.sum(tl.where(here, row, 0)).to(tl.int64))
        tl.store(next_words + at, said.to(tl.int64))
        tl.store(gains + at, tl.where(nobody, 0.0, tl.sum(tl.where(here, gain, 0.0))))
        tl.store(totals + at, kept)
        tl.store(ends + at, nobody | (said == end))
        free = free & (index != place)

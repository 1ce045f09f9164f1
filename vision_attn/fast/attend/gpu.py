"""Weights and context of soft attention on a GPU: one kernel forward, one backward. The plain version is
`attention.soft.attended`.

Each kernel reads a tile of the annotation vectors once, for all rows of its image. Products are computed by tensor
cores in the dtype of the vectors, and summed in float32.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from vision_attn.fast.launch import INTERPRETED, launch, operation

ROWS, REGIONS, FEATURES = 16, 32, 64
"""The size of a tile: rows of an image, its regions, elements of an annotation vector."""


@operation("attend")
def attend(scores: Tensor, regions: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return contexts (B, R, D), in the dtype of the regions, and weights (B, R, L), in float32: the softmax of `scale`
    times the scores.

    scores: (B, R, L).
    regions: (B, L, D).
    """
    (B, R, L), D = scores.shape, regions.shape[2]
    context, alpha = regions.new_empty(B, R, D), scores.new_empty(B, R, L, dtype=torch.float32)
    grid = B, triton.cdiv(D, FEATURES), triton.cdiv(R, ROWS)
    tensors = scores.contiguous(), regions.contiguous(), context, alpha
    launch(_attend, grid, *tensors, R, L, D, scale, INTERPRETED, ROWS, REGIONS, FEATURES)
    return context, alpha


@operation("attend_gradients")
def gradients(
    grad: Tensor, grad_alpha: Tensor | None, context: Tensor, alpha: Tensor, regions: Tensor, scale: float,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Return the gradient of the scores, in `dtype`.

    grad, grad_alpha: the gradients of the contexts and of the weights.
    """
    (B, R, L), D = alpha.shape, regions.shape[2]
    by_scores = torch.empty_like(alpha, dtype=dtype)
    of_alpha = alpha if grad_alpha is None else grad_alpha.contiguous()
    tensors = grad.contiguous(), of_alpha, context, alpha, regions.contiguous(), by_scores
    grid = B, triton.cdiv(L, REGIONS), triton.cdiv(R, ROWS)
    launch(_gradients, grid, *tensors, R, L, D, scale, grad_alpha is not None, INTERPRETED, ROWS, REGIONS, FEATURES)
    return by_scores


@attend.register_fake
def _(scores: Tensor, regions: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    B, R, L = scores.shape
    return regions.new_empty(B, R, regions.shape[2]), scores.new_empty(B, R, L, dtype=torch.float32)


@gradients.register_fake
def _(grad: Tensor, grad_alpha, context: Tensor, alpha: Tensor, regions: Tensor, scale: float, dtype) -> Tensor:
    return torch.empty_like(alpha, dtype=dtype)


@triton.jit
@no_type_check
def _attend(
    scores, regions, context, alpha, R, L, D, scale,
    WIDE: tl.constexpr, ROWS: tl.constexpr, REGIONS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    places = (image * R + row[:, None]) * L
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, L, REGIONS):
        region = start + tl.arange(0, REGIONS)
        x = _scores(scores, places, row, region, R, L, scale)
        most = tl.maximum(largest, tl.max(x, axis=1))
        finite = tl.where(most == -float("inf"), 0.0, most)
        total = total * tl.exp(largest - finite) + tl.sum(tl.exp(x - finite[:, None]), axis=1)
        largest = most
    sums = tl.zeros([ROWS, FEATURES], tl.float32)
    for start in range(0, L, REGIONS):
        region = start + tl.arange(0, REGIONS)
        p = tl.exp(_scores(scores, places, row, region, R, L, scale) - largest[:, None]) / total[:, None]
        if tl.program_id(1) == 0:
            tl.store(alpha + places + region, p, mask=(row[:, None] < R) & (region < L))
        tile = (image * L + region[:, None]) * D + feature
        a = tl.load(regions + tile, mask=(region[:, None] < L) & (feature < D), other=0.0)
        sums = _dot(p, a, sums, WIDE)
    stored = (row[:, None] < R) & (feature < D)
    tl.store(context + (image * R + row[:, None]) * D + feature, sums.to(context.dtype.element_ty), mask=stored)


@triton.jit
@no_type_check
def _dot(a, b, sums, WIDE: tl.constexpr):
    """Return sums + a b, in the dtype of b, or in float32 if `WIDE`."""
    a = a.to(b.dtype)
    if WIDE:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, sums, input_precision="ieee")


@triton.jit
@no_type_check
def _scores(scores, places, row, region, R, L, scale):
    """Load a tile of scores: minus infinity past the last region, 0 past the last row."""
    inside = region[None, :] < L
    x = tl.load(scores + places + region, mask=(row[:, None] < R) & inside, other=0.0).to(tl.float32) * scale
    return tl.where(inside, x, -float("inf"))


@triton.jit
@no_type_check
def _gradients(
    grad, grad_alpha, context, alpha, regions, by_scores, R, L, D, scale,
    OF_ALPHA: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, REGIONS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the scores. With w_l the gradient of alpha_l, that of a score is alpha_l (w_l - sum_m
    alpha_m w_m). The gradient of the context adds the product of the context and its gradient to that sum."""
    image = tl.program_id(0).to(tl.int64)
    region = tl.program_id(1) * REGIONS + tl.arange(0, REGIONS)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    w = tl.zeros([ROWS, REGIONS], tl.float32)
    mean = tl.zeros([ROWS], tl.float32)
    for start in range(0, D, FEATURES):
        feature = start + tl.arange(0, FEATURES)
        of_row = (image * R + row[:, None]) * D + feature
        inside = (row[:, None] < R) & (feature < D)
        g = tl.load(grad + of_row, mask=inside, other=0.0)
        z = tl.load(context + of_row, mask=inside, other=0.0)
        mean += tl.sum(g.to(tl.float32) * z.to(tl.float32), axis=1)
        tile = (image * L + region[None, :]) * D + feature[:, None]
        a = tl.load(regions + tile, mask=(region[None, :] < L) & (feature[:, None] < D), other=0.0)
        w = _dot(g, a, w, WIDE)
    places = (image * R + row[:, None]) * L
    if OF_ALPHA:
        for start in range(0, L, REGIONS):
            other = start + tl.arange(0, REGIONS)
            inside = (row[:, None] < R) & (other < L)
            p = tl.load(alpha + places + other, mask=inside, other=0.0)
            mean += tl.sum(p * tl.load(grad_alpha + places + other, mask=inside, other=0.0), axis=1)
    inside = (row[:, None] < R) & (region < L)
    if OF_ALPHA:
        w += tl.load(grad_alpha + places + region, mask=inside, other=0.0)
    p = tl.load(alpha + places + region, mask=inside, other=0.0)
    slopes = scale * p * (w - mean[:, None])
    tl.store(by_scores + places + region, slopes.to(by_scores.dtype.element_ty), mask=inside)

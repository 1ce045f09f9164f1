"""Additive attention scores on a GPU: the sum that `Additive` computes, and its gradients, as two Triton kernels.

Import this module only where it is used: it imports triton. Setting TRITON_INTERPRET=1 before triton is first imported
runs the kernels on a CPU, slowly; tests do so.

In both kernels a program is one warp and holds one tile of keys, at most 32 numbers per lane, in registers. It loops
over the rows of the image, so it reads each key once. Each element of a (row, region) pair costs one reciprocal and a
few additions and multiplications. Nothing of size (R, L, A) is stored, and no warp waits for another. No addition is
atomic, so results are the same on every run.

`scores` and `gradients` are custom operators, so that `torch.compile` takes each as one step. The autograd function of
`Additive` connects them: registering the gradient with the operator triples the overhead of an eager call.

Triton 3.9 compiles them for an H100 and A = 512 to 72 (scores) and 127 (gradients) registers per lane, none spilled.
The sizes of the tiles come from such counts; they have not been tuned by timing.
"""

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from vision_attn.fast.launch import launch, operation

TILE, REGIONS = 1024, 8
"""The largest number of elements, and of regions, in a tile of keys."""

SCORE_WIDTH = 512
"""The largest number of elements of A in a tile for scores. Wide, because scores are sums over A: most of a sum is
within a lane."""

GRADIENT_WIDTH = 128
"""The largest number of elements of A in a tile for gradients. With 4 elements per lane, every lane holds all regions:
sums over them need no shuffles."""


@operation("additive_scores", launches=lambda query, *_: 1 if query.shape[2] <= SCORE_WIDTH else 2)
def scores(query: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """Return the scores (B, R, L), sum_a v_a (1 - 2t) with t = 1 / (1 + e^{2q} e^{2k}). A product that overflows gives
    the limit, t = 0.

    query: e^{2q}, (B, R, A).
    keys: e^{2k}, (B, L, A).
    weight: v, (A).
    """
    (B, R, A), L = query.shape, keys.shape[1]
    tile = _tile(A, SCORE_WIDTH)
    chunks = triton.cdiv(A, tile[1])
    output = query.new_empty(chunks, B, R, L)  # a partial sum for each chunk of A
    inputs = query.contiguous(), keys.contiguous(), weight.contiguous()
    launch(_score_kernel, (B * triton.cdiv(L, tile[0]), chunks), *inputs, output, B, R, L, A, *tile, num_warps=1)
    return output.view(B, R, L) if chunks == 1 else output.sum(dim=0)


@operation("additive_gradients", launches=3, mutates_args=("slopes",))
def gradients(query: Tensor, keys: Tensor, weight: Tensor, grad: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of query and weight, given the gradient `grad` (B, R, L) of the scores. Recomputes t.

    Adds sum_rows grad t (1 - t) to `slopes` (B, L, A), contiguous; times 2 v / e^{2k}, it is the gradient of `keys`.
    """
    (B, R, A), L = query.shape, keys.shape[1]
    tile = _tile(A, GRADIENT_WIDTH)
    blocks = triton.cdiv(L, tile[0])
    grad_query = query.new_empty(blocks, B, R, A)  # a partial sum for each block of regions
    grad_weight = query.new_empty(B * blocks, A)  # a partial sum for each block of each image
    inputs = query.contiguous(), keys.contiguous(), weight.contiguous(), grad.contiguous()
    outputs = grad_query, slopes, grad_weight
    grid = B * blocks, triton.cdiv(A, tile[1])
    launch(_gradient_kernel, grid, *inputs, *outputs, B, R, L, A, *tile, num_warps=1)
    return grad_query.sum(dim=0), grad_weight.sum(dim=0).to(weight.dtype)


@scores.register_fake
def _(query: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    return query.new_empty(*query.shape[:2], keys.shape[1])


@gradients.register_fake
def _(query: Tensor, keys: Tensor, weight: Tensor, grad: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), weight.new_empty(weight.shape)


def _tile(A: int, width: int) -> tuple[int, int]:
    """Return (BLOCK_L, BLOCK_A), the numbers of regions and of elements of A in a tile, both powers of two."""
    block_a = min(triton.next_power_of_2(max(A, 1)), width)
    return min(REGIONS, TILE // block_a), block_a


@triton.jit
@no_type_check
def _score_kernel(
    query, keys, weight, scores, B, R, L, A: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_A: tl.constexpr
):  # fmt: skip
    """Compute scores[chunk, b, r, l] = sum_a v_a (1 - 2t) of all rows, for one block of regions and one chunk of A."""
    blocks = tl.cdiv(L, BLOCK_L)
    image = (tl.program_id(0) // blocks).to(tl.int64)
    region = tl.program_id(0) % blocks * BLOCK_L + tl.arange(0, BLOCK_L)
    column = tl.program_id(1) * BLOCK_A + tl.arange(0, BLOCK_A)
    inside = column < A
    tile = (image * L + region[:, None]) * A + column
    k = tl.load(keys + tile, mask=(region[:, None] < L) & inside, other=1.0)
    v = tl.load(weight + column, mask=inside, other=0.0).to(k.dtype)
    total = tl.sum(v)
    query += image * R * A + column
    scores += (tl.program_id(1) * B + image) * R * L + region
    for _ in range(R):
        q = tl.load(query, mask=inside, other=1.0)
        t = _reciprocal(1.0 + q * k)
        tl.store(scores, total - 2.0 * tl.sum(v * t, axis=1), mask=region < L)
        query += A
        scores += L


@triton.jit
@no_type_check
def _gradient_kernel(
    query, keys, weight, grad, grad_query, slopes, grad_weight, B, R, L,
    A: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_A: tl.constexpr,
):  # fmt: skip
    """Compute the gradients from one block of regions, for one block of A: all of its slopes, and partial sums of the
    other two.

    With u = log(e^{2q} e^{2k}), the derivative of 1 - 2t by u is 2 t (1 - t), and that of u by e^{2q} is 1 / e^{2q}.
    """
    blocks = tl.cdiv(L, BLOCK_L)
    image = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    region = block * BLOCK_L + tl.arange(0, BLOCK_L)
    column = tl.program_id(1) * BLOCK_A + tl.arange(0, BLOCK_A)
    inside = column < A
    tile = (image * L + region[:, None]) * A + column
    stored = (region[:, None] < L) & inside
    k = tl.load(keys + tile, mask=stored, other=1.0)
    v = 2.0 * tl.load(weight + column, mask=inside, other=0.0).to(k.dtype)
    by_key = tl.zeros([BLOCK_L, BLOCK_A], k.dtype)
    by_weight = tl.zeros([BLOCK_A], k.dtype)
    query += image * R * A + column
    grad += image * R * L + region
    grad_query += (block * B + image) * R * A + column
    for _ in range(R):
        q = tl.load(query, mask=inside, other=1.0)
        g = tl.load(grad, mask=region < L, other=0.0)
        t = _reciprocal(1.0 + q * k)
        gt = g[:, None] * t
        slope = gt - gt * t
        by_key += slope
        by_weight += tl.sum(g) - 2.0 * tl.sum(gt, axis=0)
        tl.store(grad_query, v * _reciprocal(q) * tl.sum(slope, axis=0), mask=inside)
        query += A
        grad += L
        grad_query += A
    tl.store(slopes + tile, tl.load(slopes + tile, mask=stored, other=0.0) + by_key, mask=stored)
    tl.store(grad_weight + tl.program_id(0).to(tl.int64) * A + column, by_weight, mask=inside)


@triton.jit
@no_type_check
def _reciprocal(x):
    """Return 1 / x for positive x, as rsqrt(x)^2: two instructions in float32 instead of the ten of a division, and as
    accurate (about 2 units in the last place)."""
    root = tl.rsqrt(x)
    return root * root

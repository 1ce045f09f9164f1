"""The softmax and the weighted sum of attention in fewer passes over memory.

On a GPU, one kernel forward and one backward; on a CPU, sums that read the regions once.
"""

from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vision_attn.attention.hard import Hard, StraightThrough
from vision_attn.attention.monotonic import HardMonotonic, Monotonic
from vision_attn.attention.soft import Attention, Soft, normalised
from vision_attn.contracts import Forced
from vision_attn.fast.accumulate import total_of
from vision_attn.fast.versions import fast_version


class FastAttention(Attention):
    """An attention whose softmax and weighted sum run in one kernel or loop."""

    def attended(
        self,
        scores: Float[Tensor, "B R L"],
        regions: Float[Tensor, "B L D"],
        scale: float = 1.0,
        forced: Forced | None = None,
    ) -> tuple[Float[Tensor, "B R D"], Float[Tensor, "B R L"]]:
        if forced is not None:  # the map changes between the softmax and the sum, which kernels fuse
            return super().attended(scores, regions, scale, forced)
        return attended(scores, regions, scale)

    def expected(self, alpha: Float[Tensor, "B R L"], regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B R D"]:
        return weighted_sum(alpha.to(regions.dtype), regions)


class FastSoft(FastAttention, Soft):
    pass


class FastHard(FastAttention, Hard):
    pass


class FastStraightThrough(FastAttention, StraightThrough):
    pass


class FastMonotonic(FastAttention, Monotonic):
    pass


class FastHardMonotonic(FastAttention, HardMonotonic):
    pass


def attended(
    scores: Float[Tensor, "B R L"], regions: Float[Tensor, "B L D"], scale: float = 1.0
) -> tuple[Float[Tensor, "B R D"], Float[Tensor, "B R L"]]:
    """Return z_t = sum_i alpha_ti a_i (Xu et al. 2015, eq. 13) and alpha_t = softmax(e_t) (eq. 5).

    scale: the factor on the scores.
    """
    if fast_version("attend", scores, regions):
        return _Attended.apply(scores, regions, scale)
    alpha = normalised(scores if scale == 1 else scores * scale)
    return weighted_sum(alpha.to(regions.dtype), regions), alpha


class _Attended(torch.autograd.Function):
    """`attended` by one kernel forward, one backward."""

    @staticmethod
    def forward(ctx, scores: Tensor, regions: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        kernels = fast_version("attend", scores, regions)
        assert kernels is not None
        ctx.total, ctx.dtype, ctx.scale = total_of(regions), scores.dtype, scale
        ctx.set_materialize_grads(False)
        context, alpha = kernels.attend(scores, regions, scale)
        ctx.save_for_backward(context, alpha, regions)
        return context, alpha

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor | None, grad_alpha: Tensor | None) -> tuple[Tensor | None, ...]:
        context, alpha, regions = ctx.saved_tensors
        kernels = fast_version("attend", alpha, regions)
        assert kernels is not None
        grad = torch.zeros_like(context) if grad is None else grad.to(context.dtype)
        of_regions = None
        if ctx.total:
            ctx.total.add_product(alpha.mT.to(regions.dtype), grad)
        elif ctx.needs_input_grad[1]:
            of_regions = alpha.mT.to(regions.dtype) @ grad
        return kernels.gradients(grad, grad_alpha, context, alpha, regions, ctx.scale, ctx.dtype), of_regions, None


FEW = 8
"""The largest number of rows of an image for which the loops are used. With so few rows, a weighted sum takes as long
as reading its vectors from memory. The loops read them once; batched products do not on every processor."""


def weighted_sum(weights: Float[Tensor, "B R L"], vectors: Float[Tensor, "B L D"]) -> Float[Tensor, "B R D"]:
    """Return weights @ vectors, for vectors that may be accumulating."""
    if torch.compiler.is_compiling():  # a compiled program may take any number of images
        return weights @ vectors
    loops = _loops(weights, vectors)
    if loops is None and total_of(vectors) is None:
        return weights @ vectors
    return _WeightedSum.apply(weights, vectors, loops)


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights: Tensor, vectors: Tensor, loops: ModuleType | None) -> Tensor:
        ctx.total, ctx.loops = total_of(vectors), loops
        ctx.save_for_backward(weights, vectors)
        return loops.weighted_sums(weights, vectors) if loops else weights @ vectors

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, vectors = ctx.saved_tensors
        needed, loops = ctx.needs_input_grad, ctx.loops
        grad = grad.to(vectors.dtype)  # of the product, which autocast computes in half precision
        of_weights = of_vectors = None
        if needed[0]:
            of_weights = loops.products(grad, vectors) if loops else grad @ vectors.mT
        if ctx.total:
            ctx.total.add_product(weights.mT, grad)
        elif needed[1]:
            of_vectors = weights.mT @ grad
        return of_weights, of_vectors, None


def _loops(weights: Tensor, vectors: Tensor) -> ModuleType | None:
    """Return the module with compiled loops if it supports these tensors; else None, for matrix products."""
    images, rows, length = weights.shape
    if torch.is_autocast_enabled("cpu") or rows > FEW or (images, length) != vectors.shape[:2]:
        return None
    return fast_version("weighted_sum", weights, vectors)

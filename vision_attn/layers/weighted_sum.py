"""Sums of vectors with the weights of each row, such as the context vectors of an attention."""

from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vision_attn.kernels.choice import fused
from vision_attn.layers.accumulate import add_product, total_of

FEW = 8
"""Rows of an image up to which a weighted sum takes as long as reading its vectors from memory. The loops read them
once, which batched products of so few rows do not on every processor."""


def weighted_sum(weights: Float[Tensor, "B R L"], vectors: Float[Tensor, "B L D"]) -> Float[Tensor, "B R D"]:
    """weights @ vectors, for vectors that may be accumulating."""
    if torch.compiler.is_compiling() or (total_of(vectors) is None and _loops(weights, vectors) is None):
        return weights @ vectors  # a compiled program may take any number of images
    return _WeightedSum.apply(weights, vectors)


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights: Tensor, vectors: Tensor) -> Tensor:
        ctx.sum_of_vectors = total_of(vectors)
        ctx.save_for_backward(weights, vectors)
        loops = _loops(weights, vectors)
        return loops.weighted_sums(weights, vectors) if loops else weights @ vectors

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, vectors = ctx.saved_tensors
        needed, loops = ctx.needs_input_grad, _loops(weights, vectors)
        grad = grad.to(vectors.dtype)  # of the product, which autocast computes in half precision
        of_weights = of_vectors = None
        if needed[0]:
            of_weights = loops.products(grad, vectors) if loops else grad @ vectors.mT
        if ctx.sum_of_vectors:
            add_product(ctx.sum_of_vectors(), weights.mT, grad)
        elif needed[1]:
            of_vectors = weights.mT @ grad
        return of_weights, of_vectors


def _loops(weights: Tensor, vectors: Tensor) -> ModuleType | None:
    """The module with compiled loops, if it serves these tensors; matrix products do the same."""
    images, rows, length = weights.shape
    if torch.is_autocast_enabled("cpu") or rows > FEW or (images, length) != vectors.shape[:2]:
        return None
    return fused("weighted_sum", weights, vectors)

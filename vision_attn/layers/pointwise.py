"""Expressions element by element that a GPU computes by one kernel."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vision_attn.kernels.launch import on_gpu
from vision_attn.layers.collected import product_dtype

MOST = 8192
"""The most features of a row that one program of a kernel holds."""


def tanh_of_sum(
    a: Float[Tensor, "*rows D"], b: Float[Tensor, "*rows D"], c: Float[Tensor, "*rows D"]
) -> Float[Tensor, "*rows D"]:
    """tanh(a + b + c); on a GPU in the precision of the products that follow."""
    if _fused(a, b, c) and a.shape == b.shape == c.shape:
        return _TanhOfSum.apply(a, b, c, product_dtype(a))
    return (a + b + c).tanh()


def gated(gate: Float[Tensor, "*rows G"], x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
    """sigmoid(gate) x, with one gate for a row or for each feature."""
    if _fused(gate, x) and gate.shape[-1] in (1, x.shape[-1]) and x.shape[-1] <= MOST:
        return _Gated.apply(gate, x)
    return gate.sigmoid() * x


def _fused(*tensors: Tensor) -> bool:
    """Whether a kernel takes these. The compiler fuses such expressions itself."""
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    return not (wide or torch.compiler.is_compiling()) and on_gpu(tensors[0])


class _TanhOfSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, c: Tensor, dtype: torch.dtype) -> Tensor:
        from vision_attn.kernels import pointwise_triton as kernels

        output = kernels.tanh_of_sum(a, b, c, dtype)
        ctx.save_for_backward(output)
        ctx.dtypes = a.dtype, b.dtype, c.dtype
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (output,) = ctx.saved_tensors
        slopes = torch.ops.aten.tanh_backward(grad, output)
        return *(slopes.to(dtype) for dtype in ctx.dtypes), None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate: Tensor, x: Tensor) -> Tensor:
        from vision_attn.kernels import pointwise_triton as kernels

        ctx.save_for_backward(gate, x)
        return kernels.gated(gate.flatten(0, -2), x.flatten(0, -2)).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        from vision_attn.kernels import pointwise_triton as kernels

        gate, x = ctx.saved_tensors
        rows = (part.flatten(0, -2) for part in (grad, gate, x))
        by_gate, by_x = kernels.gated_gradients(*rows)
        return by_gate.view(gate.shape), by_x.view(x.shape)

"""Elementwise sums and products on a GPU, with the function that follows them: one kernel forward, one backward. The
plain versions are in `fast.models.recurrent`."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from vision_attn.fast.launch import launch, operation

BLOCK = 1024
MOST = 8192
"""The largest number of features of a row that one program holds."""


@operation("tanh_of_sum")
def tanh_of_sum(a: Tensor, b: Tensor, c: Tensor, dtype: torch.dtype) -> Tensor:
    """Return tanh(a + b + c) of tensors of one shape and any precision, computed in float32, in `dtype`."""
    output = torch.empty_like(a, dtype=dtype, memory_format=torch.contiguous_format)
    tensors = *(tensor.contiguous() for tensor in (a, b, c)), output
    launch(_tanh_of_sum, (triton.cdiv(a.numel(), BLOCK),), *tensors, a.numel(), BLOCK)
    return output


@operation("gated")
def gated(gate: Tensor, x: Tensor) -> Tensor:
    """Return sigmoid(gate) x of rows x (N, D) and gates (N, 1) or (N, D), in the dtype of x."""
    (N, D), output = x.shape, torch.empty_like(x, memory_format=torch.contiguous_format)
    block = triton.next_power_of_2(D)
    launch(_gated, (N,), gate.contiguous(), x.contiguous(), output, D, gate.shape[1], block)
    return output


@operation("gated_gradients")
def gated_gradients(grad: Tensor, gate: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the gates and of x."""
    N, D = x.shape
    by_gate, by_x = (torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (gate, x))
    tensors = *(tensor.contiguous() for tensor in (grad, gate, x)), by_gate, by_x
    launch(_gated_gradients, (N,), *tensors, D, gate.shape[1], triton.next_power_of_2(D))
    return by_gate, by_x


class TanhOfSum(torch.autograd.Function):
    """`tanh_of_sum` with its gradient."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, c: Tensor, dtype: torch.dtype) -> Tensor:
        output = tanh_of_sum(a, b, c, dtype)
        ctx.save_for_backward(output)
        ctx.dtypes = a.dtype, b.dtype, c.dtype
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (output,) = ctx.saved_tensors
        slopes = torch.ops.aten.tanh_backward(grad, output)
        return *(slopes.to(dtype) for dtype in ctx.dtypes), None


class Gated(torch.autograd.Function):
    """`gated` with its gradient."""

    @staticmethod
    def forward(ctx, gate: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(gate, x)
        return gated(gate.flatten(0, -2), x.flatten(0, -2)).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, x = ctx.saved_tensors
        rows = (tensor.flatten(0, -2) for tensor in (grad, gate, x))
        by_gate, by_x = gated_gradients(*rows)
        return by_gate.view(gate.shape), by_x.view(x.shape)


@tanh_of_sum.register_fake
def _(a: Tensor, b: Tensor, c: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(a, dtype=dtype, memory_format=torch.contiguous_format)


@gated.register_fake
def _(gate: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@gated_gradients.register_fake
def _(grad: Tensor, gate: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    by_gate, by_x = (torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (gate, x))
    return by_gate, by_x


@triton.jit
@no_type_check
def _tanh_of_sum(a, b, c, output, number, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < number
    total = tl.load(a + index, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(b + index, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(c + index, mask=inside, other=0.0).to(tl.float32)
    tanh = 2.0 / (1.0 + tl.exp(-2.0 * total)) - 1.0
    tl.store(output + index, tanh.to(output.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _gated(gate, x, output, D, gates, BLOCK: tl.constexpr):
    row, index = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    g = tl.load(gate + row * gates + index % gates, mask=index < D, other=0.0).to(tl.float32)
    value = tl.load(x + row * D + index, mask=index < D, other=0.0).to(tl.float32) / (1.0 + tl.exp(-g))
    tl.store(output + row * D + index, value.to(output.dtype.element_ty), mask=index < D)


@triton.jit
@no_type_check
def _gated_gradients(grad, gate, x, by_gate, by_x, D, gates, BLOCK: tl.constexpr):
    row, index = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = index < D
    open = 1.0 / (1.0 + tl.exp(-tl.load(gate + row * gates + index % gates, mask=inside, other=0.0).to(tl.float32)))
    slope = tl.load(grad + row * D + index, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * D + index, mask=inside, other=0.0).to(tl.float32)
    tl.store(by_x + row * D + index, (slope * open).to(by_x.dtype.element_ty), mask=inside)
    of_gate = tl.where(inside, slope * value * open * (1.0 - open), 0.0)
    if gates == 1:
        tl.store(by_gate + row, tl.sum(of_gate).to(by_gate.dtype.element_ty))
    else:
        tl.store(by_gate + row * D + index, of_gate.to(by_gate.dtype.element_ty), mask=inside)

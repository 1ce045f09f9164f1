"""Compute e^{2x} of clipped numbers on a GPU, from any precision, by one kernel forward and one backward. The plain
version is `fast.additive.exponential`."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from vision_attn.fast.launch import launch, operation

BLOCK = 1024


@operation("exponential")
def exponential(x: Tensor, limit: float) -> Tensor:
    """Return e^{2x} with x clipped to +-limit, in float32."""
    output = torch.empty_like(x, dtype=torch.float32, memory_format=torch.contiguous_format)
    launch(_exponential, (triton.cdiv(x.numel(), BLOCK),), x.contiguous(), output, x.numel(), limit, BLOCK)
    return output


@operation("exponential_gradient")
def gradient_of_exponential(grad: Tensor, output: Tensor, limit: float, dtype: torch.dtype) -> Tensor:
    """Return the gradient of x in `dtype`; 0 where x was clipped.

    grad, output: the gradient of the output of `exponential`, and this output.
    """
    to = torch.empty_like(output, dtype=dtype)
    number = output.numel()
    launch(_gradient, (triton.cdiv(number, BLOCK),), grad.contiguous(), output, to, number, limit, BLOCK)
    return to


@exponential.register_fake
def _(x: Tensor, limit: float) -> Tensor:
    return torch.empty_like(x, dtype=torch.float32, memory_format=torch.contiguous_format)


@gradient_of_exponential.register_fake
def _(grad: Tensor, output: Tensor, limit: float, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(output, dtype=dtype)


@triton.jit
@no_type_check
def _exponential(x, output, number, limit, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + index, mask=index < number, other=0.0).to(tl.float32)
    value = tl.where(value > limit, limit, tl.where(value < -limit, -limit, value))  # NaN stays
    tl.store(output + index, tl.exp(2.0 * value), mask=index < number)


@triton.jit
@no_type_check
def _gradient(grad, output, to, number, limit, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < number
    value = tl.load(output + index, mask=inside, other=1.0)
    slope = 2.0 * tl.load(grad + index, mask=inside, other=0.0) * value
    clipped = (value >= tl.exp(2.0 * limit)) | (value <= tl.exp(-2.0 * limit))  # to the bit
    tl.store(to + index, tl.where(clipped, 0.0, slope).to(to.dtype.element_ty), mask=inside)

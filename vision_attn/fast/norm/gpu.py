"""Layer normalisation in the precision of the product that follows, on a GPU: one kernel forward; backward one, and the
sum of its parts. The plain version is `layers.norm`."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from vision_attn.fast.launch import launch, operation

MOST = 8192
"""The largest number of features of a row, which one program holds."""
PARTS = 256
"""The largest number of programs of the backward pass. Each sums the gradients of weights over its own rows."""


class Normalised(torch.autograd.Function):
    """Rows x (N, H) in float32, normalised, in `dtype`."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        output, moments = normalise(x, weight, bias, eps, dtype)
        ctx.save_for_backward(x, weight, moments)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_x, partial_sums = gradients(grad, *ctx.saved_tensors)
        return of_x, *partial_sums.sum(dim=0).unbind(), None, None


@operation("normalise")
def normalise(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the normalised rows of x (N, H), which is float32, in `dtype`; and (N, 2), the mean and 1 / standard
    deviation of each row."""
    outputs = _outputs(x, dtype)
    tensors = x.contiguous(), weight.contiguous(), bias.contiguous(), *outputs
    launch(_normalise, (len(x),), *tensors, x.shape[1], eps, triton.next_power_of_2(x.shape[1]))
    return outputs


@operation("normalise_gradients")
def gradients(grad: Tensor, x: Tensor, weight: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and (P, 2, H), parts of those of the weight and of the bias."""
    (N, H), of_x = x.shape, torch.empty_like(x, memory_format=torch.contiguous_format)
    partial_sums = x.new_empty(min(N, PARTS), 2, H)
    tensors = grad.contiguous(), x.contiguous(), weight.contiguous(), moments, of_x, partial_sums
    launch(_gradients, (len(partial_sums),), *tensors, N, H, len(partial_sums), triton.next_power_of_2(H))
    return of_x, partial_sums


def _outputs(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format), x.new_empty(len(x), 2)


@normalise.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _outputs(x, dtype)


@gradients.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    of_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return of_x, x.new_empty(min(len(x), PARTS), 2, x.shape[1])


@triton.jit
@no_type_check
def _normalise(x, weight, bias, y, moments, H, eps, BLOCK: tl.constexpr):
    row, index = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = index < H
    values = tl.load(x + row * H + index, mask=inside, other=0.0)
    mean = tl.sum(values) / H
    centred = tl.where(inside, values - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred) / H + eps)
    tl.store(moments + 2 * row, mean)
    tl.store(moments + 2 * row + 1, scale)
    w = tl.load(weight + index, mask=inside, other=0.0)
    b = tl.load(bias + index, mask=inside, other=0.0)
    tl.store(y + row * H + index, (centred * scale * w + b).to(y.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _gradients(grad, x, weight, moments, of_x, partial_sums, N, H, P, BLOCK: tl.constexpr):
    """Compute the gradients of a row: with n the normalised row and g = weight * grad, that of x is (g - mean(g) - n
    mean(g n)) / sigma."""
    program, index = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside, place = index < H, program * H + index
    w = tl.load(weight + index, mask=inside, other=0.0)
    of_weight, of_bias = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for row in range(tl.program_id(0), N, P):
        slope = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        mean, scale = tl.load(moments + 2 * row), tl.load(moments + 2 * row + 1)
        n = tl.where(inside, (tl.load(x + place, mask=inside, other=0.0) - mean) * scale, 0.0)
        g = w * slope
        change = (g - tl.sum(g) / H - n * (tl.sum(g * n) / H)) * scale
        tl.store(of_x + place, change, mask=inside)
        of_weight += slope * n
        of_bias += slope
        place += P * H
    tl.store(partial_sums + program * 2 * H + index, of_weight, mask=inside)
    tl.store(partial_sums + (program * 2 + 1) * H + index, of_bias, mask=inside)

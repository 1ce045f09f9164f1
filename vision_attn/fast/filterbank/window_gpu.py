"""Windows of DRAW's filterbank on a GPU: one kernel forward, one backward. The plain version is
`attention.filterbank.Filterbank.window`, which explains the numbers."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from vision_attn.fast.launch import launch, operation

BLOCK = 128
"""The number of windows for each program."""


@operation("window")
def window(
    numbers: Tensor, before_centre: Tensor | None, before_stride: Tensor | None, middle: Tensor, extremes: list[float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the centre (B, R, 2), stride, sigma and intensity (B, R) of each window.

    numbers: (B, R, 5), the five numbers of each window.

    before_centre, before_stride: the centre and stride of the window that this one moves and zooms; None for an
        absolute window.
    extremes: the bound of logarithms, the widest stride, the size of a move in strides, and the narrowest and the
        widest stride of a window that was zoomed.
    """
    numbers, shape, relative = numbers.contiguous(), numbers.shape[:-1], before_centre is not None
    centre, (stride, sigma, intensity) = numbers.new_empty(*shape, 2), (numbers.new_empty(shape) for _ in range(3))
    before = [numbers if tensor is None else tensor for tensor in (before_centre, before_stride)]
    number = numbers.numel() // 5
    outputs = centre, stride, sigma, intensity
    tensors = *(tensor.contiguous() for tensor in (numbers, *before, middle)), *outputs
    launch(_window, (triton.cdiv(number, BLOCK),), *tensors, number, *extremes, relative, BLOCK)
    return outputs


@operation("window_gradients")
def gradients(
    numbers: Tensor, before_stride: Tensor | None, middle: Tensor, outputs: list[Tensor], grads: list[Tensor],
    extremes: list[float],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the numbers and of the previous centre and stride, given the gradients of the four
    outputs."""
    numbers, shape, relative = numbers.contiguous(), numbers.shape[:-1], before_stride is not None
    by = numbers.new_empty(numbers.shape), numbers.new_empty(*shape, 2), numbers.new_empty(shape)
    scale, number = numbers if before_stride is None else before_stride, numbers.numel() // 5
    tensors = *(tensor.contiguous() for tensor in (numbers, scale, middle, *outputs[1:], *grads)), *by
    launch(_gradients, (triton.cdiv(number, BLOCK),), *tensors, number, *extremes, relative, BLOCK)
    return by


class Placed(torch.autograd.Function):
    """`window` with its gradient."""

    @staticmethod
    def forward(
        ctx, numbers: Tensor, centre: Tensor | None, stride: Tensor | None, middle: Tensor, extremes: list[float]
    ) -> tuple[Tensor, ...]:
        outputs = window(numbers, centre, stride, middle, extremes)
        ctx.extremes = extremes
        ctx.save_for_backward(numbers, stride, middle, *outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        numbers, stride, middle, *outputs = ctx.saved_tensors
        by = gradients(numbers, stride, middle, outputs, list(grads), ctx.extremes)
        return by[0], *(by[1:] if stride is not None else (None, None)), None, None


@window.register_fake
def _(numbers: Tensor, before_centre, before_stride, middle, extremes):
    shape = numbers.shape[:-1]
    return numbers.new_empty(*shape, 2), *(numbers.new_empty(shape) for _ in range(3))


@gradients.register_fake
def _(numbers: Tensor, before_stride, middle, outputs, grads, extremes):
    shape = numbers.shape[:-1]
    return numbers.new_empty(numbers.shape), numbers.new_empty(*shape, 2), numbers.new_empty(shape)


@triton.jit
@no_type_check
def _window(
    numbers, before_centre, before_stride, middle, centre, stride, sigma, intensity,
    number, bound, widest, move, least, most, RELATIVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < number
    narrow = tl.exp(0.5 * _clipped(numbers + at * 5 + 2, bound, inside))
    zoom = tl.exp(_clipped(numbers + at * 5 + 3, bound, inside))
    scale = tl.load(before_stride + at, mask=inside, other=1.0) if RELATIVE else widest
    length = scale * zoom
    if RELATIVE:
        length = tl.where(length < least, least, tl.where(length > most, most, length))
        narrow *= 0.5 * length
    for axis in tl.static_range(2):
        shift = tl.load(numbers + at * 5 + axis, mask=inside, other=0.0)
        half = tl.load(middle + axis)
        if RELATIVE:
            place = tl.load(before_centre + at * 2 + axis, mask=inside, other=0.0) + move * shift * scale
        else:
            place = half + half * shift
        tl.store(centre + at * 2 + axis, place, mask=inside)
    tl.store(stride + at, length, mask=inside)
    tl.store(sigma + at, narrow, mask=inside)
    tl.store(intensity + at, tl.exp(_clipped(numbers + at * 5 + 4, bound, inside)), mask=inside)


@triton.jit
@no_type_check
def _gradients(
    numbers, before_stride, middle, stride, sigma, intensity, of_centre, of_stride, of_sigma, of_intensity,
    by_numbers, by_centre, by_stride, number, bound, widest, move, least, most,
    RELATIVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < number
    length = tl.load(stride + at, mask=inside, other=1.0)
    by_log = tl.load(of_sigma + at, mask=inside, other=0.0) * tl.load(sigma + at, mask=inside, other=0.0)
    by_length = tl.load(of_stride + at, mask=inside, other=0.0)
    by_scale = tl.zeros_like(by_length)
    if RELATIVE:
        by_length += by_log / length
        by_length = tl.where((length <= least) | (length >= most), 0.0, by_length)
        scale = tl.load(before_stride + at, mask=inside, other=1.0)
        by_scale = by_length * length / scale
    for axis in tl.static_range(2):
        grad = tl.load(of_centre + at * 2 + axis, mask=inside, other=0.0)
        if RELATIVE:
            tl.store(by_numbers + at * 5 + axis, grad * move * scale, mask=inside)
            by_scale += grad * move * tl.load(numbers + at * 5 + axis, mask=inside, other=0.0)
            tl.store(by_centre + at * 2 + axis, grad, mask=inside)
        else:
            tl.store(by_numbers + at * 5 + axis, grad * tl.load(middle + axis), mask=inside)
    if RELATIVE:
        tl.store(by_stride + at, by_scale, mask=inside)
    by_gamma = tl.load(of_intensity + at, mask=inside, other=0.0) * tl.load(intensity + at, mask=inside, other=0.0)
    _store(by_numbers + at * 5 + 2, 0.5 * by_log, numbers + at * 5 + 2, bound, inside)
    _store(by_numbers + at * 5 + 3, by_length * length, numbers + at * 5 + 3, bound, inside)
    _store(by_numbers + at * 5 + 4, by_gamma, numbers + at * 5 + 4, bound, inside)


@triton.jit
@no_type_check
def _clipped(pointer, bound, inside):
    """Clip a logarithm to the bounds; NaN stays."""
    value = tl.load(pointer, mask=inside, other=0.0)
    return tl.where(value > bound, bound, tl.where(value < -bound, -bound, value))


@triton.jit
@no_type_check
def _store(to, grad, pointer, bound, inside):
    """Store the gradient of a logarithm, 0 where it was clipped."""
    value = tl.load(pointer, mask=inside, other=0.0)
    tl.store(to, tl.where((value > bound) | (value < -bound), 0.0, grad), mask=inside)

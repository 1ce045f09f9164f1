"""An LSTM's cell update on a GPU: one kernel forward, one backward. The plain version is `layers.lstm`."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from vision_attn.fast.launch import launch, operation

BLOCK = 256
"""The number of elements of the cell for each program."""


@operation("lstm_update")
def update(first: Tensor, second: Tensor | None, third: Tensor | None, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the activated gates (N, 4 H), h_t and c_t (N, H), in the dtype of the cell.

    The gates' pre-activations (N, 4 H) are the sum of one to three tensors, of any precision.
    """
    (N, H), addends = cell.shape, [addend.contiguous() for addend in (first, second, third) if addend is not None]
    activated, hidden, new_cell = cell.new_empty(N, 4 * H), cell.new_empty(N, H), cell.new_empty(N, H)
    given = [*addends, addends[0], addends[0]][:3]
    grid = (triton.cdiv(N * H, BLOCK),)
    launch(_update, grid, *given, cell.contiguous(), activated, hidden, new_cell, N * H, H, len(addends), BLOCK)
    return activated, hidden, new_cell


@operation("lstm_gradients")
def gradients(
    grad_hidden: Tensor | None, grad_cell: Tensor | None, activated: Tensor, cell: Tensor, new_cell: Tensor, half: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the gates' pre-activations, in bfloat16 if `half`, and of c_{t-1}."""
    N, H = cell.shape
    grad_gates = activated.new_empty(N, 4 * H, dtype=torch.bfloat16 if half else activated.dtype)
    grad_before = cell.new_empty(N, H)
    given = [cell if grad is None else grad.contiguous() for grad in (grad_hidden, grad_cell)]
    known = [grad is not None for grad in (grad_hidden, grad_cell)]
    tensors = *given, activated, cell.contiguous(), new_cell, grad_gates, grad_before
    launch(_gradients, (triton.cdiv(N * H, BLOCK),), *tensors, N * H, H, *known, BLOCK)
    return grad_gates, grad_before


@update.register_fake
def _(first: Tensor, second: Tensor | None, third: Tensor | None, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    N, H = cell.shape
    return cell.new_empty(N, 4 * H), cell.new_empty(N, H), cell.new_empty(N, H)


@gradients.register_fake
def _(grad_hidden, grad_cell, activated: Tensor, cell: Tensor, new_cell: Tensor, half: bool) -> tuple[Tensor, Tensor]:
    dtype = torch.bfloat16 if half else activated.dtype
    return activated.new_empty(activated.shape, dtype=dtype), cell.new_empty(cell.shape)


@triton.jit
@no_type_check
def _update(
    first, second, third, cell, activated, hidden, new_cell, number, H, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < number
    at = index // H * 4 * H + index % H
    c = tl.load(cell + index, mask=inside, other=0.0)
    i = _sigmoid(_sum(first, second, third, at, inside, c, PARTS))
    f = _sigmoid(_sum(first, second, third, at + H, inside, c, PARTS))
    o = _sigmoid(_sum(first, second, third, at + 2 * H, inside, c, PARTS))
    g = _tanh(_sum(first, second, third, at + 3 * H, inside, c, PARTS))
    c = f * c + i * g
    tl.store(activated + at, i, mask=inside)
    tl.store(activated + at + H, f, mask=inside)
    tl.store(activated + at + 2 * H, o, mask=inside)
    tl.store(activated + at + 3 * H, g, mask=inside)
    tl.store(hidden + index, o * _tanh(c), mask=inside)
    tl.store(new_cell + index, c, mask=inside)


@triton.jit
@no_type_check
def _gradients(
    grad_hidden, grad_cell, activated, cell, new_cell, grad_gates, grad_before, number, H,
    OF_HIDDEN: tl.constexpr, OF_CELL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < number
    at = index // H * 4 * H + index % H
    i = tl.load(activated + at, mask=inside, other=0.0)
    f = tl.load(activated + at + H, mask=inside, other=0.0)
    o = tl.load(activated + at + 2 * H, mask=inside, other=0.0)
    g = tl.load(activated + at + 3 * H, mask=inside, other=0.0)
    c = tl.load(cell + index, mask=inside, other=0.0)
    squashed = _tanh(tl.load(new_cell + index, mask=inside, other=0.0))
    slope = tl.zeros_like(c)  # of c_t
    by_hidden = tl.zeros_like(c)
    if OF_CELL:
        slope += tl.load(grad_cell + index, mask=inside, other=0.0)
    if OF_HIDDEN:
        by_hidden += tl.load(grad_hidden + index, mask=inside, other=0.0)
        slope += by_hidden * o * (1.0 - squashed * squashed)
    dtype = grad_gates.dtype.element_ty
    tl.store(grad_gates + at, (slope * g * i * (1.0 - i)).to(dtype), mask=inside)
    tl.store(grad_gates + at + H, (slope * c * f * (1.0 - f)).to(dtype), mask=inside)
    tl.store(grad_gates + at + 2 * H, (by_hidden * squashed * o * (1.0 - o)).to(dtype), mask=inside)
    tl.store(grad_gates + at + 3 * H, (slope * i * (1.0 - g * g)).to(dtype), mask=inside)
    tl.store(grad_before + index, slope * f, mask=inside)


@triton.jit
@no_type_check
def _sum(first, second, third, at, inside, like, PARTS: tl.constexpr):
    total = tl.load(first + at, mask=inside, other=0.0).to(like.dtype)
    if PARTS > 1:
        total += tl.load(second + at, mask=inside, other=0.0).to(like.dtype)
    if PARTS > 2:
        total += tl.load(third + at, mask=inside, other=0.0).to(like.dtype)
    return total


@triton.jit
@no_type_check
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
@no_type_check
def _tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0

"""One step of an LSTM, for models whose input at each time step depends on the state before."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vision_attn.kernels.choice import fused
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.context import within


class CellUpdate(NamedTuple):
    """One step: c_t = forget * before + written."""

    before: Float[Tensor, "*rows H"]
    forget: Float[Tensor, "*rows H"]
    written: Float[Tensor, "*rows H"]
    """i_t g_t."""


_updates: ContextVar[list[CellUpdate] | None] = ContextVar("updates", default=None)


@contextmanager
def recording_updates() -> Iterator[list[CellUpdate]]:
    """Context manager: yields a list to which `lstm` appends the update of each step, without gradients."""
    updates: list[CellUpdate] = []
    with within(_updates, updates):
        yield updates


def lstm(
    gates: Float[Tensor, "*rows gates"], cell: Float[Tensor, "*rows H"], *more: Float[Tensor, "*rows gates"]
) -> tuple[Float[Tensor, "*rows H"], Float[Tensor, "*rows H"]]:
    """LSTM cell update. `gates` are the pre-activations, ordered input, forget, output, candidate. Returns (h_t, c_t).
    Up to two tensors `more` are added to the gates.

    The nonlinearities of Xu et al. 2015, eq. 1 (its linear map is the caller's), then
    c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g) (eq. 2) and h_t = sigmoid(o) tanh(c_t) (eq. 3). Both are float32 or
    wider, also under autocast: a cell accumulates small changes over many time steps.
    """
    cell = at_least_float32(cell)
    if not torch.compiler.is_compiling() and (updates := _updates.get()) is not None:
        updates.append(_update(gates, cell, more))
    fits = gates.shape == (*cell.shape[:-1], 4 * cell.shape[-1])  # fused versions do not check shapes
    if fits and fused("lstm", gates, cell):
        return _Fused.apply(cell, gates, *more)
    for part in more:
        gates = gates + part
    gates = at_least_float32(gates)
    if not torch.compiler.is_compiling():
        return _Cell.apply(gates, cell)
    three, candidate = gates.split([3 * cell.shape[-1], cell.shape[-1]], dim=-1)
    input_gate, forget_gate, output_gate = three.sigmoid().chunk(3, dim=-1)
    cell = forget_gate * cell + input_gate * candidate.tanh()
    return output_gate * cell.tanh(), cell


@torch.no_grad()
def _update(gates: Tensor, cell: Tensor, more: tuple[Tensor, ...]) -> CellUpdate:
    """The update of the cell by eq. 2, in plain operations."""
    total = sum(map(at_least_float32, more), start=at_least_float32(gates))
    input_gate, forget_gate, _, candidate = total.chunk(4, dim=-1)
    return CellUpdate(cell, forget_gate.sigmoid(), input_gate.sigmoid() * candidate.tanh())


class _Cell(torch.autograd.Function):
    """The same with a hand-written backward pass, which needs half as many passes over memory as autograd's."""

    @staticmethod
    def forward(ctx, gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        three, candidate = gates.split([3 * cell.shape[-1], cell.shape[-1]], dim=-1)
        activated = torch.cat([three.sigmoid(), _tanh(candidate)], dim=-1)
        input_gate, forget_gate, output_gate, candidate = activated.chunk(4, dim=-1)
        new_cell = torch.addcmul(forget_gate * cell, input_gate, candidate)
        ctx.save_for_backward(activated, cell, new_cell)
        return _tanh(new_cell) * output_gate, new_cell

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_hidden: Tensor, grad_cell: Tensor) -> tuple[Tensor, Tensor]:
        activated, cell, new_cell = ctx.saved_tensors
        input_gate, forget_gate, output_gate, candidate = activated.chunk(4, dim=-1)
        squashed = _tanh(new_cell)
        grad_cell = grad_cell + torch.ops.aten.tanh_backward(grad_hidden * output_gate, squashed)
        three = torch.cat([grad_cell * candidate, grad_cell * cell, grad_hidden * squashed], dim=-1)
        three = torch.ops.aten.sigmoid_backward(three, activated[..., : three.shape[-1]])
        last = torch.ops.aten.tanh_backward(grad_cell * input_gate, candidate)
        return torch.cat([three, last], dim=-1), grad_cell * forget_gate


class _Fused(torch.autograd.Function):
    """The same by kernels: one forward, one backward."""

    @staticmethod
    def forward(ctx, cell: Tensor, *gates: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [part.dtype for part in gates]
        rows = [part.flatten(0, -2) for part in gates]
        kernels = fused("lstm", *gates[:1], cell)
        activated, hidden, new_cell = kernels.update(*rows, *[None] * (3 - len(rows)), cell.flatten(0, -2))
        hidden, new_cell = hidden.view(cell.shape), new_cell.view(cell.shape)
        ctx.save_for_backward(activated, cell, new_cell)
        return hidden, new_cell

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_hidden: Tensor | None, grad_cell: Tensor | None) -> tuple[Tensor, ...]:
        activated, cell, new_cell = ctx.saved_tensors
        given = (part if part is None else part.flatten(0, -2) for part in (grad_hidden, grad_cell))
        parts = *given, activated, cell.flatten(0, -2), new_cell.flatten(0, -2)
        grad_gates, grad_before = fused("lstm", activated, cell).gradients(*parts, ctx.dtypes[0] == torch.bfloat16)
        grad_gates = grad_gates.view(*cell.shape[:-1], -1)
        return grad_before.view(cell.shape), *(grad_gates.to(dtype) for dtype in ctx.dtypes)


def _tanh(x: Tensor) -> Tensor:
    """tanh(x), computed as 2 sigmoid(2 x) - 1: several times as fast on CPUs. The error is that of rounding near 1."""
    return 2 * (2 * x).sigmoid() - 1

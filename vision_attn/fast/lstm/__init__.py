"""The LSTM cell in fewer passes over memory: a hand-written backward pass, loops and kernels."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vision_attn.fast.versions import fast_version
from vision_attn.layers.lstm import LSTMCell
from vision_attn.layers.precision import at_least_float32


class FastLSTMCell(LSTMCell):
    """`LSTMCell`, by one kernel forward and one backward where there is a fused version."""

    def forward(
        self, cell: Float[Tensor, "*rows H"], *gates: Float[Tensor, "*rows gates"]
    ) -> tuple[Float[Tensor, "*rows H"], Float[Tensor, "*rows H"]]:
        cell = at_least_float32(cell)
        fits, shape = len(gates) <= MOST, (*cell.shape[:-1], 4 * cell.shape[-1])
        for gate in gates:
            fits = fits and gate.shape == shape  # kernels check no shapes
        if fits and fast_version("lstm", gates[0], cell):
            return _Fused.apply(cell, *gates)
        if torch.compiler.is_compiling():  # the compiler fuses the plain expression
            return super().forward(cell, *gates)
        return _CellUpdate.apply(at_least_float32(sum(gates[1:], start=gates[0])), cell)


MOST = 3
"""The largest number of tensors that the kernels add to pre-activations."""


class _CellUpdate(torch.autograd.Function):
    """The update with a hand-written backward pass, which needs half as many passes over memory as autograd's."""

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
    """The update by kernels: one forward, one backward."""

    @staticmethod
    def forward(ctx, cell: Tensor, *gates: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [gate.dtype for gate in gates]
        kernels, before = fast_version("lstm", gates[0], cell), cell.flatten(0, -2)
        assert kernels is not None
        rows = [gate.flatten(0, -2) for gate in gates]
        activated, hidden, new_cell = kernels.update(*rows, *[None] * (MOST - len(rows)), before)
        hidden, new_cell = hidden.view(cell.shape), new_cell.view(cell.shape)
        ctx.save_for_backward(activated, cell, new_cell)
        return hidden, new_cell

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_hidden: Tensor | None, grad_cell: Tensor | None) -> tuple[Tensor, ...]:
        activated, cell, new_cell = ctx.saved_tensors
        if grad_hidden is not None:
            grad_hidden = grad_hidden.flatten(0, -2)
        if grad_cell is not None:
            grad_cell = grad_cell.flatten(0, -2)
        grads = grad_hidden, grad_cell, activated, cell.flatten(0, -2), new_cell.flatten(0, -2)
        kernels = fast_version("lstm", activated, cell)
        assert kernels is not None
        grad_gates, grad_before = kernels.gradients(*grads, ctx.dtypes[0] == torch.bfloat16)
        grad_gates = grad_gates.view(*cell.shape[:-1], -1)
        return grad_before.view(cell.shape), *map(grad_gates.to, ctx.dtypes)


def _tanh(x: Tensor) -> Tensor:
    """Return tanh(x), computed as 2 sigmoid(2 x) - 1: several times as fast on CPUs, with an error of rounding near
    1."""
    return 2 * (2 * x).sigmoid() - 1

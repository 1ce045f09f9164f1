"""The LSTM's state after one more turn, for models that place something new before it every turn."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vision_attn.precise import precise


def lstm(
    gates: Float[Tensor, "*rows gates"], cell: Float[Tensor, "*rows H"]
) -> tuple[Float[Tensor, "*rows H"], Float[Tensor, "*rows H"]]:
    """h_t and c_t, of the cell c_{t-1} and of what the weights made of all that is seen: to enter, forget and leave,
    and the candidate, in this order.

    c_t = sigmoid(forget) c_{t-1} + sigmoid(enter) tanh(candidate), h_t = sigmoid(leave) tanh(c_t). Both in float32 at
    least, whatever autocast does: a cell adds up small things over many turns.
    """
    gates, cell = precise(gates), precise(cell)
    if not torch.compiler.is_compiling():
        return _Turn.apply(gates, cell)
    three, candidate = gates.split([3 * cell.shape[-1], cell.shape[-1]], dim=-1)
    enter, forget, leave = three.sigmoid().chunk(3, dim=-1)
    cell = forget * cell + enter * candidate.tanh()
    return leave * cell.tanh(), cell


class _Turn(torch.autograd.Function):
    """The same with a derivative of its own, which makes half of the passes over memory that autograd's makes."""

    @staticmethod
    def forward(ctx, gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        opened = torch.empty_like(gates)
        three, candidate = opened.split([3 * cell.shape[-1], cell.shape[-1]], dim=-1)
        torch.sigmoid(gates[..., : three.shape[-1]], out=three)
        _tanh(gates[..., three.shape[-1] :], out=candidate)
        enter, forget, leave = three.chunk(3, dim=-1)
        after = torch.addcmul(forget * cell, enter, candidate)
        shown = _tanh(after, out=torch.empty_like(after))
        ctx.save_for_backward(opened, cell, shown)
        return leave * shown, after

    @staticmethod
    @once_differentiable
    def backward(ctx, of_hidden: Tensor, of_cell: Tensor) -> tuple[Tensor, Tensor]:
        opened, cell, shown = ctx.saved_tensors
        enter, forget, leave, candidate = opened.chunk(4, dim=-1)
        of_cell = of_cell + torch.ops.aten.tanh_backward(of_hidden * leave, shown)
        of_gates = torch.empty_like(opened)
        parts = ((of_cell, candidate), (of_cell, cell), (of_hidden, shown), (of_cell, enter))
        for (one, other), part in zip(parts, of_gates.chunk(4, dim=-1), strict=True):
            torch.mul(one, other, out=part)
        three, last = of_gates.split([3 * cell.shape[-1], cell.shape[-1]], dim=-1)
        torch.ops.aten.sigmoid_backward.grad_input(three, opened[..., : three.shape[-1]], grad_input=three)
        torch.ops.aten.tanh_backward.grad_input(last, candidate, grad_input=last)
        return of_gates, of_cell * forget


def _tanh(x: Tensor, out: Tensor) -> Tensor:
    """As 2 sigmoid(2 x) - 1, which on CPUs is several times as fast; off by no more than rounding of numbers near 1."""
    return torch.add(x, x, out=out).sigmoid_().mul_(2).sub_(1)

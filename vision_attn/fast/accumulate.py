"""Sum the gradients of all time steps for a tensor that each step reads, such as annotation vectors, in place.

At every time step, autograd computes the gradient of the whole tensor, padded with zeros if the step read only some
images, and adds it to the sum of the other steps: eight passes over memory. Here a time step adds its part in place:
two passes.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

Finish = Callable[..., Tensor]


class Total:
    """The sum of the gradients that time steps have added so far in a backward pass."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.sum: Tensor | None = None
        self.task = -1

    def of(self, images: int) -> Tensor:
        """Return the sum for the leading images. In a backward pass, add to it in place."""
        task = torch._C._current_graph_task_id()
        if self.sum is None or self.task != task:  # what another backward pass left does not count
            self.sum, self.task = torch.zeros(self.shape, dtype=self.dtype, device=self.device), task
        return self.sum[:images]

    def add_product(self, a: Tensor, b: Tensor) -> None:
        """Add the products a b of each of the leading images."""
        self.of(len(a)).baddbmm_(a, b)

    def take(self) -> Tensor | None:
        """Return the sum, and reset it, since another backward pass may follow. None if nothing was added."""
        total, self.sum = self.sum, None
        return total if self.task == torch._C._current_graph_task_id() else None


def accumulating(tensor: Float[Tensor, "B *sizes"], *others: Tensor, finish: Finish | None = None) -> Tensor:
    """Return `tensor` for the time steps of a loop, which get its sum by `total_of`.

    finish: called with the sum, `tensor` and `others` after all time steps; returns the gradient of `tensor`. Without
        it the sum is the gradient. Gradients that autograd computes are added to it.
    """
    if not tensor.requires_grad or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return tensor
    return _Accumulating.apply(Total(tensor), finish, tensor, *others)


def leading(tensor: Tensor, images: int) -> Tensor:
    """Return tensor[:images]. If `tensor` is accumulating, so is the result."""
    total = total_of(tensor)
    return tensor[:images] if total is None else _Leading.apply(total, tensor, images)


def total_of(tensor: Tensor) -> Total | None:
    """Return the sum to which the backward pass adds the gradient of `tensor`; None if `tensor` is not accumulating."""
    return None if torch.compiler.is_compiling() else getattr(tensor.grad_fn, "total", None)


class _Accumulating(torch.autograd.Function):
    """The identity. Its backward pass runs after those of all time steps."""

    @staticmethod
    def forward(ctx, total: Total, finish: Finish | None, tensor: Tensor, *others: Tensor) -> Tensor:
        ctx.total, ctx.finish, ctx.others = total, finish, len(others)
        ctx.set_materialize_grads(False)
        if finish:
            ctx.save_for_backward(tensor, *others)
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        total = ctx.total.take()
        if total is not None:
            total = ctx.finish(total, *ctx.saved_tensors) if ctx.finish else total
            grad = total if grad is None else grad + total
        return None, None, grad, *[None] * ctx.others


class _Leading(torch.autograd.Function):
    @staticmethod
    def forward(ctx, total: Total, tensor: Tensor, images: int) -> Tensor:
        ctx.total, ctx.shape = total, tensor.shape
        ctx.set_materialize_grads(False)
        return tensor[:images]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is not None:
            grad = torch.cat([grad, grad.new_zeros(ctx.shape[0] - len(grad), *ctx.shape[1:])])
        return None, grad, None

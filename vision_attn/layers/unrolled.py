"""Linear layers in a loop over time steps, whose weights get their gradient from one product after the loop.

Autograd computes the gradient of the weights at every time step and adds it to the sum of the others. The same number
is one matrix product over all time steps: faster, since the matrices are larger, and written to memory once.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vision_attn.kernels.choice import is_cuda
from vision_attn.layers.collected import Casts, Layer, Network
from vision_attn.layers.linear import Rectified, linear, transposed_product


def unrolled(num_steps: int) -> AbstractContextManager[None]:
    """Within this context, `repeated` defers gradients of weights. Each layer is called at most `num_steps` times."""
    return nullcontext() if torch.compiler.is_compiling() else _entered(num_steps)


@contextmanager
def _entered(num_steps: int) -> Iterator[None]:
    token = _loop.set(_Loop(num_steps))
    try:
        yield
    finally:
        _loop.reset(token)


def sharing_casts() -> AbstractContextManager[None]:
    """Within this context, without a gradient, `repeated` casts an input that several layers read once, as autocast on
    a GPU would for each of them."""
    return nullcontext() if torch.compiler.is_compiling() else _sharing()


@contextmanager
def _sharing() -> Iterator[None]:
    token = _casts.set(Casts())
    try:
        yield
    finally:
        _casts.reset(token)


_casts: ContextVar[Casts | None] = ContextVar("casts", default=None)


def repeated(layer: nn.Linear, *inputs: Float[Tensor, "*rows _"]) -> Float[Tensor, "*rows N"]:
    """layer(inputs side by side), as a loop over time steps calls it, in the precision of autocast on a GPU, and in
    float32 or the dtype of the weights elsewhere."""
    first = inputs[0]
    loop = _current()
    if loop is not None and _collects(layer, first):
        return loop.collected(layer, inputs)
    if loop is None or _unsupported(first):
        if first.is_cuda and not torch.is_grad_enabled() and (casts := _casts.get()) is not None:
            inputs = tuple(casts.cast(input) for input in inputs)
            first = inputs[0]
        return layer(torch.cat(inputs, dim=-1) if len(inputs) > 1 else first)
    if layer not in loop.steps:
        steps = _Steps(loop.num_steps, layer)
        loop.steps[layer] = steps, _Weights.apply(steps, layer.weight, layer.bias)
    return _Step.apply(*loop.steps[layer], *inputs)


def apart(network: nn.Module, *inputs: Tensor) -> Tensor:
    """network(*inputs), as a loop over time steps calls a network whose inputs need no gradient, such as glimpses.

    On a GPU a network that is `rowwise` gets the gradients of its weights in one pass over all time steps, which
    computes its outputs again: fewer and larger kernels.
    """
    loop = _current()
    if loop is None or _plain() or not is_cuda(inputs[0]) or not Network.takes(network, inputs):
        return network(*inputs)
    if network not in loop.networks:
        loop.networks[network] = Network(network, inputs[0])
    return loop.networks[network](*inputs)


def _current() -> "_Loop | None":
    return None if torch.compiler.is_compiling() else _loop.get()  # torch 2.11 compiles no context variable


def _collects(layer: nn.Linear, input: Tensor) -> bool:
    """Whether a layer collects what its time steps need, as on a GPU; not if something else wants to see its calls."""
    return is_cuda(input) and not (_plain() or layer._forward_hooks or layer._forward_pre_hooks)


def _plain() -> bool:
    return torch.compiler.is_compiling() or not torch.is_grad_enabled()


def _unsupported(input: Tensor) -> bool:
    return _plain() or torch.is_autocast_enabled(input.device.type)


class _Loop:
    def __init__(self, num_steps: int):
        self.num_steps = num_steps
        self.steps: dict[nn.Linear, tuple[_Steps, Tensor]] = {}
        self.layers: dict[tuple[nn.Linear, torch.dtype], Layer] = {}
        self.networks: dict[nn.Module, Network] = {}
        self.casts = Casts()

    def collected(self, layer: nn.Linear, inputs: tuple[Tensor, ...]) -> Tensor:
        """A time step of a layer on a GPU."""
        cast = [self.casts.cast(input) for input in inputs]
        key = layer, cast[0].dtype
        if key not in self.layers:
            self.layers[key] = Layer(*key)
        return self.layers[key](cast)


_loop: ContextVar[_Loop | None] = ContextVar("loop", default=None)


class _Steps:
    """The inputs of a layer at all time steps, and the gradients of its outputs."""

    def __init__(self, num_steps: int, layer: nn.Linear):
        self.num_steps, self.number = num_steps, 0
        self.weight, self.bias, self.version = layer.weight, layer.bias, layer.weight._version
        self.rectified = isinstance(layer, Rectified)
        self.inputs = self.grads = layer.weight.new_empty(0)
        self.parts: dict[tuple[int, int], Tensor] = {}
        self.task, self.arrived = -1, set()

    def input(self, inputs: tuple[Tensor, ...]) -> tuple[int, Tensor]:
        """Store the inputs of the next time step, side by side. Returns its number, and them."""
        step, rows = self.number, inputs[0].shape[:-1]
        if not step:
            self.inputs = inputs[0].new_empty(self.num_steps, *rows, self.weight.shape[1])
        self.number += 1
        return step, torch.cat(inputs, dim=-1, out=self.inputs[step])

    def columns(self, start: int, stop: int) -> Tensor:
        """The weights of some inputs, contiguous: oneDNN is slow with a part of a matrix."""
        if self.weight._version != self.version:
            raise RuntimeError("the weights of a loop were changed between its forward and its backward pass")
        if (start, stop) not in self.parts:
            self.parts[start, stop] = self.weight[:, start:stop].contiguous()
        return self.parts[start, stop]

    def grad(self, step: int, grad: Tensor) -> Tensor:
        """Store the gradient of a time step's output. Returns where it lies."""
        if not len(self.grads):
            self.grads = grad.new_empty(self.num_steps, *grad.shape)
        if self.task != (task := torch._C._current_graph_task_id()):  # another backward pass may need fewer steps
            self.task, self.arrived = task, set()
        self.arrived.add(step)
        return self.grads[step].copy_(grad)

    def clear(self) -> None:
        """Make the gradients 0 that this backward pass did not store."""
        for step in range(self.number):
            if step not in self.arrived:
                self.grads[step].zero_()


class _Weights(torch.autograd.Function):
    """The weights, as an empty tensor whose backward pass runs after those of all time steps."""

    @staticmethod
    def forward(ctx, steps: _Steps, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.steps = steps
        return weight.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, _: Tensor) -> tuple[Tensor | None, ...]:
        steps, needed = ctx.steps, ctx.needs_input_grad
        steps.clear()
        grads, inputs = (stored[: steps.number].flatten(0, -2) for stored in (steps.grads, steps.inputs))
        return None, transposed_product(grads, inputs) if needed[1] else None, grads.sum(dim=0) if needed[2] else None


class _Step(torch.autograd.Function):
    """One time step of a layer."""

    @staticmethod
    def forward(ctx, steps: _Steps, weights: Tensor, *inputs: Tensor) -> Tensor:
        ctx.steps, ctx.sizes = steps, [input.shape[-1] for input in inputs]
        ctx.step, input = steps.input(inputs)
        output = linear(input, steps.weight, steps.bias, rectified=steps.rectified)
        ctx.save_for_backward(output if steps.rectified else None)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (output,), steps, needed = ctx.saved_tensors, ctx.steps, ctx.needs_input_grad[2:]
        stored = steps.grad(ctx.step, grad if output is None else torch.ops.aten.threshold_backward(grad, output, 0))
        if not any(needed):
            return None, None, *[None] * len(needed)
        first, last = needed.index(True), len(needed) - needed[::-1].index(True)
        start, stop = sum(ctx.sizes[:first]), sum(ctx.sizes[:last])
        grads = linear(stored, steps.columns(start, stop).t()).split(ctx.sizes[first:last], dim=-1)
        return None, None, *[None] * first, *grads, *[None] * (len(needed) - last)

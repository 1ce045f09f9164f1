"""Loops over time steps: weights of layers get their gradient from one product after the loop.

Autograd computes the gradient of the weights at every time step and adds it to the sum of the others. The same number
is one matrix product over all time steps: faster, since the matrices are larger, and written to memory once. So inputs
and gradients of all time steps are collected here. On a GPU, weights are cast to the precision of autocast once a loop,
and so is an input that several layers read.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vision_attn.fast.cast import replaced
from vision_attn.fast.choice import is_cuda
from vision_attn.fast.products import linear, transposed_product
from vision_attn.layers.linear import Rectified
from vision_attn.layers.precision import product_dtype

RECENT = 4
"""Inputs whose casts are kept: as many as one time step has."""


class Casts:
    """Tensors in the precision of autocast, each cast once for all layers that read it."""

    def __init__(self) -> None:
        self.recent: list[tuple[Tensor, Tensor]] = []

    def cast(self, tensor: Tensor) -> Tensor:
        """`tensor` as products compute with it here."""
        dtype = product_dtype(tensor)
        if tensor.dtype == dtype:
            return tensor
        for whole, half in self.recent:
            if whole is tensor and half.dtype == dtype:
                return half
        half = tensor.to(dtype)
        self.recent = [*self.recent[1 - RECENT :], (tensor, half)]
        return half


class Loop:
    """The layers and networks that one pass of a loop has called, and the casts of their inputs."""

    def __init__(self) -> None:
        self.layers: dict[tuple[nn.Linear, torch.dtype], Callable[..., Tensor]] = {}
        self.networks: dict[nn.Module, Callable[..., Tensor]] = {}
        self.casts = Casts()

    def collects(self, input: Tensor) -> bool:
        """Whether layers collect what their time steps need. Under autocast on a CPU their products take longer than
        what could be saved."""
        if not torch.is_grad_enabled():
            return False
        return is_cuda(input) or not torch.is_autocast_enabled(input.device.type)

    def layer(self, layer: nn.Linear, *inputs: Tensor) -> Tensor:
        """layer(inputs side by side), whose gradient of the weights waits for all time steps."""
        cast = [self.casts.cast(input) for input in inputs]
        key = layer, cast[0].dtype
        if key not in self.layers:
            self.layers[key] = collecting_layer(*key)
        return self.layers[key](*cast)

    def network(self, network: nn.Module, *inputs: Tensor) -> Tensor:
        """network(*inputs) for inputs that need no gradient; gradients of its weights come from one pass over all time
        steps, which computes its outputs again: fewer and larger kernels."""
        if network not in self.networks:
            self.networks[network] = collecting_network(network, inputs[0].device.type)
        return self.networks[network](*inputs)


class InLoop:
    """A part of a model that a loop over time steps may call."""

    loop: Loop | None = None
    """The loop that runs; None: none does."""


@contextmanager
def over_time(model: nn.Module) -> Iterator[None]:
    """Within this context the parts of `model` belong to one loop over time steps."""
    if torch.compiler.is_compiling():
        yield
        return
    parts, loop = [part for part in model.modules() if isinstance(part, InLoop)], Loop()
    try:
        for part in parts:
            part.__dict__["loop"] = loop
        yield
    finally:
        for part in parts:
            part.__dict__.pop("loop", None)


@contextmanager
def outside_loops(module: nn.Module) -> Iterator[None]:
    """Within this context the parts of `module` belong to no loop, as in a backward pass that computes them again."""
    before = [(part, part.__dict__.pop("loop", None)) for part in module.modules() if isinstance(part, InLoop)]
    try:
        yield
    finally:
        for part, loop in before:
            if loop is not None:
                part.__dict__["loop"] = loop


class Collected:
    """What the time steps of a loop have collected: inputs, and gradients of outputs.

    It knows no tensor of the graph, whose nodes know it: neither reference counts nor the garbage collector would free
    such a circle through nodes of C++, and no step of training would free its inputs.
    """

    def __init__(self) -> None:
        self.inputs: dict[int, tuple[Tensor, ...]] = {}
        self.grads: dict[int, Tensor] = {}
        self.task = -1

    def keep(self, *inputs: Tensor) -> int:
        """Keep the inputs of the next time step. Returns its number."""
        step = len(self.inputs)
        self.inputs[step] = tuple(input.detach() for input in inputs)
        return step

    def collect(self, step: int, grad: Tensor) -> None:
        """Keep the gradient of a time step's output."""
        if self.task != (task := torch._C._current_graph_task_id()):  # another backward pass may need fewer steps
            self.task, self.grads = task, {}
        self.grads[step] = grad

    def take(self) -> tuple[list[Tensor], Tensor]:
        """The inputs and gradients of all time steps that have one, one below the other. Forgets the gradients."""
        steps, self.grads = self.grads, {}
        inputs = [_joined(parts) for parts in zip(*(self.inputs[step] for step in steps), strict=True)]
        return inputs, _joined(list(steps.values()))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One below the other; one alone is not copied."""
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def collecting_layer(layer: nn.Linear, dtype: torch.dtype) -> Callable[..., Tensor]:
    """`layer` for the time steps of a loop, of inputs in `dtype` side by side."""
    collected = Layer(layer, dtype)
    return partial(_Step.apply, collected, _Weights.apply(collected, layer.weight, layer.bias))


class Layer(Collected):
    """A layer of a loop: its weights, and what its time steps have collected."""

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.rectified = isinstance(layer, Rectified)
        self.weight = layer.weight.detach().to(dtype)
        self.bias = None if layer.bias is None else layer.bias.detach().to(dtype)
        self.version, self.parts = self.weight._version, dict[tuple[int, int], Tensor]()

    def product(self, rows: Tensor) -> Tensor:
        if self.rectified and self.bias is not None and is_cuda(rows):
            return torch._addmm_activation(self.bias, rows, self.weight.t())
        return linear(rows, self.weight, self.bias, rectified=self.rectified)

    def columns(self, start: int, stop: int) -> Tensor:
        """The weights of some inputs; on a CPU contiguous, since oneDNN is slow with a part of a matrix."""
        if self.weight._version != self.version:
            raise RuntimeError("the weights of a loop were changed between its forward and its backward pass")
        if is_cuda(self.weight):
            return self.weight[:, start:stop]
        if (start, stop) not in self.parts:
            self.parts[start, stop] = self.weight[:, start:stop].contiguous()
        return self.parts[start, stop]


class _Weights(torch.autograd.Function):
    """The weights, as an empty tensor whose backward pass runs after those of all time steps."""

    @staticmethod
    def forward(ctx, layer: Layer, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.layer, ctx.dtype = layer, weight.dtype
        return weight.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, _: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad
        (inputs,), grads = ctx.layer.take()
        of_weight = transposed_product(grads, inputs).to(ctx.dtype) if needed[1] else None
        of_bias = grads.sum(dim=0, dtype=ctx.dtype) if needed[2] else None
        return None, of_weight, of_bias


class _Step(torch.autograd.Function):
    """One time step of a layer, of inputs in the dtype of its weights."""

    @staticmethod
    def forward(ctx, layer: Layer, after: Tensor, *inputs: Tensor) -> Tensor:
        rows = inputs[0].shape[:-1]
        flat = [part.reshape(-1, part.shape[-1]) for part in inputs]
        joined = torch.cat(flat, dim=-1) if len(flat) > 1 else flat[0]
        ctx.layer, ctx.step, ctx.sizes = layer, layer.keep(joined), [part.shape[-1] for part in inputs]
        output = layer.product(joined)
        ctx.save_for_backward(output if layer.rectified else None)
        return output.view(*rows, output.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (output,), layer, needed = ctx.saved_tensors, ctx.layer, ctx.needs_input_grad[2:]
        rows, grad = grad.shape[:-1], grad.reshape(-1, grad.shape[-1])
        if output is not None:
            grad = torch.ops.aten.threshold_backward(grad, output, 0)
        layer.collect(ctx.step, grad)
        if not any(needed):
            return None, None, *[None] * len(needed)
        first, last = needed.index(True), len(needed) - needed[::-1].index(True)
        start, stop = sum(ctx.sizes[:first]), sum(ctx.sizes[:last])
        parts = linear(grad, layer.columns(start, stop).t()).split(ctx.sizes[first:last], dim=-1)
        return None, None, *[None] * first, *(part.view(*rows, -1) for part in parts), *[None] * (len(needed) - last)


def collecting_network(module: nn.Module, device: str) -> Callable[..., Tensor]:
    """`module` for the time steps of a loop, of inputs on a device of this type that need no gradient."""
    collected = Network(module, device)
    return partial(_Apart.apply, collected, _Afterwards.apply(collected, *collected.weights))


class Network(Collected):
    """A network of a loop whose inputs need no gradient: its weights get theirs from one pass over all time steps.

    It computes each row by itself and draws no random numbers, so that the pass, which computes the outputs again,
    finds those of the loop. `plain` is its forward pass outside of loops.
    """

    def __init__(self, module: nn.Module, device: str) -> None:
        super().__init__()
        self.forward, self.device = module.plain, device
        parts = [part._parameters for part in module.modules()]
        self.places = [(part, name) for part in parts for name, weight in part.items() if weight is not None]
        self.all = [part[name] for part, name in self.places]  # also those that stand there for this step alone
        self.weights = [weight for weight in self.all if weight.requires_grad]
        self.half = torch.get_autocast_dtype(self.device) if torch.is_autocast_enabled(self.device) else None

    def gradients(self) -> tuple[Tensor | None, ...]:
        inputs, grads = self.take()
        autocast = torch.autocast(self.device, self.half, enabled=self.half is not None)
        with torch.enable_grad(), autocast, replaced(self.places, self.all):
            output = self.forward(*inputs)
        return torch.autograd.grad(output, self.weights, grads, allow_unused=True)


class _Afterwards(torch.autograd.Function):
    """The weights of a network, as an empty tensor whose backward pass runs after those of all time steps."""

    @staticmethod
    def forward(ctx, network: Network, *weights: Tensor) -> Tensor:
        ctx.network = network
        return weights[0].new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.network.gradients()


class _Apart(torch.autograd.Function):
    """One time step of a network."""

    @staticmethod
    def forward(ctx, network: Network, after: Tensor, *inputs: Tensor) -> Tensor:
        ctx.network, ctx.step = network, network.keep(*inputs)
        return network.forward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[None, ...]:
        ctx.network.collect(ctx.step, grad)
        return None, None, *[None] * len(ctx.network.inputs[ctx.step])

"""Compute the gradients of weights in a loop over time steps by one product after the loop.

Autograd computes the gradient of the weights at every time step and adds it to the sum of the others. The sum equals
one matrix product over all time steps, which is faster, since the matrices are larger and the result is written to
memory once. So inputs and gradients of all time steps are collected here. On a GPU, weights are cast to the precision
of autocast once per loop, and an input that several layers read is cast once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vision_attn.fast.cast import replaced
from vision_attn.fast.products import differs, linear, transposed_product
from vision_attn.fast.versions import is_cuda
from vision_attn.layers.linear import Rectified

RECENT = 4
"""The number of inputs whose casts are kept: those of one time step."""


class Casts:
    """Tensors in the precision of autocast, each cast once for all layers that read it."""

    def __init__(self) -> None:
        self.recent: list[tuple[Tensor, Tensor]] = []

    def cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return `tensor` in the precision of the products that read it."""
        if tensor.dtype == dtype:
            return tensor
        for whole, half in self.recent:
            if whole is tensor and half.dtype == dtype:
                return half
        half = tensor.to(dtype)
        self.recent = [*self.recent[1 - RECENT :], (tensor, half)]
        return half


class Loop:
    """One pass of a loop over time steps: the layers and networks that it has called, and the casts of their inputs."""

    def __init__(self, on_gpu: bool) -> None:
        self.under_autocast = on_gpu
        """Whether layers collect under autocast too. On a CPU their products then take longer than what is saved."""
        self.layers: dict[tuple[nn.Linear, torch.dtype], Callable[..., Tensor]] = {}
        self.networks: dict[nn.Module, Callable[..., Tensor]] = {}
        self.casts = Casts()

    def layer(self, layer: nn.Linear, plain: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Compute layer(inputs side by side), which is `plain(*inputs)` outside of loops. In training, the gradient of
        its weights is computed after all time steps."""
        device, dtype = inputs[0].device.type, inputs[0].dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            if not self.under_autocast:
                return plain(*inputs)
            inputs = tuple(self.casts.cast(input, dtype) for input in inputs)
        if not torch.is_grad_enabled():
            return plain(*inputs)
        if (layer, dtype) not in self.layers:
            self.layers[layer, dtype] = collecting_layer(layer, dtype)
        return self.layers[layer, dtype](*inputs)

    def network(self, network: nn.Module, plain: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Compute network(*inputs), which is `plain(*inputs)` outside of loops, for inputs that need no gradient. The
        gradients of its weights come from one pass over all time steps, which recomputes its outputs with fewer and
        larger kernels."""
        if network not in self.networks:
            self.networks[network] = collecting_network(network, plain, inputs[0].device.type)
        return self.networks[network](*inputs)


class InLoop:
    """A part of a model that a loop over time steps may call."""

    loop: Loop | None = None
    """The current loop; None outside of loops."""


@contextmanager
def over_time(model: nn.Module) -> Iterator[None]:
    """Context manager: let the parts of `model` belong to one loop over time steps."""
    if torch.compiler.is_compiling():
        yield
        return
    submodules = [submodule for submodule in model.modules() if isinstance(submodule, InLoop)]
    loop = Loop(is_cuda(next(model.parameters())))
    try:
        for submodule in submodules:
            submodule.__dict__["loop"] = loop
        yield
    finally:
        for submodule in submodules:
            submodule.__dict__.pop("loop", None)


@contextmanager
def outside_loops(module: nn.Module) -> Iterator[None]:
    """Context manager: let the parts of `module` belong to no loop, as in a backward pass that recomputes them."""
    before = [
        (submodule, submodule.__dict__.pop("loop", None))
        for submodule in module.modules()
        if isinstance(submodule, InLoop)
    ]
    try:
        yield
    finally:
        for submodule, loop in before:
            if loop is not None:
                submodule.__dict__["loop"] = loop


class Collected:
    """The inputs and the gradients of outputs that the time steps of a loop have collected.

    It must not refer to tensors of the autograd graph, whose nodes refer to it. Neither reference counts nor the
    garbage collector would free such a cycle through C++ nodes, and training would leak its inputs.
    """

    def __init__(self) -> None:
        self.inputs: dict[int, tuple[Tensor, ...]] = {}
        self.grads: dict[int, Tensor] = {}
        self.task = -1

    def keep(self, *inputs: Tensor) -> int:
        """Keep the inputs of the next time step, and return its number."""
        step = len(self.inputs)
        self.inputs[step] = tuple(map(Tensor.detach, inputs))
        return step

    def collect(self, step: int, grad: Tensor) -> None:
        """Keep the gradient of a time step's output."""
        if self.task != (task := torch._C._current_graph_task_id()):  # another backward pass may need fewer steps
            self.task, self.grads = task, {}
        self.grads[step] = grad

    def take(self) -> tuple[list[Tensor], Tensor]:
        """Return the inputs and gradients of all time steps with a gradient, concatenated, and forget the gradients."""
        steps, self.grads = self.grads, {}
        inputs = zip(*map(self.inputs.__getitem__, steps), strict=True)
        return [*map(_joined, inputs)], _joined([*steps.values()])


def _joined(tensors: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    """Concatenate along the first dimension; a single tensor is not copied."""
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]


def collecting_layer(layer: nn.Linear, dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return a function that computes `layer` in the time steps of a loop, for inputs in `dtype` side by side."""
    collected = CollectedLayer(layer, dtype)
    return partial(_LayerStep.apply, collected, _LayerWeights.apply(collected, layer.weight, layer.bias))


class CollectedLayer(Collected):
    """A layer of a loop: its weights, and the collected inputs and gradients of its time steps."""

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.rectified = isinstance(layer, Rectified)
        self.weight = layer.weight.detach().to(dtype)
        self.bias = None if layer.bias is None else layer.bias.detach().to(dtype)
        self.version, self.columns = self.weight._version, dict[tuple[int, int], Tensor]()
        self.on_gpu = is_cuda(self.weight)
        self.multiply = linear if differs(self.weight) else F.linear

    def product(self, rows: Tensor) -> Tensor:
        if self.rectified and self.bias is not None and self.on_gpu:
            return torch._addmm_activation(self.bias, rows, self.weight.t())
        output = self.multiply(rows, self.weight, self.bias)
        return output.relu() if self.rectified else output

    def gradient(self, grad: Tensor, start: int, stop: int) -> Tensor:
        """Return the gradient of the features `start` to `stop` of the inputs, given the gradient of the outputs before
        a ReLU."""
        if self.weight._version != self.version:
            raise RuntimeError("the weights of a loop were changed between its forward and its backward pass")
        if (start, stop) not in self.columns:
            columns = self.weight[:, start:stop]
            self.columns[start, stop] = columns if self.on_gpu else columns.contiguous()  # oneDNN is slow with a part
        return self.multiply(grad, self.columns[start, stop].t())


class _LayerWeights(torch.autograd.Function):
    """The weights, as an empty tensor whose backward pass runs after those of all time steps."""

    @staticmethod
    def forward(ctx, layer: CollectedLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
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


class _LayerStep(torch.autograd.Function):
    """One time step of a layer, of inputs in the dtype of its weights."""

    @staticmethod
    def forward(ctx, layer: CollectedLayer, after: Tensor, *inputs: Tensor) -> Tensor:
        joined = torch.cat(inputs, dim=-1) if len(inputs) > 1 else inputs[0]
        rows = joined.reshape(-1, joined.shape[-1])
        ctx.layer, ctx.step, ctx.sizes = layer, layer.keep(rows), [tensor.shape[-1] for tensor in inputs]
        output = layer.product(rows)
        ctx.save_for_backward(output if layer.rectified else None)
        return output.view(*joined.shape[:-1], output.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (output,), layer, needed, sizes = ctx.saved_tensors, ctx.layer, ctx.needs_input_grad[2:], ctx.sizes
        rows, grad = grad.shape[:-1], grad.reshape(-1, grad.shape[-1])
        if output is not None:
            grad = torch.ops.aten.threshold_backward(grad, output, 0)
        layer.collect(ctx.step, grad)
        if not any(needed):
            return None, None, *[None] * len(needed)
        first, last = needed.index(True), len(needed) - needed[::-1].index(True)
        gradient = layer.gradient(grad, sum(sizes[:first]), sum(sizes[:last]))
        gradients = gradient.view(*rows, -1).split(sizes[first:last], dim=-1)
        return None, None, *[None] * first, *gradients, *[None] * (len(needed) - last)


def collecting_network(module: nn.Module, plain: Callable[..., Tensor], device: str) -> Callable[..., Tensor]:
    """Return a function that computes `module` in the time steps of a loop, for inputs that need no gradient.

    device: the type of the device of the inputs.
    """
    collected = CollectedNetwork(module, plain, device)
    return partial(_NetworkStep.apply, collected, _NetworkWeights.apply(collected, *collected.weights))


class CollectedNetwork(Collected):
    """A network of a loop whose inputs need no gradient. The gradients of its weights come from one pass over all time
    steps.

    It must treat each row separately and draw no random numbers, so that this pass recomputes the outputs of the loop.

    plain: its forward pass outside of loops.
    """

    def __init__(self, module: nn.Module, plain: Callable[..., Tensor], device: str) -> None:
        super().__init__()
        self.forward, self.device = plain, device
        tables = [submodule._parameters for submodule in module.modules()]
        places = [(table, name, weight) for table in tables for name, weight in table.items() if weight is not None]
        self.places = [(table, name) for table, name, _ in places]
        self.all = [weight for *_, weight in places]  # also those that stand there for this step alone
        self.weights = [weight for weight in self.all if weight.requires_grad]
        self.half = torch.get_autocast_dtype(self.device) if torch.is_autocast_enabled(self.device) else None

    def gradients(self) -> tuple[Tensor | None, ...]:
        inputs, grads = self.take()
        autocast = torch.autocast(self.device, self.half, enabled=self.half is not None)
        with torch.enable_grad(), autocast, replaced(self.places, self.all):
            output = self.forward(*inputs)
        return torch.autograd.grad(output, self.weights, grads, allow_unused=True)


class _NetworkWeights(torch.autograd.Function):
    """The weights of a network, as an empty tensor whose backward pass runs after those of all time steps."""

    @staticmethod
    def forward(ctx, network: CollectedNetwork, *weights: Tensor) -> Tensor:
        ctx.network = network
        return weights[0].new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.network.gradients()


class _NetworkStep(torch.autograd.Function):
    """One time step of a network."""

    @staticmethod
    def forward(ctx, network: CollectedNetwork, after: Tensor, *inputs: Tensor) -> Tensor:
        ctx.network, ctx.step = network, network.keep(*inputs)
        return network.forward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[None, ...]:
        ctx.network.collect(ctx.step, grad)
        return None, None, *[None] * len(ctx.network.inputs[ctx.step])

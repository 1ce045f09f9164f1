"""Linear layers in a loop over time steps, whose weights get their gradient from one product after the loop.

Autograd computes the gradient of the weights at every time step and adds it to the sum of the others. The same number
is one matrix product over all time steps: faster, since the matrices are larger, and written to memory once.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.kernels.choice import is_cuda
from vision_attn.layers.collected import Casts, collecting_layer, collecting_network, waits
from vision_attn.system.context import within


class _Loop:
    """The layers and networks of a loop, and the casts of their inputs."""

    def __init__(self) -> None:
        self.layers: dict[tuple[nn.Linear, torch.dtype], Callable[..., Tensor]] = {}
        self.networks: dict[nn.Module, Callable[..., Tensor]] = {}
        self.casts = Casts()


_loop: ContextVar[_Loop | None] = ContextVar("loop", default=None)
_casts: ContextVar[Casts | None] = ContextVar("casts", default=None)


def unrolled() -> AbstractContextManager[None]:
    """Within this context, `repeated` defers gradients of weights."""
    return nullcontext() if torch.compiler.is_compiling() else within(_loop, _Loop())


def sharing_casts() -> AbstractContextManager[None]:
    """Within this context, without a gradient, `repeated` casts an input that several layers read once, as autocast on
    a GPU would for each of them."""
    return nullcontext() if torch.compiler.is_compiling() else within(_casts, Casts())


def repeated(layer: nn.Linear, *inputs: Float[Tensor, "*rows _"]) -> Float[Tensor, "*rows N"]:
    """layer(inputs side by side), as a loop over time steps calls it, in the precision of autocast."""
    loop = _current()
    if loop is not None and _collects(layer, inputs[0]):
        cast = [loop.casts.cast(input) for input in inputs]
        key = layer, cast[0].dtype
        if key not in loop.layers:
            loop.layers[key] = collecting_layer(*key)
        return loop.layers[key](*cast)
    if inputs[0].is_cuda and not torch.is_grad_enabled() and (casts := _casts.get()) is not None:
        inputs = tuple(casts.cast(input) for input in inputs)
    return layer(torch.cat(inputs, dim=-1) if len(inputs) > 1 else inputs[0])


def apart(network: nn.Module, *inputs: Tensor) -> Tensor:
    """network(*inputs), as a loop over time steps calls a network whose inputs need no gradient, such as glimpses.

    On a GPU a network that is `rowwise` gets the gradients of its weights in one pass over all time steps, which
    computes its outputs again: fewer and larger kernels.
    """
    loop = _current()
    if loop is None or not torch.is_grad_enabled() or not is_cuda(inputs[0]) or not waits(network, inputs):
        return network(*inputs)
    if network not in loop.networks:
        loop.networks[network] = collecting_network(network, inputs[0].device.type)
    return loop.networks[network](*inputs)


def _current() -> _Loop | None:
    return None if torch.compiler.is_compiling() else _loop.get()  # torch 2.11 compiles no context variable


def _collects(layer: nn.Linear, input: Tensor) -> bool:
    """Whether a layer collects what its time steps need; not if something else wants to see its calls. Under autocast
    on a CPU layers are called: their products take longer than what could be saved."""
    if not torch.is_grad_enabled() or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    return is_cuda(input) or not torch.is_autocast_enabled(input.device.type)

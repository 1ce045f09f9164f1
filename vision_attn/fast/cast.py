"""Cast all weights of a model to the precision of autocast by one kernel per step, and likewise their gradients.

Autocast uses a separate kernel for each weight and each gradient: a tenth to a third of the kernels of a step.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vision_attn.attention.filterbank import Filterbank

Place = tuple[dict[str, Any], str]
"""The parameters of a layer, and the name of one of them."""


@contextmanager
def casting_weights(model: nn.Module) -> Iterator[None]:
    """Context manager: in training under autocast on a GPU, cast the weights of `model` together.

    Casts the weights of linear layers and convolutions. Layers that compute positions stay in float32.
    """
    if torch.compiler.is_compiling() or not _wanted(model):
        yield
        return
    places = _places(model)
    halves = _Cast.apply(torch.get_autocast_dtype(_device(model)), *(place[name] for place, name in places))
    with replaced(places, halves):
        yield


def _wanted(model: nn.Module) -> bool:
    device = _device(model)
    return device == "cuda" and torch.is_autocast_enabled(device) and torch.is_grad_enabled()


def _device(model: nn.Module) -> str:
    return next(model.parameters()).device.type


def _places(model: nn.Module) -> list[Place]:
    """Return the weights that are cast: those in float32 of layers that autocast would compute in lower precision."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    exact = {filterbank.numbers for filterbank in model.modules() if isinstance(filterbank, Filterbank)}
    places = [(layer._parameters, name) for layer in layers if layer not in exact for name in NAMES]
    return [
        (place, name) for place, name in places if (weight := place[name]) is not None and weight.dtype == torch.float32
    ]


NAMES = "weight", "bias"


class HeldCasts:
    """The cast weights of a model, in memory of their own that a captured graph reads. `renew` casts those that have
    changed, so that time steps need not."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.places = _places(model)
        self.held = [torch.empty_like(place[name], dtype=dtype, requires_grad=False) for place, name in self.places]

    def renew(self) -> None:
        """Cast the current weights."""
        if self.held:
            torch._foreach_copy_(self.held, [place[name].detach() for place, name in self.places])

    def in_use(self) -> AbstractContextManager[None]:
        """Context manager: let layers compute with the casts."""
        return replaced(self.places, self.held)


@contextmanager
def replaced(places: Sequence[Place], weights: Sequence[Tensor]) -> Iterator[None]:
    """Context manager: let layers compute with `weights` in place of their own."""
    before = [place[name] for place, name in places]
    try:
        for (place, name), weight in zip(places, weights, strict=True):
            place[name] = weight
        yield
    finally:
        for (place, name), weight in zip(places, before, strict=True):
            place[name] = weight


@torch.library.custom_op("vision_attn::cast_all", mutates_args=())
def cast_all(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Cast tensors to `dtype`. One kernel casts about a hundred of them."""
    to = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(to, list(tensors))
    return to


@cast_all.register_fake
def _(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(cast_all(weights, dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        known = [grad for grad in grads if grad is not None]
        cast = iter(cast_all(known, torch.float32) if known else [])
        return None, *(None if grad is None else next(cast) for grad in grads)

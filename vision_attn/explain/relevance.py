"""Combine recorded attention into one map (rollout, gradient-weighted relevance), and compute Grad-CAM and Layer-CAM.

with record_attention(model, queries="all", gradients=True) as record:
    model(images)[0, answer].backward()
relevance(record)[:, 0, 1:]  # what led to the answer: the class token's row, without its own column
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.explain.attention_mode import RecordedAttention
from vision_attn.system.errors import UserError


def rollout(layers: Iterable[RecordedAttention]) -> Float[Tensor, "B N N"]:
    """Compute attention rollout (Abnar and Zuidema 2020, section 3): the product of 0.5 W_att + 0.5 I of all layers,
    the first one rightmost. Row i tells how much of each input token reaches token i of the last layer; rows sum to 1.

    layers: self-attention with full maps, in order. Raises UserError for other attention.
    """
    rolled = None
    for maps in map(_square, layers):
        mixed = 0.5 * maps.mean(dim=1) + 0.5 * torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device)
        mixed = mixed / mixed.sum(dim=-1, keepdim=True)
        rolled = mixed if rolled is None else mixed @ rolled
    return _some(rolled)


def relevance(layers: Iterable[RecordedAttention]) -> Float[Tensor, "B N N"]:
    """Compute the gradient-weighted relevance of self-attention (Chefer, Gur and Wolf 2021, "Generic Attention-model
    Explainability", eq. 5 and eq. 6): R <- R + E_h[(dy/dA * A)^+] R, from R = I. Row i tells how much each input token
    contributed to the answer y through token i.

    layers: self-attention with full maps and gradients, in order. Raises UserError for other attention.
    """
    related = None
    for attention in layers:
        maps = _square(attention)
        if related is None:
            related = torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device).expand(len(maps), -1, -1)
        related = related + weighted(attention) @ related
    return _some(related)


def cross_relevance(
    layers: Iterable[tuple[RecordedAttention | None, RecordedAttention | None]], encoder: Float[Tensor, "B N N"]
) -> Float[Tensor, "B T N"]:
    """Compute the gradient-weighted relevance of N encoder tokens for T decoder tokens (Chefer, Gur and Wolf 2021, eq.
    6 to 11).

    layers: each decoder layer's self-attention and cross-attention, with full maps and gradients; None for one that a
        layer lacks. Their queries are all T decoder tokens.
    encoder: the relevance of the encoder's self-attention (`relevance`); the identity for an encoder without attention.
    """
    own: Any = None
    across: Any = None
    bar = _normalised(encoder)
    for to_self, to_encoder in layers:
        some = to_self or to_encoder
        if own is None and some is not None:
            T, like = some.num_queries, encoder
            own = torch.eye(T, dtype=like.dtype, device=like.device).expand(len(some.maps), -1, -1)
            across = torch.zeros(len(some.maps), T, encoder.shape[-1], dtype=like.dtype, device=like.device)
        if to_self is not None:  # eq. 6 and 7
            mixed = weighted(to_self)
            own, across = own + mixed @ own, across + mixed @ across
        if to_encoder is not None:  # eq. 10
            across = across + _normalised(own).mT @ weighted(to_encoder) @ bar
    return _some(across)


def weighted(attention: RecordedAttention) -> Float[Tensor, "B Q N"]:
    """Average the positive part of gradient times attention over heads (Chefer, Gur and Wolf 2021, eq. 5)."""
    if attention.gradient is None:
        raise UserError(
            f"{attention.name} has no gradient: record with gradients=True, with gradients enabled, and call backward()"
        )
    return (attention.gradient * attention.maps).clamp(min=0).mean(dim=1)


def _normalised(related: Float[Tensor, "B N N"]) -> Float[Tensor, "B N N"]:
    """Return R-bar: the part added to the identity, with rows normalised to sum to 1, plus the identity (eq. 8 and
    9)."""
    identity = torch.eye(related.shape[-1], dtype=related.dtype, device=related.device)
    added = related - identity
    total = added.sum(dim=-1, keepdim=True)
    return added / torch.where(total == 0, 1, total) + identity


def _square(attention: RecordedAttention) -> Float[Tensor, "B K N N"]:
    if attention.maps.shape[-2] != attention.maps.shape[-1]:
        raise UserError(
            f"{attention.name} has {attention.maps.shape[-2]} rows of {attention.maps.shape[-1]} keys: "
            "this needs self-attention, recorded with queries='all'"
        )
    return attention.maps


def _some(result: Tensor | None) -> Tensor:
    if result is None:
        raise UserError("no attention was recorded")
    return result


_ATTENTION = re.compile("Attention|Attn")
"""Matches the class names of attention modules in every library."""
_POOLING = re.compile("Pool")
"""Matches the class names of pooling modules."""


class Activation:
    """A copy of the last recorded output, and its gradient after `backward`."""

    def __init__(self) -> None:
        self.output: Tensor | None = None
        self.gradient: Tensor | None = None
        self._number = 0

    def held(self) -> Tensor:
        """Return the recorded output, after a call that recorded one."""
        assert self.output is not None
        return self.output

    def hold(self, output: Tensor) -> None:
        # A copy: an operation in place that follows (DenseNet's F.relu) changes the output, but not what the gradient
        # refers to.
        self.output, self._number = output.detach().clone(), self._number + 1
        if not output.requires_grad:
            return

        def store(gradient: Tensor, number: int = self._number) -> None:
            if number == self._number:
                self.gradient = gradient

        output.register_hook(store)


@contextmanager
def activation_of(model: nn.Module, layer: str | None = None) -> Iterator[Activation]:
    """Context manager: keep the output of a layer and, after `backward`, its gradient. If a layer returns several
    outputs, the first is kept.

    layer: its name in `model.named_modules()`. None: the layer for Grad-CAM, the last one whose output is a map (B, C,
    Y, X) of more than one place. It includes what follows the last convolution (normalisation, ReLU, the sum of a
    residual block) up to the pooling; in VGG it is the 14x14 map of the last convolution. Queries, keys and position
    biases within an attention, which also have four axes, do not count.

    Raises UserError if there is no such layer.
    """
    kept, modules = Activation(), dict(model.named_modules())
    pooled = False
    if layer is not None and layer not in modules:
        raise UserError(f"the model has no layer {layer!r}")

    def hold(_: nn.Module, __: tuple, output: object) -> None:
        output = output[0] if isinstance(output, tuple) else output
        if isinstance(output, Tensor):
            kept.hold(output)

    def hold_map(module: nn.Module, args: tuple, output: object) -> None:
        nonlocal pooled
        if _has_matrix(module):
            pooled = False
        elif _POOLING.search(type(module).__name__) and args and _num_places(output) < _num_places(args[0]):
            # Other models, such as MViT, pool tokens that no convolution has made.
            pooled = pooled or kept.output is None or args[0].shape == kept.output.shape
        if isinstance(output, Tensor) and not pooled and _num_places(output) > 1:
            kept.hold(output)

    attentions = tuple(f"{name}." for name, module in modules.items() if _ATTENTION.search(type(module).__name__))
    searched = [module for name, module in modules.items() if not name.startswith(attentions)]
    with ExitStack() as hooks:
        for module in searched if layer is None else [modules[layer]]:
            hooks.enter_context(module.register_forward_hook(hold_map if layer is None else hold))
        yield kept


def grad_cam(output: Float[Tensor, "B C Y X"], gradient: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B Y X"]:
    """Compute Grad-CAM (Selvaraju et al. 2017): the positive part of the sum of a layer's channels (eq. 2), each
    weighted by the mean of its gradient over all places (eq. 1)."""
    weights = gradient.mean(dim=(2, 3), keepdim=True)
    return (weights * output).sum(dim=1).clamp(min=0).detach()


def layer_cam(output: Float[Tensor, "B C Y X"], gradient: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B Y X"]:
    """Compute Layer-CAM (Jiang et al. 2021, "LayerCAM", eq. 5 to 7): the positive part of the sum of a layer's
    channels, each weighted at each place by the positive part of its gradient there."""
    return (gradient.clamp(min=0) * output).sum(dim=1).clamp(min=0).detach()


def channels_first(tensor: Float[Tensor, "B _ _ _"]) -> Float[Tensor, "B C Y X"]:
    """Permute a map (B, Y, X, C), as in Swin, to (B, C, Y, X); other maps are unchanged."""
    return tensor.permute(0, 3, 1, 2) if tensor.shape[1] == tensor.shape[2] != tensor.shape[3] else tensor


def _num_places(output: object) -> int:
    """Return rows times columns of a map; 0 for anything else."""
    return channels_first(output)[0, 0].numel() if isinstance(output, Tensor) and output.dim() == 4 else 0


def _has_matrix(module: nn.Module) -> bool:
    """Return whether this is a convolution or a linear layer: its own weights mix channels."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() > 1

"""`intervene`: compare a model's answers with and without attention to some patches, to test its maps by intervention.

The keys of hidden patches get a score of -inf before the softmax, so the other keys share their weight. The tokens of
hidden patches remain: their residual stream goes on, but no other token reads it.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.explain.record import following
from vision_attn.explain.recorded_answers import called, likeliest, named, recorded, scores_of, texts_of, wanted
from vision_attn.explain.tokens import ImageAttention, PatchGrid
from vision_attn.geometry.extents import WHOLE, Extent, centres
from vision_attn.system.errors import UserError

log = logging.getLogger(__name__)

LEAK = 0.005
"""The smallest change of a probability, caused by hidden pixels, that is reported."""
Box = tuple[float, float, float, float]
"""(x0, y0, x1, y1) in [-1, 1] of the picture that the model sees."""


class Intervention(NamedTuple):
    """The answers of a model with and without attention to some patches."""

    words: list[str]
    """The answers: the likeliest class before, the classes that were asked for, or the texts of a matcher."""
    before: list[float]
    """The probability of each answer with all patches."""
    after: list[float]
    likeliest: Sequence[tuple[str, float]]
    """The five likeliest answers of a classifier without this attention, best first; empty for other models."""
    hidden: Bool[Tensor, "Y X"]
    """The patches that no query could attend to."""
    file: str = ""
    """The file of the photograph."""


class _Hiding(TorchFunctionMode):
    """Removes attention to the keys `hidden` in the modules `names`, wherever the number of keys fits."""

    def __init__(self, hidden: Bool[Tensor, "N"], names: Collection[str]) -> None:
        super().__init__()
        self.hidden, self.names, self.running = hidden, names, list[str]()

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        handler: Any = {
            F.scaled_dot_product_attention: self._fused, F.multi_head_attention_forward: self._multi_head,
            F.softmax: self._softmax, torch.softmax: self._softmax, Tensor.softmax: self._softmax,
        }.get(func)  # fmt: skip
        if handler is None or not self.running or self.running[-1] not in self.names:
            return func(*args, **kwargs)
        return handler(func, *args, **kwargs)

    def _fused(self, func: Callable, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        bound = signature(_scaled_dot_product).bind(*args, **kwargs)
        if not bound.arguments.get("is_causal") and key.shape[-2] == len(self.hidden):
            mask = torch.zeros(len(self.hidden), dtype=query.dtype, device=query.device)
            mask = mask.masked_fill(self.hidden, -torch.inf)
            before = bound.arguments.get("attn_mask")
            if before is not None:
                mask = mask + (torch.zeros_like(before, dtype=query.dtype).masked_fill(~before, -torch.inf)
                               if before.dtype == torch.bool else before)  # fmt: skip
            bound.arguments["attn_mask"] = mask.expand(*query.shape[:-1], -1)
        return func(query, key, value, *bound.args, **bound.kwargs)

    def _multi_head(self, func: Callable, *args: Any, **kwargs: Any) -> Any:
        """Handle F.multi_head_attention_forward, within which no mode is active. Inputs are (N, B, E) or (N, E)."""
        bound = signature(F.multi_head_attention_forward).bind(*args, **kwargs)
        key, before = bound.arguments["key"], bound.arguments.get("key_padding_mask")
        if len(key) == len(self.hidden):
            mask = self.hidden if key.dim() == 2 else self.hidden.expand(key.shape[1], -1)
            if before is not None:
                mask = mask | before if before.dtype == torch.bool else before.masked_fill(mask, -torch.inf)
            bound.arguments["key_padding_mask"] = mask
        return func(*bound.args, **bound.kwargs)

    def _softmax(self, func: Callable, scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        dim = kwargs.get("dim", args[0] if args else None)
        if scores.dim() >= 3 and scores.shape[-1] == len(self.hidden) and dim in (-1, scores.dim() - 1):
            scores = scores.masked_fill(self.hidden, -torch.inf)
        return func(scores, *args, **kwargs)


def _scaled_dot_product(attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """The signature of F.scaled_dot_product_attention, a builtin, after query, key and value."""


@contextmanager
def hiding(model: nn.Module, hidden: Bool[Tensor, "N"], names: Collection[str]) -> Iterator[None]:
    """Context manager: remove attention to the keys `hidden` in the modules `names`, in this thread. Turns off torch's
    fast paths without a gradient, which changes the rounding of outputs."""
    hider, fast = _Hiding(hidden, names), torch.backends.mha.get_fastpath_enabled()

    def enter(name: str, *_: Any) -> None:
        hider.running.append(name)

    def leave(*_: Any) -> None:
        hider.running.pop()

    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with following(model, enter, leave), hider:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@torch.no_grad()
def intervene(
    model: OpenedModel,
    picture: Image.Image,
    *,
    without: Box | None = None,
    only: Box | None = None,
    texts: Sequence[str] = (),
    layers: Sequence[int] | None = None,
) -> Intervention:
    """Run the model on a square picture, and again with attention to some patches removed. A patch belongs to a box
    that contains its centre. Class tokens and registers can always be attended to.

    without: remove attention to the patches in this box.
    only: remove attention to all other patches.
    texts: as for `look`.
    layers: the layers in which attention is changed, from 0; negative numbers count from the end; by default all.

    Raises UserError for a model whose attention is not over the patches of the whole image, and for captioners.
    """
    box = only if without is None else without
    if box is None or None not in (without, only):
        raise UserError("give one of without and only: the box to hide, or the box that alone can be seen")
    if model.kind not in ("classifier", "matcher"):
        raise UserError(
            f"attention is taken away from classifiers and matchers, and this model is one of {model.kind}s"
        )
    if model.kind == "matcher" and not texts:
        raise UserError("this model compares images with texts: give a text")
    others = texts_of(model, texts)
    inputs = model.inputs(picture) | others
    recording = recorded(model, inputs)
    attention = recording.attention
    if not isinstance(attention, ImageAttention) or attention.in_stages:
        raise UserError(
            "not every layer of this model attends to the patches of the whole image: nothing can be hidden"
        )
    names = [layer.name for layer in (*attention.layers, attention.pool) if layer is not None]
    for layer in layers or ():
        if not -len(names) <= layer < len(names):
            raise UserError(f"there is no layer {layer}: they are numbered from 0 to {len(names) - 1}")
    chosen = set(names) if layers is None else {names[layer] for layer in layers}
    _, patches = recording.extents(None, False, others)
    hidden = patches_in(box, attention.grid, patches) ^ (only is not None)
    if hidden.all():
        raise UserError("no patch is left: give a smaller box to hide, or a larger one to see")
    keys = torch.cat([torch.zeros(attention.grid.prefix, dtype=torch.bool), hidden.flatten()])
    assert recording.scores is not None  # of a classifier or a matcher
    with hiding(model.module, keys.to(recording.scores.device), chosen):
        after = scores_of(called(model, inputs))
        if layers is None and patches == WHOLE:
            inverted = scores_of(called(model, _inverted(inputs, hidden)))
            assert after is not None and inverted is not None
            _check_hidden(after, inverted)
    answers = wanted(model, recording.scores, texts)
    words, before_log_prob = named(model, recording.scores, answers, texts)
    _, after_log_prob = named(model, after, answers, texts)
    if before_log_prob is None or after_log_prob is None:
        raise UserError("this model gives a single score, which is no probability: there is nothing to compare")
    before, then = ([math.exp(value) for value in log_prob] for log_prob in (before_log_prob, after_log_prob))
    return Intervention(words, before, then, likeliest(model, after), hidden)


def _inverted(inputs: dict[str, Tensor], hidden: Bool[Tensor, "Y X"]) -> dict[str, Tensor]:
    """Return the inputs with the sign of the hidden pixels changed."""
    key, image = next((key, value) for key, value in inputs.items() if value.dim() == 4)
    pixels = F.interpolate(hidden[None, None].float(), image.shape[-2:]).bool().to(image.device)
    return inputs | {key: image.where(~pixels, -image)}


def _check_hidden(after: Float[Tensor, "1 N"], inverted: Float[Tensor, "1 N"]) -> None:
    """Log a warning if the model's answer still depends on hidden pixels."""
    moved = float((after.float().softmax(dim=-1) - inverted.float().softmax(dim=-1)).abs().max())
    if moved > LEAK:
        reason = "this model averages patches, or its patches overlap"
        log.warning("hidden patches still count in the answer and move its probability by %.2f: %s", moved, reason)


def patches_in(box: Box, grid: PatchGrid, patches: Extent) -> Bool[Tensor, "Y X"]:
    """Return which patches have their centre in a box. Raises UserError if none has."""
    low, high = torch.tensor(box, dtype=torch.float64).view(2, 2)
    points = centres(grid.rows, grid.columns, patches)
    inside = ((low <= points) & (points <= high)).all(dim=1).unflatten(0, (grid.rows, grid.columns))
    if not inside.any():
        raise UserError(
            f"no patch has its centre in the box {tuple(round(edge, 2) for edge in box)}: give a larger one"
        )
    return inside

"""What models hand to tasks: NamedTuples of tensors.

Shapes use one legend everywhere: B images, R rows (an image's captions or beams), L regions, D annotation size,
H hidden, A attention size, T turns, V words.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.attention.filterbank import Window
from vision_attn.attention.reinforce import Choice


class Caption(NamedTuple):
    """A captioner's reading of given words, teacher forced. Positions past a caption's end hold zeros."""

    log_prob: Float[Tensor, "B R T"]
    """log p(y_t | y_1..t-1, image), in nats."""
    alpha: Float[Tensor, "B R T L"] | None
    """The weight of each region at each word; None where the model has no such map."""
    region: Int[Tensor, "B R T"] | None = None
    """The one region seen at each word; None where all were."""
    choice: Choice | None = None
    """None when no draw needs an estimator of its gradient."""


class Glance(NamedTuple):
    """What a classifier says of images, after each of its T glimpses; T = 1 for one that sees everything at once."""

    log_prob: Float[Tensor, "B R T N"]
    """log p of each of N classes after each glimpse, in nats."""
    locations: Float[Tensor, "B R T 2"] | None
    """Where each glimpse was, (x, y) in [-1, 1]; None where everything is seen."""
    choice: Choice | None = None
    """Of the draws that placed the last glimpses: T - 1 of them, or T where the first was drawn too."""
    windows: Window | None = None
    """Of a filterbank's reads. T of them stand where a window has rows, so that `read(images, windows)` is what all of
    them see."""


class Drawing(NamedTuple):
    """Images drawn turn by turn: those that were shown, drawn again, with what they cost; or new ones, without."""

    canvases: tuple[Float[Tensor, "B C Y X"], ...]
    """c_t after each of T turns: the logit of each pixel being 1."""
    writes: tuple[Window | None, ...]
    """Where each turn wrote; None where everywhere."""
    reads: tuple[Window | None, ...] = ()
    """Where each turn read; None where everywhere; empty for new images."""
    log_prob: Float[Tensor, "B"] | None = None
    """log p(x | c_T) in nats."""
    kl: Float[Tensor, "B T"] | None = None
    """KL(q(z_t | x, z_1..t-1) || p(z_t)) in nats."""
    log_ratio: Float[Tensor, "B T"] | None = None
    """log p(z_t) - log q(z_t | x, z_1..t-1) of the z that were drawn, in nats, without gradient."""


def class_log_prob(scores: Float[Tensor, "*rows N"]) -> Float[Tensor, "*rows N"]:
    """log p of each class in nats: log softmax of the scores, in float32 at least. (Under autocast a CPU would round it
    to three digits.)"""
    return scores.log_softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))

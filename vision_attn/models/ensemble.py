"""Several captioners that decode as one, with the mean of their probabilities of a word."""

from collections.abc import Sequence
from math import log
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.contracts import PAD, AttentionMap, Caption, Captioner, Forced
from vision_attn.contracts.nested import Nested
from vision_attn.layers.precision import at_least_float32


class Share(NamedTuple):
    """The part of the annotation vectors (B, L, D) that one member reads: the first regions, and a slice of the
    features."""

    num_regions: int | None
    """None: all, also where their number differs from image to image."""
    features: slice


class Ensemble(Captioner):
    """p(y_t | y_1..t-1, image) = 1/N sum_i p_i(y_t | y_1..t-1, image), for N captioners with the same vocabulary.

    The memory and the state are tuples of those of the members, so decoding reorders the beams of all members together.

    members: captioners of any kind.
    shares: the part of the annotation vectors that each member reads.
    same_regions: whether the regions of all members are the same parts of the image. The map of a word is then the mean
        of the maps of those members that have one; otherwise there is no map.
    """

    members: Any
    """An `nn.ModuleList` of captioners."""

    def __init__(self, members: Sequence[Captioner], shares: Sequence[Share], *, same_regions: bool):
        super().__init__()
        self.members = nn.ModuleList(members)
        self.shares, self.same_regions = list(shares), same_regions
        self.accelerated = all(member.accelerated for member in members)
        self.steerable = same_regions and all(member.steerable for member in members)
        lengths = [member.max_length for member in members if member.max_length is not None]
        self.max_length = min(lengths, default=None)

    def leave_out_padding(self) -> None:
        for member in self.members:
            member.leave_out_padding()

    def steer(self, memory: Nested, forced: Forced) -> Nested:
        """Steer all members to the same regions."""
        return tuple(member.steer(own, forced) for member, own in zip(self.members, memory, strict=True))

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[Nested, Nested]:
        pairs = zip(self.members, self._split(regions), strict=True)
        memories, states = zip(*(member.start(own, rows) for member, own in pairs), strict=True)
        return memories, states

    def step(
        self, word: Int[Tensor, "B R"], state: Nested, memory: Nested
    ) -> tuple[Float[Tensor, "B R V"], Nested, AttentionMap | None]:
        """Return log p of each word as its logit."""
        logits, states, maps = zip(
            *(member.step(word, *own) for member, *own in zip(self.members, state, memory, strict=True)), strict=True
        )
        alpha = self._mean_map([None if attended is None else attended.alpha for attended in maps])
        log_prob = log_mean([at_least_float32(scores).log_softmax(dim=-1) for scores in logits])
        return log_prob, states, None if alpha is None else AttentionMap(alpha)

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"]) -> Caption:
        captions = [member(own, words) for member, own in zip(self.members, self._split(regions), strict=True)]
        log_prob = log_mean([caption.log_prob for caption in captions]) * (words != PAD)
        real = next((caption.real for caption in captions if caption.real is not None), None)
        return Caption(log_prob, self._mean_map([caption.alpha for caption in captions]), real=real)

    def _split(self, regions: Float[Tensor, "B L D"]) -> list[Float[Tensor, "B _ _"]]:
        """Return the annotation vectors of each member."""
        return [regions[:, : share.num_regions, share.features] for share in self.shares]

    def _mean_map(self, maps: Sequence[Tensor | None]) -> Tensor | None:
        present = [alpha for alpha in maps if alpha is not None]
        return torch.stack(present).mean(dim=0) if present and self.same_regions else None


def log_mean(log_prob: Sequence[Float[Tensor, "*shape"]]) -> Float[Tensor, "*shape"]:
    """Return the logarithm of the mean of probabilities: logsumexp - log N."""
    return torch.stack(list(log_prob)).logsumexp(dim=0) - log(len(log_prob))

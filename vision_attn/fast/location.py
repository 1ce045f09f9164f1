"""Scores by location. Those that compute a tanh of every (row, region) pair compute the pairs again in the backward
pass, so that they need not be stored."""

from collections.abc import Callable

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vision_attn.attention.location import ContentLocation, Coverage, LocalPredictive
from vision_attn.attention.scores import Score
from vision_attn.fast.additive import FastAdditive
from vision_attn.fast.time_loops import outside_loops


class FastContentLocation(ContentLocation):
    def pairs(self, *inputs: Tensor) -> Tensor:
        return recomputed(self, super().pairs, *inputs)


class FastCoverage(Coverage):
    def pairs(self, *inputs: Tensor) -> Tensor:
        return recomputed(self, super().pairs, *inputs)


class FastLocalPredictive(LocalPredictive, FastAdditive):
    """`LocalPredictive`, whose content is scored by `FastAdditive`."""


def recomputed(score: Score, pairs: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """pairs(*inputs) of a score, which the backward pass computes again."""

    def outside(*inputs: Tensor) -> Tensor:
        with outside_loops(score):
            return pairs(*inputs)

    return checkpoint(outside, *inputs, use_reentrant=False)

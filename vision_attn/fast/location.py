"""Fast versions of location-based scores: the tanh of each (row, region) pair is recomputed in the backward pass
instead of stored."""

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
    """`LocalPredictive` with the additive score of `FastAdditive`."""


def recomputed(score: Score, pairs: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return pairs(*inputs) of a score, which the backward pass recomputes."""

    def outside(*inputs: Tensor) -> Tensor:
        with outside_loops(score):
            return pairs(*inputs)

    return checkpoint(outside, *inputs, use_reentrant=False)

"""Scores by location. Those that compute a tanh of every (row, region) pair compute the pairs again in the backward
pass, so that they need not be stored."""

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vision_attn.attention.location import ContentLocation, Coverage, LocalPredictive
from vision_attn.fast.additive import FastAdditive
from vision_attn.fast.time_loops import outside_loops


class Recomputed:
    """A score whose `pairs` are computed again."""

    def pairs(self, *inputs: Tensor) -> Tensor:
        return checkpoint(self._outside, *inputs, use_reentrant=False)

    def _outside(self, *inputs: Tensor) -> Tensor:
        with outside_loops(self):
            return super().pairs(*inputs)


class FastContentLocation(Recomputed, ContentLocation):
    pass


class FastCoverage(Recomputed, Coverage):
    pass


class FastLocalPredictive(LocalPredictive, FastAdditive):
    """`LocalPredictive`, whose content is scored by `FastAdditive`."""

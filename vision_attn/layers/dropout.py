"""Dropout with a mask that neighbouring rows can share, for sampled runs of one caption."""

from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Dropout):
    """`nn.Dropout` whose masks neighbouring rows can share.

    Fast version: `fast.dropout.FastDropout`.
    """

    def forward(self, input: Tensor, *, shared: int = 1) -> Tensor:
        """Apply dropout to (..., N, H) with one mask for every `shared` neighbours along N.

        Sampled runs of the same caption are compared with each other, and independent masks would add to the variance
        of the difference.
        """
        if not self.training or not self.p:
            return input
        if shared == 1:
            return F.dropout(input, self.p)
        runs = input.unflatten(-2, (-1, shared))
        mask = F.dropout(runs.new_ones(*runs.shape[:-2], 1, runs.shape[-1]), self.p)
        return (runs * mask).flatten(-3, -2)

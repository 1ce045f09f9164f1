"""Layer normalisation before a product."""

from torch import nn


class PreNorm(nn.LayerNorm):
    """Layer normalisation whose output goes into linear layers alone.

    Fast version: `fast.norm.FastPreNorm`.
    """

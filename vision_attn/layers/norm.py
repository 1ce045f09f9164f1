"""Layer normalisation whose output goes into linear layers alone, as in a Transformer with "pre" normalisation."""

from torch import nn


class PreNorm(nn.LayerNorm):
    """Layer normalisation whose output goes into linear layers alone.

    Fast version: `fast.norm.FastPreNorm`.
    """

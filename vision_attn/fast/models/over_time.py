"""Models whose `forward` is a loop over time steps."""

from typing import Any

import torch

from vision_attn.fast.cast import casting_weights
from vision_attn.fast.time_loops import over_time


class OverTime:
    """A model whose `forward` is a loop over time steps: weights are cast once, and get one gradient."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():  # which fuses both, and cannot leave a context of another function
            return super().forward(*arguments, **options)
        with casting_weights(self), over_time(self):
            return super().forward(*arguments, **options)

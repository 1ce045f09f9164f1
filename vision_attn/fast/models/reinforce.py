"""A learned baseline whose weights are cast once a step."""

from typing import Any

from torch import Tensor

from vision_attn.attention.reinforce import Learned
from vision_attn.fast.cast import casting_weights


class FastLearned(Learned):
    def forward(self, *arguments: Any) -> Tensor:
        with casting_weights(self):
            return super().forward(*arguments)

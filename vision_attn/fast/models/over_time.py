"""Fast versions of models whose `forward` is a loop over time steps (RAM, DRAM, DRAW), and of their parts."""

from typing import Any

import torch
from torch import Tensor, nn

from vision_attn.attention.reinforce import Learned
from vision_attn.fast.cast import casting_weights
from vision_attn.fast.time_loops import InLoop, over_time
from vision_attn.fast.versions import is_cuda
from vision_attn.models.dram import DRAM, ConvolutionalGlimpse
from vision_attn.models.draw import DRAW, DRAWReader
from vision_attn.models.ram import RAM, GlimpseNetwork


class OverTime(nn.Module):
    """A model whose `forward` is a loop over time steps: weights are cast once, and get one gradient."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():  # which cannot leave two contexts by a return
            return super().forward(*arguments, **options)
        with casting_weights(self), over_time(self):
            return super().forward(*arguments, **options)


class FastRAM(OverTime, RAM):
    pass


class FastDRAM(OverTime, DRAM):
    pass


class FastDRAWReader(OverTime, DRAWReader):
    pass


class FastDRAW(OverTime, DRAW):
    pass


class Afterwards(InLoop, nn.Module):
    """A network in a loop whose inputs need no gradient. On a GPU, the gradients of its weights are computed after all
    time steps."""

    def forward(self, *inputs: Tensor) -> Tensor:
        loop, weights = self.loop, self.parameters()
        if loop is None or torch.compiler.is_compiling() or not torch.is_grad_enabled() or not is_cuda(inputs[0]):
            return super().forward(*inputs)
        if any(input.requires_grad for input in inputs) or not any(weight.requires_grad for weight in weights):
            return super().forward(*inputs)
        return loop.network(self, self.plain, *inputs)

    def plain(self, *inputs: Tensor) -> Tensor:
        return super().forward(*inputs)


class FastGlimpseNetwork(Afterwards, GlimpseNetwork):
    pass


class FastConvolutionalGlimpse(Afterwards, ConvolutionalGlimpse):
    pass


class FastLearned(Learned):
    """A learned baseline, which reads the states of all time steps, with weights that are cast once."""

    def forward(self, *arguments: Any) -> Tensor:
        with casting_weights(self):
            return super().forward(*arguments)

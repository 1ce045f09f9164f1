"""RAM, DRAM and their glimpse networks with loops that run faster."""

import torch
from torch import Tensor

from vision_attn.fast.choice import is_cuda
from vision_attn.fast.models.over_time import OverTime
from vision_attn.fast.time_loops import InLoop
from vision_attn.models.dram import DRAM, ConvolutionalGlimpse
from vision_attn.models.ram import RAM, GlimpseNetwork


class FastRAM(OverTime, RAM):
    pass


class FastDRAM(OverTime, DRAM):
    pass


class Afterwards(InLoop):
    """A network in a loop whose inputs need no gradient: on a GPU its weights get theirs after all time steps."""

    def forward(self, *inputs: Tensor) -> Tensor:
        loop, weights = self.loop, self.parameters()
        if loop is None or torch.compiler.is_compiling() or not torch.is_grad_enabled() or not is_cuda(inputs[0]):
            return super().forward(*inputs)
        if any(input.requires_grad for input in inputs) or not any(weight.requires_grad for weight in weights):
            return super().forward(*inputs)
        return loop.network(self, *inputs)

    def plain(self, *inputs: Tensor) -> Tensor:
        return super().forward(*inputs)


class FastGlimpseNetwork(Afterwards, GlimpseNetwork):
    pass


class FastConvolutionalGlimpse(Afterwards, ConvolutionalGlimpse):
    pass

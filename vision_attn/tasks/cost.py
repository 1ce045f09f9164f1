"""Measure the computational cost of a model: count the multiply-adds of its layers while it runs."""

from contextlib import ExitStack
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vision_attn.attention.glimpse import Retina, Uncut
from vision_attn.attention.images import Images


@torch.no_grad()
def multiply_adds(model: nn.Module, images: Float[Tensor, "B C Y X"] | Images, **options: Any) -> int:
    """Count the multiply-adds per image of `model(images, **options)`, in linear and convolutional layers, in the
    products of attention, in the retina and in a filterbank.

    Elementwise operations are not counted: biases, rectifiers, the gates of an LSTM. The retina counts four for each
    interpolated value of a patch, and three for each pixel of the wider scales of the pyramid, which are averages of
    four pixels. If glimpses are read from crops, each crop has its own pyramid. A filterbank counts its batched matrix
    products, in which each read sees all pixels.
    """
    total = 0
    pyramids: set[int] = set()

    def linear(layer: nn.Linear, _: tuple, output: Tensor) -> None:
        nonlocal total
        total += output.numel() * layer.in_features

    def convolution(layer: nn.Conv2d, _: tuple, output: Tensor) -> None:
        nonlocal total
        total += output.numel() * prod(layer.weight.shape[1:])

    def retina(layer: Retina, inputs: tuple, output: Tensor) -> None:
        nonlocal total
        total += 4 * output.numel()
        if isinstance(inputs[0], Uncut):
            crops = output.numel() // (layer.num_scales * layer.size**2)  # of one channel
            total += 3 * (layer.num_scales - 1) * crops * (layer.reach + 1) ** 2
            return
        averages = inputs[0].averages
        if id(averages) not in pyramids:
            pyramids.add(id(averages))
            total += 3 * averages[1:].numel()

    count: dict[type[nn.Module], Any] = {nn.Linear: linear, nn.Conv2d: convolution, Retina: retina}
    # Attention as plain products: they are counted as such.
    with ExitStack() as hooks, sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as products:
        for layer in model.modules():
            for layer_type, hook in count.items():
                if isinstance(layer, layer_type):
                    hooks.enter_context(layer.register_forward_hook(hook))
        model(images, **options)
    total += products.flop_counts["Global"][torch.ops.aten.bmm] // 2
    return total // len(images)

"""EfficientNet-Lite: EfficientNet (Tan and Le 2019) with ReLU6 and no squeeze-and-excitation, padded as in TensorFlow.

torchvision has no such network. Names of layers are those of timm, so its files of weights fit. The methods `forward`
have no types, because they are traced with stand-ins for tensors.
"""

import re
from collections.abc import Mapping
from math import ceil
from typing import TypeVar

from torch import nn
from torch.nn import functional as F

SCALES = {
    "efficientnet_lite0": (1.0, 1.0),
    "efficientnet_lite1": (1.0, 1.1),
    "efficientnet_lite2": (1.1, 1.2),
    "efficientnet_lite3": (1.2, 1.4),
    "efficientnet_lite4": (1.4, 1.8),
}
"""The factors on width and depth, by the name of the network."""
STAGES = ((3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3), (5, 1, 6, 112, 3), (5, 2, 6, 192, 4),
          (3, 1, 6, 320, 1))  # fmt: skip
"""Kernel size, stride, expansion, channels and number of blocks of each stage, before they are scaled."""
Value = TypeVar("Value")


class SamePadded(nn.Module):
    """Pads maps for a convolution of stride 2 so that (Y, X) becomes (Y / 2, X / 2), rounded up. As in TensorFlow, an
    odd number of zeros has one more below and to the right."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, maps):
        high, wide = (self.kernel - 2 + maps.shape[dim] % 2 for dim in (2, 3))
        return F.pad(maps, (wide // 2, wide - wide // 2, high // 2, high - high // 2))


class InvertedResidual(nn.Module):
    """An inverted residual block: expand the channels, filter each separately, project them. With `expansion` 1, there
    is no first convolution."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner, self.residual = inputs * expansion, stride == 1 and inputs == outputs
        self.expands = expansion > 1
        names = ("conv_pw", "conv_dw", "conv_pwl") if self.expands else ("conv_dw", "conv_pw")
        filters = nn.Conv2d(
            inner, inner, kernel, stride=stride, padding=kernel // 2 if stride == 1 else 0, groups=inner, bias=False
        )
        layers = [filters, nn.Conv2d(inner, outputs, 1, bias=False)]
        if self.expands:
            layers.insert(0, nn.Conv2d(inputs, inner, 1, bias=False))
        for number, (name, layer) in enumerate(zip(names, layers, strict=True), start=1):
            self.add_module(name, layer)
            self.add_module(f"bn{number}", nn.BatchNorm2d(layer.out_channels, eps=1e-3))
        self.pad = nn.Identity() if stride == 1 else SamePadded(kernel)
        self.act = nn.ReLU6()

    def forward(self, maps):
        if self.expands:
            inner = self.act(self.bn1(self.conv_pw(maps)))
            inner = self.act(self.bn2(self.conv_dw(self.pad(inner))))
            output = self.bn3(self.conv_pwl(inner))
        else:
            output = self.bn2(self.conv_pw(self.act(self.bn1(self.conv_dw(self.pad(maps))))))
        return maps + output if self.residual else output


class EfficientNetLite(nn.Module):
    """Images (B, 3, Y, X), with colours in [-1, 1], -> maps (B, D, Y / 32, X / 32): the blocks of EfficientNet-Lite,
    without its head. D is 352 for `efficientnet_lite2`.

    Width and depth are scaled (Tan and Le 2019, section 3), except the stem and the depth of the first and last stage.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        width, depth = SCALES[name]
        self.pad, self.act = SamePadded(3), nn.ReLU6()
        self.conv_stem = nn.Conv2d(3, 32, 3, stride=2, bias=False)
        self.bn1 = nn.BatchNorm2d(32, eps=1e-3)
        stages, inputs = [], 32
        for number, (kernel, stride, expansion, channels, count) in enumerate(STAGES):
            outputs, blocks = _multiple_of_8(channels * width), list[InvertedResidual]()
            for _ in range(count if number in (0, len(STAGES) - 1) else ceil(depth * count)):
                shape = {"kernel": kernel, "stride": 1 if blocks else stride, "expansion": expansion}
                blocks.append(InvertedResidual(inputs, outputs, **shape))
                inputs = outputs
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)

    def forward(self, images):
        return self.blocks(self.act(self.bn1(self.conv_stem(self.pad(images)))))


def _multiple_of_8(channels: float) -> int:
    """Return the nearest multiple of 8 that is not below 90% of `channels`."""
    nearest = int(channels + 4) // 8 * 8
    return nearest if nearest >= 0.9 * channels else nearest + 8


def named(state: Mapping[str, Value]) -> dict[str, Value]:
    """Rename the keys of a state dict of `nn.Sequential(conv_stem, bn1, *blocks)` to those of the network. Other state
    dicts stay as they are."""
    stem = {"0": "conv_stem", "1": "bn1"}

    def name_of(key: str) -> str:
        number, _, rest = key.partition(".")
        return f"{stem.get(number) or f'blocks.{int(number) - 2}'}.{rest}" if re.fullmatch(r"\d+", number) else key

    return {name_of(key): tensor for key, tensor in state.items()}

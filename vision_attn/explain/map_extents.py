"""Find where the maps of a model of another library lie on a picture, from receptive fields and the crop of its
processor."""

import math
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.explain.relevance import activation_of, channels_first
from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.geometry.receptive_fields import Fields

RAMP = 512
"""The side, in pixels, of the pictures that show which part of a picture reaches a model."""
NOTHING = 0.03
"""The largest distance from the border that may come from resizing and rounding."""
_FIELDS: WeakKeyDictionary[nn.Module, Fields] = WeakKeyDictionary()


class Reach(NamedTuple):
    """How the pixels of a square picture reach a model."""

    inputs: dict[str, Tensor]
    """The inputs of a black picture."""
    name: str
    """The name of the input that is the image, (1, 3, Y, X)."""
    white: Float[Tensor, "1 3 Y X"]
    """The model's input for a white picture."""
    extent: Extent
    """The part of the picture that the model sees: less than the whole if the processor crops."""

    @property
    def size(self) -> tuple[int, int]:
        return self.white.shape[2], self.white.shape[3]

    def image(self, pixels: UInt8[Tensor, "3 Y X"]) -> dict[str, Tensor]:
        """Return the model's inputs for an image of the size that it takes."""
        black = self.inputs[self.name]
        return self.inputs | {self.name: black + (self.white - black) * pixels.to(black.device) / 255}


def extent_of_map(model: OpenedModel, others: dict[str, Tensor]) -> Extent:
    """Measure where the cells of Grad-CAM's map lie on a picture.

    others: inputs besides the image."""

    def map_of(inputs: dict[str, Tensor]) -> Float[Tensor, "1 C Y X"]:
        with activation_of(model.module) as activation:
            model.module(**inputs, **others)
        return channels_first(activation.held())

    return _measured("map", model, map_of)


def extent_of_tokens(
    model: OpenedModel,
    layer: nn.Conv2d | None,
    call: Callable[[dict[str, Tensor]], object],
    size: tuple[int, int] = (RAMP, RAMP),
) -> Extent:
    """Return where patches lie on a picture. Patches that `layer` cuts out of the image, as in a ViT, need no
    measurement; patches of a convolutional stem (LeViT, PVT) do.

    layer: the convolution that makes the patches; None if it is not known.
    call: runs this convolution on the inputs of a picture.
    size: width and height of the picture, whose shape decides how much is cropped away.
    """
    if layer is None or (layer.in_channels == 3 and layer.kernel_size == layer.stride):
        return extent_of_picture(model, size)

    name = next(name for name, module in model.module.named_modules() if module is layer)

    def map_of(inputs: dict[str, Tensor]) -> Float[Tensor, "1 C Y X"]:
        with activation_of(model.module, name) as held:
            call(inputs)
        return held.held()

    return _measured(layer, model, map_of, size)


def extent_of_picture(model: OpenedModel, size: tuple[int, int] = (RAMP, RAMP)) -> Extent:
    """Return the part of a picture that reaches a model; the whole picture for a model that takes it in several pieces.

    size: width and height of the picture.
    """
    reach = reach_of(model, size)
    return WHOLE if reach is None else reach.extent


def reach_of(model: OpenedModel, size: tuple[int, int] = (RAMP, RAMP)) -> Reach | None:
    """Measure how a picture reaches a model, with pictures whose brightness grows to the right and to the bottom. None
    for a model that takes a picture in several pieces.

    size: width and height of the pictures.
    """
    columns, rows = (max(8, round(RAMP * side / max(size))) for side in size)
    right = torch.linspace(0, 255, columns).round().byte().expand(3, rows, columns)
    down = torch.linspace(0, 255, rows).round().byte()[:, None].expand(3, rows, columns)
    levels = torch.zeros_like(right), torch.full_like(right, 255), right, down
    taken = [model.inputs(Image.fromarray(level.permute(1, 2, 0).contiguous().numpy())) for level in levels]
    name = next((name for name, value in taken[0].items() if value.dim() == 4 and value.shape[:2] == (1, 3)), None)
    if name is None:
        return None
    black, white, right, down = (inputs[name].float() for inputs in taken)
    span = torch.where(white == black, 1, white - black)
    x0, x1 = _ends(((right - black) / span).mean(dim=(0, 1, 2)).cpu())
    y0, y1 = _ends(((down - black) / span).mean(dim=(0, 1, 3)).cpu())
    return Reach(taken[0], name, white, Extent(x0, y0, x1, y1))


def _measured(
    key: object, model: OpenedModel, map_of: Callable[[dict[str, Tensor]], Tensor], size: tuple[int, int] = (RAMP, RAMP)
) -> Extent:
    """Measure where the cells of a map lie on a picture, once for each `key`."""
    reach = reach_of(model, size)
    if reach is None:
        return WHOLE

    def maps(images: UInt8[Tensor, "B 3 Y X"]) -> Float[Tensor, "B C rows columns"]:
        return torch.cat([map_of(reach.image(image)) for image in images])

    fields = _FIELDS.setdefault(model.module, Fields())
    return fields.of(key, model.module, maps, reach.size)[0].within(reach.extent)


def _ends(values: Float[Tensor, "pixels"]) -> tuple[float, float]:
    """Return both ends of a line of pixels in [-1, 1] of the original line. Ends within `NOTHING` of the border count
    as the border.

    values: the original place of each pixel in [0, 1]; a line is fitted to the middle ones.
    """
    number = len(values)
    middle = slice(number // 5, number - number // 5)
    at = (torch.arange(number) + 0.5)[middle] / number
    values = values[middle]
    slope = float(((at - at.mean()) * values).sum() / (at - at.mean()).square().sum().clamp(min=1e-6))
    start = float(values.mean()) - slope * float(at.mean())
    ends = 2 * start - 1, 2 * (start + slope) - 1
    low, high = (math.copysign(1, end) if abs(abs(end) - 1) < NOTHING else round(end, 2) for end in ends)
    return low, high

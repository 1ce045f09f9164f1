"""Resize batches of decoded photographs to squares, by torch, where they are needed: on a GPU or on the CPU."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

RESIZING = "torch-bicubic"
"""Part of what a cache of annotation vectors depends on: another way of resizing has another name. Before it had
one, Pillow resized photographs, and the border of a centre square mixed with the pixels around it."""


class Group(NamedTuple):
    """The photographs of a batch that have one size, or its films."""

    places: list[int]
    """Which of the batch they are."""
    pixels: UInt8[Tensor, "N *F _ _ 3"]


def grouped(pictures: Sequence[UInt8[np.ndarray, "*F _ _ 3"]]) -> list[Group]:
    """Put the decoded photographs of a batch together by size. `torch.interpolate` takes those of one size at once."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place, picture in enumerate(pictures):
        places.setdefault(picture.shape, []).append(place)
    return [Group(each, torch.from_numpy(np.stack([pictures[place] for place in each]))) for each in places.values()]


def squares(groups: Sequence[Group], resolution: int, device: torch.device) -> UInt8[Tensor, "B *F 3 S S"]:
    """The batch that `grouped` has divided, resized on `device`; photographs have their channels last in memory."""
    parts = [resized(group.pixels.to(device, non_blocking=True), resolution) for group in groups]
    if len(parts) == 1:
        return parts[0]
    batch = torch.empty(sum(map(len, parts)), *parts[0].movedim(-3, -1).shape[1:], dtype=torch.uint8, device=device)
    for (places, _), part in zip(groups, parts, strict=True):
        batch.index_copy_(0, there(places, device), part.movedim(-3, -1))
    return batch.movedim(-1, -3)


def resized(pixels: UInt8[Tensor, "N *F h w 3"], resolution: int) -> UInt8[Tensor, "N *F 3 S S"]:
    """Resize pixels to squares (bicubic, antialiased), as Pillow does: on a CPU in the same integers, elsewhere within
    one level of 255."""
    images = pixels.flatten(0, -4).movedim(-1, -3)  # channels last in memory
    if images.shape[-2:] != (resolution, resolution):
        resize = _in_integers if images.device.type == "cpu" else in_floats
        images = resize(images, resolution)
    return images.unflatten(0, pixels.shape[:-3])


def _in_integers(images: UInt8[Tensor, "N 3 h w"], resolution: int) -> UInt8[Tensor, "N 3 S S"]:
    return F.interpolate(images, (resolution, resolution), mode="bicubic", antialias=True)


def in_floats(images: UInt8[Tensor, "N 3 h w"], resolution: int) -> UInt8[Tensor, "N 3 S S"]:
    """For devices whose kernels take no integers. Pillow resizes rows, then columns, and rounds half up each time."""
    found = images.float()
    for size in ((images.shape[-2], resolution), (resolution, resolution)):
        found = F.interpolate(found, size, mode="bicubic", antialias=True).add_(0.5).floor_().clamp_(0, 255)
    return found.to(torch.uint8, memory_format=torch.channels_last)


def there(numbers: list[int], device: torch.device) -> Tensor:
    """Numbers as a tensor on the device, copied without waiting for it."""
    tensor = torch.tensor(numbers, dtype=torch.long)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

"""Resize batches of decoded photographs to squares by torch, on the CPU or on the GPU that needs them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

RESIZING = "torch-bicubic"
"""The name of this way of resizing, stored in caches of annotation vectors. Older caches have no name: for them, Pillow
resized photographs, and the border of a centre square mixed with the pixels around it."""


class SameSize(NamedTuple):
    """Photographs (or films) of a batch that have the same size."""

    places: list[int]
    """Their positions in the batch."""
    pixels: UInt8[Tensor, "N *F _ _ 3"]


def grouped(pictures: Sequence[UInt8[np.ndarray, "*F _ _ 3"]]) -> list[SameSize]:
    """Group the decoded photographs of a batch by size, because `F.interpolate` takes photographs of one size at
    once."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place, picture in enumerate(pictures):
        places.setdefault(picture.shape, []).append(place)
    return [
        SameSize(members, torch.from_numpy(np.stack([pictures[place] for place in members])))
        for members in places.values()
    ]


def squares(groups: Sequence[SameSize], resolution: int, device: torch.device) -> UInt8[Tensor, "B *F 3 S S"]:
    """Resize the groups of a batch on `device`, and return the batch. Photographs have their channels last in
    memory."""
    squared = [resized(group.pixels.to(device, non_blocking=True), resolution) for group in groups]
    if len(squared) == 1:
        return squared[0]
    batch = torch.empty(sum(map(len, squared)), *squared[0].movedim(-3, -1).shape[1:], dtype=torch.uint8, device=device)
    for (places, _), images in zip(groups, squared, strict=True):
        batch.index_copy_(0, as_index(places, device), images.movedim(-3, -1))
    return batch.movedim(-1, -3)


def resized(pixels: UInt8[Tensor, "N *F h w 3"], resolution: int) -> UInt8[Tensor, "N *F 3 S S"]:
    """Resize pixels to squares (bicubic, antialiased) as Pillow does: on a CPU with the same integers, elsewhere to
    within one level of 255."""
    images = pixels.flatten(0, -4).movedim(-1, -3)  # channels last in memory
    if images.shape[-2:] != (resolution, resolution):
        resize = _in_integers if images.device.type == "cpu" else in_floats
        images = resize(images, resolution)
    return images.unflatten(0, pixels.shape[:-3])


def _in_integers(images: UInt8[Tensor, "N 3 h w"], resolution: int) -> UInt8[Tensor, "N 3 S S"]:
    return F.interpolate(images, (resolution, resolution), mode="bicubic", antialias=True)


def in_floats(images: UInt8[Tensor, "N 3 h w"], resolution: int) -> UInt8[Tensor, "N 3 S S"]:
    """Resize in floats, for devices without kernels for integers. Like Pillow, resizes rows, then columns, and rounds
    half up each time."""
    result = images.float()
    for size in ((images.shape[-2], resolution), (resolution, resolution)):
        result = F.interpolate(result, size, mode="bicubic", antialias=True).add_(0.5).floor_().clamp_(0, 255)
    return result.to(torch.uint8, memory_format=torch.channels_last)


def as_index(numbers: list[int], device: torch.device) -> Tensor:
    """Return numbers as a tensor on the device, copied without synchronisation."""
    tensor = torch.tensor(numbers, dtype=torch.long)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

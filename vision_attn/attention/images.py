"""Images of any size, read in crops. Models that look through a retina take them in place of a tensor of pixels.

Only the pixels of the crops are read: an image may be a memory-mapped file, a photograph, or a scene that is drawn only
where it is read. The images of a batch may differ in size.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vision_attn.system.errors import UserError

SAMPLES = 16
"""The most rows and columns of an image's pixels that are read for each pixel of an overview."""
LUMA = np.array([19595, 38470, 7471], np.uint32)
"""Weights of red, green and blue in grey, times 2^16 (ITU-R 601-2), as in Pillow."""


@runtime_checkable
class Sliced(Protocol):
    """The pixels of one image: (Y, X) or (Y, X, C) of uint8, read by slices of rows and columns as in numpy.

    An array of numpy, also memory-mapped, is one. So are arrays of packages for tiled files, such as zarr and h5py.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, place: tuple[slice, slice]) -> Any: ...


class Images:
    """B images of any sizes. Crops are converted to `channels` (1 or 3), the number that the model was trained on.

    Intensities are from 0 to 1, and 0 outside of an image. Has the methods of a tensor (B, C, Y, X) that models need:
    `len`, slices, `to`, `new_zeros` and `new_empty`. Raises UserError for pixels that are no image.
    """

    def __init__(self, pixels: Sequence[Sliced], channels: int, device: torch.device | str = "cpu") -> None:
        if channels not in (1, 3):
            raise UserError(f"images have 1 or 3 channels, not {channels}")
        for array in pixels:
            shape, dtype = tuple(array.shape), getattr(array, "dtype", np.uint8)
            if len(shape) not in (2, 3) or 0 in shape or (*shape, 1)[2] not in (1, 3) or dtype != np.uint8:
                raise UserError(f"an image is (Y, X), (Y, X, 1) or (Y, X, 3) of uint8, this one is {shape} of {dtype}")
        self.pixels, self.channels, self.device = list(pixels), channels, torch.device(device)
        self.extents = torch.tensor([array.shape[1::-1] for array in self.pixels]).view(-1, 2)
        """(B, 2): width and height of each image, on the CPU."""
        self._overviews: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int]:
        """(B,): like the shape of a tensor of images, it begins with the number of images."""
        return (len(self),)

    def __getitem__(self, batch: slice) -> "Images":
        return Images(self.pixels[batch], self.channels, self.device)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Images":
        """Return the same images, whose crops are moved to `device`."""
        return Images(self.pixels, self.channels, device)

    def new_zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, device=self.device)

    def new_empty(self, *shape: int) -> Tensor:
        return torch.empty(*shape, device=self.device)

    def crops(self, corners: Int[Tensor, "B R 2"], side: int) -> Float[Tensor, "B R C {side} {side}"]:
        """Read squares of `side` pixels whose top left pixels are `corners` (x, y); 0 outside of the image."""
        rows = corners.shape[1]
        read = np.zeros((len(self), rows, side, side, self.channels), np.uint8)
        for array, places, crops in zip(self.pixels, corners.tolist(), read, strict=True):
            height, width = array.shape[:2]
            for (x, y), crop in zip(places, crops, strict=True):
                top, left = max(y, 0), max(x, 0)
                bottom, right = min(y + side, height), min(x + side, width)
                if top < bottom and left < right:
                    inside = array[top:bottom, left:right]
                    crop[top - y : bottom - y, left - x : right - x] = converted(inside, self.channels)
        return scaled(torch.from_numpy(read).to(self.device)).permute(0, 1, 4, 2, 3)

    def sampled(self, most: int) -> list[UInt8[Tensor, "C y x"]]:
        """Return every s-th pixel of each image, with the smallest s for at most `most` rows and columns."""
        samples = []
        for array in self.pixels:
            step = ceil(max(array.shape[:2]) / most)
            down, across = (slice(min(step // 2, length - 1), length, step) for length in array.shape[:2])
            pixels = converted(array[down, across], self.channels)
            samples.append(torch.from_numpy(pixels.copy()).permute(2, 0, 1))
        return samples

    def overview(self, side: int) -> Float[Tensor, "B C {side} {side}"]:
        """Downsample the images to side x side pixels. The result is kept for later calls.

        Each pixel is the mean of all pixels of its cell or, in images wider or higher than `SAMPLES` * side, of at most
        `SAMPLES` x `SAMPLES` evenly spaced ones.
        """
        if side not in self._overviews:
            samples = (scaled(image.to(self.device)) for image in self.sampled(SAMPLES * side))
            self._overviews[side] = torch.cat([F.adaptive_avg_pool2d(image[None], side) for image in samples])
        return self._overviews[side]


def overview(images: Float[Tensor, "B C Y X"] | Images, side: int) -> Float[Tensor, "B C {side} {side}"]:
    """Downsample images to side x side pixels by averaging (see `Images.overview` for large images)."""
    return images.overview(side) if isinstance(images, Images) else F.adaptive_avg_pool2d(images, side)


def converted(pixels: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """Convert pixels (y, x) or (y, x, c) to grey (y, x, 1) or to colours (y, x, 3), where grey has three equal
    channels."""
    pixels = np.asarray(pixels)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    return ((pixels @ LUMA + 2**15) >> 16).astype(np.uint8)[..., None]


def luma(images: Float[Tensor, "B 3 Y X"]) -> Float[Tensor, "B 1 Y X"]:
    """Convert intensities of colours to grey, with the weights of `converted`."""
    weights = torch.tensor(LUMA / 2**16, dtype=images.dtype, device=images.device)
    return (images * weights[:, None, None]).sum(dim=1, keepdim=True).clamp(max=1)


def scaled(pixels: UInt8[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Convert pixels from 0 to 255 to intensities from 0 to 1; 255 gives exactly 1. Multiplies, because devices divide
    differently."""
    return pixels.float().mul_(1 / 255)

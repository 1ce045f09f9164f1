"""Cluttered MNIST on canvases too large for memory: only the pixels that a model reads are drawn."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from vision_attn.attention.images import Images
from vision_attn.data.digits.clutter import Clutter, Placement
from vision_attn.data.digits.mnist import NUM_VALIDATION, SIDE, DigitBatch
from vision_attn.system.checks import check_range
from vision_attn.task import Task


class LargeClutter(Clutter):
    """Canvases with one digit and `pieces` pieces of other digits, with the same pixels as those of `Clutter`.

    A canvas is drawn only where a model reads it, so its size costs neither memory nor time. Models must take `Images`,
    as RAM does. The digits stay on the CPU. Arguments are those of `Clutter`; the largest `canvas` is 1,000,000.
    """

    most_pixels = 2**63

    def __init__(
        self,
        *,
        canvas: int = 2000,
        pieces: int = 8,
        piece: int = 8,
        batch_size: int = 64,
        epoch_images: int = 12800,
        val_images: int = NUM_VALIDATION,
        test_images: int = 10000,
        folder: str = "mnist",
        download: bool = False,
    ) -> None:
        check_range("LargeClutter", SIDE, 10**6, canvas=canvas)
        super().__init__(
            canvas=canvas,
            pieces=pieces,
            piece=piece,
            batch_size=batch_size,
            epoch_images=epoch_images,
            val_images=val_images,
            test_images=test_images,
            folder=folder,
            download=download,
        )
        self.image_shape = (1, 0, 0)

    def prepare(self, task: Task) -> None:
        """Read the digits."""
        _ = self.digits

    def batch(self, name: str, samples: Int[Tensor, "B columns"], ids: Sequence[int] = ()) -> DigitBatch:
        digits, placement = self.digits[name], Placement.of(samples)
        images, corner = digits.images.numpy(), placement.corner
        canvases = []
        for digit, at, sources, crops, places in zip(*(tensor.tolist() for tensor in placement), strict=True):
            patches = [(at, images[digit])]
            for source, (x, y), place in zip(sources, crops, places, strict=True):
                patches.append((place, images[source, y : y + self.piece, x : x + self.piece]))
            canvases.append(Scattered(self.canvas, patches))
        return DigitBatch(
            images=Images(canvases, 1),
            labels=digits.labels.index_select(0, placement.digit),
            boxes=torch.cat([corner, corner + SIDE], dim=1) * (2 / self.canvas) - 1,
        )


class Scattered:
    """The pixels (Y, X) of a square canvas with a few patches on 0, drawn where it is sliced.

    patches: the top left corner (x, y) and the pixels (y, x) of each patch. Overlapping patches are added, up to 255.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, side: int, patches: Sequence[tuple[Sequence[int], NDArray[np.uint8]]]) -> None:
        self.shape, self.patches = (side, side), patches

    def __getitem__(self, place: tuple[slice, slice]) -> NDArray[np.uint8]:
        pixel_rows, pixel_columns = (range(side)[wanted] for wanted, side in zip(place, self.shape, strict=True))
        pixels = np.zeros((len(pixel_rows), len(pixel_columns)), np.uint16)
        for (x, y), patch in self.patches:
            down, up = overlap(pixel_rows, y, patch.shape[0])
            across, along = overlap(pixel_columns, x, patch.shape[1])
            pixels[down, across] += patch[up, along]
        return pixels.clip(max=255).astype(np.uint8)


def overlap(places: range, start: int, length: int) -> tuple[slice, slice]:
    """Return the part of `places` from `start` to `start + length`, as a slice of `places` and as a slice counted from
    `start`."""
    first = min(len(places), max(0, -((places.start - start) // places.step)))
    last = max(first, min(len(places), -((places.start - start - length) // places.step)))
    at = places.start + first * places.step - start
    return slice(first, last), slice(at, at + (last - first) * places.step, places.step)

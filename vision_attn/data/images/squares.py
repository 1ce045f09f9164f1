"""Read photographs as inputs of encoders: upright, in RGB, the centre square or the whole photograph resized to a
square.

Pillow decodes in threads; torch resizes a batch at a time (`resizing`).
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from vision_attn.contracts import Fit
from vision_attn.data.images.open import Encoded, decoded_image, open_photograph
from vision_attn.data.images.resizing import resized
from vision_attn.geometry.extents import Extent
from vision_attn.system.machine import cores

AS_DECODED = 1 << 19
"""If an encoder sees at most this number of pixels of a photograph, they are resized together with the batch, not
before."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def read_image(
    path: str | Path | Encoded, resolution: int, fit: Fit = "centre"
) -> UInt8[Tensor, "3 {resolution} {resolution}"]:
    """Read the centre square of a photograph, or all of it, resized to `resolution` (see `resized`).

    Raises UserError naming the file if it cannot be read.
    """
    return square_of(read_seen(path, resolution, fit), resolution)


def encoder_input(
    image: Image.Image, resolution: int, fit: Fit = "centre"
) -> UInt8[Tensor, "3 {resolution} {resolution}"]:
    """Return the centre square of an RGB image, or all of it, resized to `resolution` (see `resized`)."""
    return square_of(seen_pixels(image, resolution, fit), resolution)


def square_of(pixels: UInt8[np.ndarray, "h w 3"], resolution: int) -> UInt8[Tensor, "3 S S"]:
    """Resize decoded pixels to a square, with the channels first in memory."""
    return resized(torch.from_numpy(pixels)[None], resolution)[0].contiguous()


def read_seen(path: str | Path | Encoded, resolution: int, fit: Fit) -> UInt8[np.ndarray, "h w 3"]:
    """Decode the part of a photograph that an encoder sees; see `seen_pixels`. Raises UserError naming the file if it
    cannot be read.

    Does not call torch, whose threads would compete with the decoding threads.
    """
    with decoded_image(path, at_least=2 * resolution) as image:
        return seen_pixels(image, resolution, fit)


def seen_pixels(image: Image.Image, resolution: int, fit: Fit) -> UInt8[np.ndarray, "h w 3"]:
    """Return the pixels of the part of an RGB image that an encoder sees, in their own size. Many pixels are resized at
    once, in the same way as later, because batches wait in memory."""
    seen = seen_box(*image.size, fit)
    if seen != (0, 0, *image.size):
        image = image.crop(seen)
    if image.width * image.height > max(4 * resolution**2, AS_DECODED):
        image = image.resize((resolution, resolution), Image.Resampling.BICUBIC)
    return np.array(image)


def open_seen(path: str | Path | Encoded, fit: Fit, at_least: int | None = None) -> Image.Image:
    """Open the part of a photograph that an encoder sees, in its own shape. See `open_photograph`."""
    return seen_part(open_photograph(path, at_least), fit)


def seen_part(photograph: Image.Image, fit: Fit) -> Image.Image:
    """Return the part of a photograph that an encoder sees, in its own shape."""
    return photograph.crop(seen_box(*photograph.size, fit))


def seen_box(width: int, height: int, fit: Fit) -> tuple[int, int, int, int]:
    """Return the box (left, top, right, bottom) of the part of an image that an encoder sees, in pixels."""
    return centre_square(width, height) if fit == "centre" else (0, 0, width, height)


def seen_extent(width: int, height: int, fit: Fit) -> Extent:
    """Return the part of an image that an encoder sees, in [-1, 1] over the image."""
    left, top, right, bottom = seen_box(width, height, fit)
    return Extent(2 * left / width - 1, 2 * top / height - 1, 2 * right / width - 1, 2 * bottom / height - 1)


def centre_square(width: int, height: int) -> tuple[int, int, int, int]:
    """Return the box (left, top, right, bottom) of the centre square of an image, in whole pixels."""
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def in_threads(
    make: Callable[[Item], Result], items: Iterable[Item], *, ahead: int = 64, threads: int | None = None
) -> Iterator[Result]:
    """Yield `make(item)` for each item, in order, computed in threads. Items are taken from `items` in the caller's
    thread.

    ahead: how many items may be computed before they are asked for.
    threads: the number of threads; None: one per core.

    Threads suffice, because Pillow releases the GIL when it decodes.
    """
    with ThreadPoolExecutor(threads or cores()) as pool:
        waiting = []
        try:
            for item in items:
                waiting.append(pool.submit(make, item))
                if len(waiting) > ahead:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()

"""Read photographs as encoder inputs: upright, in RGB, the centre or the whole of it resized to a square."""

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
from vision_attn.data.images.open import Encoded, decoded, open_photograph
from vision_attn.geometry.extents import Extent
from vision_attn.system.machine import cores

Item = TypeVar("Item")
Result = TypeVar("Result")


def read_image(
    path: str | Path | Encoded, resolution: int, fit: Fit = "centre"
) -> UInt8[Tensor, "3 {resolution} {resolution}"]:
    """Read an encoder input: the centre square of a photograph, or the whole of it, resized to `resolution` (bicubic,
    antialiased).

    Raises UserError naming the file if it cannot be read.
    """
    with decoded(path, at_least=2 * resolution) as image:
        return encoder_input(image, resolution, fit)


def encoder_input(
    image: Image.Image, resolution: int, fit: Fit = "centre"
) -> UInt8[Tensor, "3 {resolution} {resolution}"]:
    """The centre square of an RGB image, or the whole of it, resized to `resolution` (bicubic, antialiased)."""
    square = image.resize((resolution, resolution), Image.Resampling.BICUBIC, box=seen_box(*image.size, fit))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


def open_seen(path: str | Path | Encoded, fit: Fit, at_least: int | None = None) -> Image.Image:
    """Open the part of a photograph that an encoder sees, in its own shape. See `open_photograph`."""
    return seen_part(open_photograph(path, at_least), fit)


def seen_part(photograph: Image.Image, fit: Fit) -> Image.Image:
    """Return the part of a photograph that an encoder sees, in its own shape."""
    x0, y0, x1, y1 = (round(edge) for edge in seen_box(*photograph.size, fit))
    return photograph.crop((x0, y0, x1, y1))


def seen_box(width: int, height: int, fit: Fit) -> tuple[float, float, float, float]:
    """Return the box (left, top, right, bottom) of the part of an image that an encoder sees, in pixels."""
    return centre_square(width, height) if fit == "centre" else (0.0, 0.0, float(width), float(height))


def seen_extent(width: int, height: int, fit: Fit) -> Extent:
    """The same in coordinates in [-1, 1] over the image."""
    left, top, right, bottom = seen_box(width, height, fit)
    return Extent(2 * left / width - 1, 2 * top / height - 1, 2 * right / width - 1, 2 * bottom / height - 1)


def centre_square(width: int, height: int) -> tuple[float, float, float, float]:
    """Return the box (left, top, right, bottom) of the centre square of an image, in pixels."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def in_threads(make: Callable[[Item], Result], items: Iterable[Item], *, ahead: int = 64) -> Iterator[Result]:
    """Yield `make(item)` for each item, in order, computed by one thread per core, at most `ahead` items early.

    Threads suffice, because Pillow releases the GIL when it decodes and resizes.
    """
    with ThreadPoolExecutor(cores()) as pool:
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

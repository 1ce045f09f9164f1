"""Convert images of any mode to 8-bit RGB, in tiles, so that a large image is not copied whole."""

from collections.abc import Iterator
from itertools import product
from math import ceil

import numpy as np
from PIL import Image

KEPT_PIXELS = 16_000_000
"""Larger images are reduced to at most this many pixels."""
TILE = 1024


def reduction(image: Image.Image) -> int:
    """Return the integer factor that reduces `image` to at most `KEPT_PIXELS`; usually 1."""
    factor = 1
    while ceil(image.width / factor) * ceil(image.height / factor) > KEPT_PIXELS:
        factor += 1
    return factor


def in_rgb(image: Image.Image) -> Image.Image:
    """Convert `image` to RGB and reduce it by `reduction`. Transparency becomes white; deeper greys are scaled to 8
    bits."""
    factor, white = reduction(image), _white(image)
    plain = image.mode == "RGB" and "transparency" not in image.info
    if factor == 1 and (plain or max(image.size) <= TILE):
        return _tile_in_rgb(image, white)
    result = Image.new("RGB", (ceil(image.width / factor), ceil(image.height / factor)))
    for box in _boxes(image, TILE // factor * factor):
        tile = _tile_in_rgb(image.crop(box), white)
        result.paste(tile.reduce(factor) if factor > 1 else tile, (box[0] // factor, box[1] // factor))
    return result


def _boxes(image: Image.Image, side: int) -> Iterator[tuple[int, int, int, int]]:
    for top, left in product(range(0, image.height, side), range(0, image.width, side)):
        yield left, top, min(left + side, image.width), min(top + side, image.height)


def _white(image: Image.Image) -> float | None:
    """Return the value that becomes 255 in a grey image of 16 or 32 bits or floats; None for other modes."""
    if not image.mode.startswith("I") and image.mode != "F":
        return None
    brightest = max(float(_numbers(image.crop(box)).max(initial=0.0)) for box in _boxes(image, TILE))
    if image.mode == "F" and brightest <= 1:
        return 1.0
    if image.mode.startswith("I;16") or brightest > 255:
        return max(65535.0, brightest)
    return 255.0


def _numbers(image: Image.Image) -> np.ndarray:
    return np.nan_to_num(np.asarray(image).astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)


def _tile_in_rgb(image: Image.Image, white: float | None) -> Image.Image:
    if white is not None:  # Pillow's conversion would clip
        return Image.fromarray((_numbers(image).clip(0) * (255 / white)).round().astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")

"""Pictures of any mode in RGB with 8 bits: in tiles, so that no second copy of a large one is made, and reduced."""

from collections.abc import Iterator
from itertools import product
from math import ceil

import numpy as np
from PIL import Image

KEPT_PIXELS = 16_000_000
"""Larger images are reduced."""
TILE = 1024


def reduction(image: Image.Image) -> int:
    """By how much `image` is reduced: the whole number that leaves at most `KEPT_PIXELS`, mostly 1."""
    factor = 1
    while ceil(image.width / factor) * ceil(image.height / factor) > KEPT_PIXELS:
        factor += 1
    return factor


def in_rgb(image: Image.Image) -> Image.Image:
    """`image` in RGB, reduced by `reduction`. Transparent parts become white; greys of more bits are scaled."""
    factor, white = reduction(image), _white(image)
    plain = image.mode == "RGB" and "transparency" not in image.info
    if factor == 1 and (plain or max(image.size) <= TILE):
        return _tile_in_rgb(image, white)
    made = Image.new("RGB", (ceil(image.width / factor), ceil(image.height / factor)))
    for box in _boxes(image, TILE // factor * factor):
        tile = _tile_in_rgb(image.crop(box), white)
        made.paste(tile.reduce(factor) if factor > 1 else tile, (box[0] // factor, box[1] // factor))
    return made


def _boxes(image: Image.Image, side: int) -> Iterator[tuple[int, int, int, int]]:
    for top, left in product(range(0, image.height, side), range(0, image.width, side)):
        yield left, top, min(left + side, image.width), min(top + side, image.height)


def _white(image: Image.Image) -> float | None:
    """The grey of 16 or 32 bits or of floating point that becomes 255; None for other modes."""
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
    if white is not None:  # Pillow's own conversion would clip
        return Image.fromarray((_numbers(image).clip(0) * (255 / white)).round().astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")

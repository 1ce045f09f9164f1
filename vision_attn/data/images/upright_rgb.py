"""Convert images of any mode to upright 8-bit RGB, in tiles, so that a large image is not copied whole."""

from collections.abc import Iterator
from itertools import product
from math import ceil
from typing import Any

import numpy as np
from PIL import Image, ImageChops
from PIL.TiffImagePlugin import IMAGELENGTH, IMAGEWIDTH, TiffImageFile

KEPT_PIXELS = 16_000_000
"""Larger images are reduced to at most this many pixels."""
TILE = 1024
ORIENTATION = 0x0112
"""The EXIF tag of the orientation."""
TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
"""The transpose that brings an image upright, by EXIF orientation."""


def reduction(image: Image.Image) -> int:
    """Return the integer factor that reduces `image` to at most `KEPT_PIXELS`; usually 1."""
    factor = 1
    while ceil(image.width / factor) * ceil(image.height / factor) > KEPT_PIXELS:
        factor += 1
    return factor


def in_rgb(image: Image.Image) -> Image.Image:
    """Convert `image` to RGB, upright by its EXIF orientation, and reduce it by `reduction`. Transparency becomes
    white; greys of more than 8 bits are scaled (`white_of`). The result has no metadata."""
    return upright(image, _converted(image))


def upright(image: Image.Image, converted: Image.Image) -> Image.Image:
    """Transpose `converted`, which was made from `image`, by the EXIF orientation of `image`.

    The result has no metadata except the transparent colour. Otherwise other code would apply the orientation a second
    time.
    """
    transpose = _transpose(image)
    result = converted if transpose is None else converted.transpose(transpose)
    result.info = {key: value for key, value in result.info.items() if key == "transparency"}
    return result


def _transpose(image: Image.Image) -> Image.Transpose | None:
    try:
        tag: Any = image.getexif().get(ORIENTATION)
        return TRANSPOSES.get(tag)
    except Exception:  # ignore a damaged tag
        return None


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Return the width and height of `image`, which need not be loaded, when upright."""
    width, height = image.size
    if isinstance(image, TiffImageFile):  # newer versions of Pillow exchange them when they open the file
        width, height = image.tag_v2[IMAGEWIDTH], image.tag_v2[IMAGELENGTH]
    return (height, width) if _transpose(image) in _SWAPPING else (width, height)


_SWAPPING = {TRANSPOSES[orientation] for orientation in (5, 6, 7, 8)}
"""The transposes that exchange width and height."""


def _converted(image: Image.Image) -> Image.Image:
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
    """Return the value of a grey image of 16 or 32 bits or floats that becomes 255; None for other modes."""
    if not image.mode.startswith("I") and image.mode != "F":
        return None
    brightest = max(float(_numbers(image.crop(box)).max(initial=0.0)) for box in _boxes(image, TILE))
    return white_of(brightest, unit=image.mode == "F")


def white_of(brightest: float, *, unit: bool) -> float:
    """Return the value that becomes 255 in a grey image whose largest value is `brightest`.

    Cameras, microscopes and X-ray detectors store 10, 12 or 14 bits in files of 16 bits, and the files do not say so.
    So white is the largest number with as many bits as `brightest`, at least 8. Above 16 bits, values are scaled by
    their maximum.

    brightest: the largest value of the image.
    unit: whether the image has floats, which are taken to be in [0, 1] if none is larger.
    """
    if unit and brightest <= 1:
        return 1.0
    return brightest if brightest > 65535 else max(255.0, 2.0 ** ceil(brightest).bit_length() - 1)


def largest(image: Image.Image) -> int:
    """Return the largest number of an RGB image."""
    extrema: Any = image.getextrema()
    return max(most for _, most in extrema)


def joined_bytes(upper: Image.Image, lower: Image.Image) -> Image.Image:
    """Return 8-bit RGB from the upper and lower bytes of 16-bit colours, scaled so that `white_of` their largest number
    becomes 255."""
    high = largest(upper)
    mask = upper.point([255 * (value == high) for value in range(256)] * 3)
    low = largest(ImageChops.multiply(lower, mask))
    scale = 255 / white_of(256.0 * high + low, unit=False)
    above, below = (
        half.point([min(255, round(value * weight * scale)) for value in range(256)] * 3)
        for half, weight in ((upper, 256), (lower, 1))
    )
    return ImageChops.add(above, below)


def _numbers(image: Image.Image) -> np.ndarray:
    return np.nan_to_num(np.asarray(image).astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)


def _tile_in_rgb(image: Image.Image, white: float | None) -> Image.Image:
    if white is not None:  # Pillow's conversion would clip
        return Image.fromarray((_numbers(image).clip(0) * (255 / white)).round().astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")

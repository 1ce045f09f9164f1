"""Read the images that users of the Python API pass: file names, bytes, open files, PIL images and arrays."""

import inspect
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from vision_attn.contracts import Fit
from vision_attn.data.images.open import Encoded, open_photograph
from vision_attn.data.images.squares import encoder_input, read_image, seen_extent, seen_part
from vision_attn.data.images.upright_rgb import in_rgb
from vision_attn.geometry.extents import Extent
from vision_attn.system.console import reason_of, with_article
from vision_attn.system.errors import UserError


@runtime_checkable
class OpenFile(Protocol):
    """A file that is open for reading bytes, such as `io.BytesIO` or an upload."""

    def read(self, size: int = ..., /) -> Any: ...


Picture = str | Path | Encoded | bytes | bytearray | memoryview | OpenFile | Image.Image | np.ndarray | Tensor
"""A file, its bytes, a file that is open, a picture, or an array: (Y, X), (Y, X, 3 or 4), or a tensor (C, Y, X); uint8,
or floats in [0, 1]."""
FILES = (str, Path, Encoded)

SIDE = 672
"""The largest side, in pixels, of a photograph in pictures."""


def is_one(images: Any) -> bool:
    """Return whether this is one image, not a list or an iterator of several. (An open file is also an iterator of
    lines, and bytes are a sequence of numbers.)"""
    return isinstance(images, Encoded | OpenFile) or not isinstance(images, list | tuple | Iterator)


def name_of(image: Picture, number: int) -> str:
    """Return the name of an image's file as it was given; "image 3" for the third image that is no file."""
    if isinstance(image, FILES):
        return str(image)
    name = getattr(image, "name" if isinstance(image, OpenFile) else "filename", None)
    return name if name and isinstance(name, str) else f"image {number}"


def held(image: Picture, name: str) -> Picture:
    """Return bytes, or the content of an open file from its beginning, as a file in memory; other images are unchanged.
    Raises UserError for a file that gives no bytes."""
    if isinstance(image, bytes | bytearray | memoryview):
        return Encoded(name, bytes(image))
    if isinstance(image, Encoded) or not isinstance(image, OpenFile):
        return image
    try:
        with suppress(AttributeError, OSError):  # a stream has no beginning to go back to
            stream: Any = image
            stream.seek(0)
        content = image.read()
    except (OSError, ValueError) as error:  # ValueError: it is closed
        raise UserError(f"{name}: it cannot be read ({reason_of(error)})") from error
    if isinstance(content, bytes | bytearray | memoryview):
        return Encoded(name, bytes(content))
    if inspect.iscoroutine(content):
        content.close()
        raise UserError(f"{name}: its read() is to be awaited: give what it returns")
    raise UserError(f"{name}: its read() returns {with_article(type(content).__name__)}, not bytes: open it with 'rb'")


def encoded(image: Picture, resolution: int | None, fit: Fit) -> UInt8[Tensor, "3 S S"] | Image.Image:
    """Return the encoder's input: a square, or the unchanged picture if the model takes any size. Files are read as for
    training. Raises UserError if it is no image."""
    if resolution is None:
        return whole(image, at_least=None)
    if isinstance(image, FILES):
        return read_image(image, resolution, fit)
    return encoder_input(whole(image), resolution, fit)


def pictured(image: Picture, fit: Fit) -> Image.Image:
    """Return the part of an image that an encoder sees, as a picture (see `shown`). Raises UserError if it is no
    image."""
    return shown(whole(image), fit)


def around(image: Picture, fit: Fit) -> tuple[Image.Image, Extent]:
    """Return the whole image as a picture, with at most `SIDE` pixels on a side, and the part that an encoder sees.
    Raises UserError if it is no image."""
    picture = whole(image)
    seen = seen_extent(*picture.size, fit)
    return shown(picture, "whole"), seen


def whole(image: Picture, *, at_least: int | None = SIDE) -> Image.Image:
    """Open an image in RGB, upright. Raises UserError if it is no image.

    at_least: a JPEG may be reduced to this number of pixels on a side; None: never.
    """
    if isinstance(image, FILES):
        return open_photograph(image, at_least=at_least)
    if isinstance(image, np.ndarray | Tensor):
        image = _array_picture(image)
    if not isinstance(image, Image.Image):
        raise UserError(
            f"this image is {with_article(type(image).__name__)}: give a path, bytes, a PIL image, an array or a tensor"
        )
    return in_rgb(image)


def shown(picture: Image.Image, fit: Fit) -> Image.Image:
    """Return the part of a picture that an encoder sees, in its own shape, with at most `SIDE` pixels on a side."""
    seen = seen_part(picture, fit)
    seen.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC)
    return seen


def _array_picture(array: np.ndarray | Tensor) -> Image.Image:
    """Turn an array (Y, X), (Y, X, 3) or (Y, X, 4), or a tensor (C, Y, X), into a picture. Raises UserError for
    others."""
    shape = tuple(array.shape)
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        array = array.float() if array.is_floating_point() else array  # numpy has no bfloat16
        array = (array.permute(1, 2, 0) if array.ndim == 3 else array).numpy()
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or 0 in shape or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise UserError(
            "an array is (Y, X), (Y, X, 3) or, with transparency, (Y, X, 4), a tensor (C, Y, X) with 1, 3 or 4 "
            f"channels; this one is {shape}; give several as a list"
        )
    if array.dtype == np.bool_ or np.issubdtype(array.dtype, np.floating):
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise UserError("an array of floats must lie in [0, 1]; for pixels from 0 to 255 use uint8")
        array = (array * 255.0).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise UserError(f"an array is uint8, or floats in [0, 1]; this one is {array.dtype}")
    return Image.fromarray(np.ascontiguousarray(array))

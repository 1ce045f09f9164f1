"""Open image files as arrays of pixels to be sliced: photographs are decoded, .npy files are mapped into memory."""

import mmap
import os
import weakref
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vision_attn.attention.images import Images, Sliced
from vision_attn.data.array_headers import PARSING
from vision_attn.data.images.open import ENDINGS, Encoded, decoded_image, size_of
from vision_attn.data.images.squares import centre_square
from vision_attn.system.console import reason_of
from vision_attn.system.errors import UserError

ARRAY = ".npy"
"""The file extension of an array of pixels, which may be larger than memory."""
OPENED = ENDINGS | {ARRAY}
"""File extensions of images that can be opened, in lower case."""


def open_pixels(path: str | Path | Encoded, *, side: int | None = None, square: bool = False) -> Sliced:
    """Open a photograph as pixels (Y, X, 3), or an array (Y, X) or (Y, X, C) in a .npy file, which is read where it is
    sliced. Raises UserError naming the file if it is no image.

    side: the longer side to which the image is resized, in pixels.
    square: whether to take the centre square first.
    """
    if not isinstance(path, Encoded) and Path(path).suffix.lower() == ARRAY:
        array = Mapped(path)
        if side is None:
            return array
        small = Images([array], 3).sampled(2 * side * (max(array.shape[:2]) // min(array.shape[:2]) if square else 1))
        return resized(Image.fromarray(small[0].permute(1, 2, 0).numpy()), side, square)
    with decoded_image(path, at_least=None if side is None else 2 * side) as image:
        return np.array(image) if side is None else resized(image, side, square)


def size_of_pixels(path: str | Path, *, side: int | None = None, square: bool = False) -> tuple[int, int]:
    """Read the width and height of an image as `open_pixels` returns it, without decoding it. Raises UserError naming
    the file if it is no image."""
    array = Path(path).suffix.lower() == ARRAY
    width, height = Mapped(path).shape[1::-1] if array else size_of(path)
    if side is None:
        return width, height
    return (side, side) if square else _resized_size(width, height, side)


def fitted(pixels: Sliced, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Resize pixels to fit into Y x X pixels, in their aspect ratio, centred on black. Returns (Y, X, 3)."""
    _, Y, X = shape
    small = Images([pixels], 3).sampled(4 * max(Y, X))[0].permute(1, 2, 0).numpy()
    scale = min(Y / small.shape[0], X / small.shape[1])
    height, width = (max(1, round(scale * length)) for length in small.shape[:2])
    canvas = Image.new("RGB", (X, Y))
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    canvas.paste(image, ((X - width) // 2, (Y - height) // 2))
    return np.array(canvas)


class Inverted:
    """Pixels whose slices have black and white swapped."""

    dtype = np.dtype(np.uint8)

    def __init__(self, pixels: Sliced) -> None:
        self.pixels, self.shape = pixels, tuple(pixels.shape)

    def __getitem__(self, place: tuple[slice, slice]) -> NDArray[np.uint8]:
        return 255 - np.asarray(self.pixels[place])


class Mapped:
    """The pixels of an array in a memory-mapped .npy file.

    Rows that lie far apart are read from the file instead: the system may map 2 MB around each row that is touched, 300
    MB for an overview of 20,000 x 20,000 pixels. Raises UserError naming the file if it holds no array of pixels.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, path: str | Path) -> None:
        try:
            if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would wait
                raise UserError("it is not a regular file")
            with open(path, "rb") as file:
                if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
                    raise UserError("it does not begin as numpy.save writes it")
            with PARSING:
                mapped = np.load(path, mmap_mode="r", allow_pickle=False)
            Images([mapped], 3)
            self.file = open(path, "rb", buffering=0)  # noqa: SIM115, closed with this object
        except FileNotFoundError as error:
            raise UserError(f"{path}: no such file") from error
        except Exception as error:  # a damaged header can make numpy raise almost anything
            raise UserError(f"{path}: not a readable array of pixels ({reason_of(error)})") from error
        weakref.finalize(self, self.file.close)
        self.array = np.asarray(mapped)  # slices of numpy's own class of mapped arrays are slower
        self.shape, self.offset, self.lock = mapped.shape, mapped.offset, Lock()

    def __getitem__(self, place: tuple[slice, slice]) -> NDArray[np.uint8]:
        pixel_rows = range(*place[0].indices(self.shape[0]))
        apart = pixel_rows.step > 1 and pixel_rows.step * self.array.strides[0] > mmap.PAGESIZE
        if not apart or not self.array.flags.c_contiguous:
            return self.array[place]
        row = np.empty(self.shape[1:], np.uint8)
        pixels = np.empty((len(pixel_rows), *row[place[1]].shape), np.uint8)
        with self.lock:
            for number, line in zip(pixel_rows, pixels, strict=True):
                self.file.seek(self.offset + number * row.size)
                self.file.readinto(row.data)
                line[:] = row[place[1]]
        return pixels


def resized(image: Image.Image, side: int, square: bool = False) -> NDArray[np.uint8]:
    """Return the pixels of an image, or of its centre square, whose longer side is resized to `side` pixels."""
    box = centre_square(*image.size) if square else (0, 0, *image.size)
    size = _resized_size(box[2] - box[0], box[3] - box[1], side)
    return np.array(image.resize(size, Image.Resampling.BICUBIC, box=box))


def _resized_size(width: int | float, height: int | float, side: int) -> tuple[int, int]:
    """Return the width and height scaled so that the longer one is `side`."""
    scale = side / max(width, height)
    return max(1, round(scale * width)), max(1, round(scale * height))

"""Decode photographs from untrusted files, with limits on formats, pixels and memory.

A small file may declare a huge image, so the size in its header is checked before decoding. Large images are converted
and reduced in tiles. Threads that decode at the same time share a memory budget.
"""

import ctypes
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageFile

from vision_attn.data.images.limits import MEMORY, Budget, Refused, checked_memory
from vision_attn.data.images.upright_rgb import (
    KEPT_PIXELS,
    in_rgb,
    joined_bytes,
    largest,
    reduction,
    upright,
    upright_size,
)
from vision_attn.system.errors import UserError

FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    "PNG": (".png", ".apng"),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "JPEG2000": (".jp2", ".j2k", ".jpc", ".jpf", ".jpx", ".j2c"),
    "AVIF": (".avif",),
    "PPM": (".pbm", ".pgm", ".ppm", ".pnm", ".pfm"),
}
"""The supported formats, as far as Pillow was built with them, and their file extensions."""
ENDINGS = frozenset(ending for endings in FORMATS.values() for ending in endings)
"""File extensions of images, in lower case."""

_AT_ONCE = 1 << 24
"""Files of up to this number of bytes are read at once. Each small read would release Python's lock, and decoding
threads would wait for the lock longer than for the disk."""
_TRIMMED_ABOVE = 1 << 26
"""Freed memory is returned to the system after decoding an image that needed more bytes than this."""


class Encoded(NamedTuple):
    """The bytes of an image file, without the file."""

    name: str
    """The name for messages."""
    content: bytes | Callable[[], bytes]
    """The bytes of the file, or a function that reads them."""
    size: int | None = None
    """The number of bytes, if it is known before they are read; -1: there are none."""

    def __str__(self) -> str:
        return self.name

    def read(self) -> bytes:
        return self.content() if callable(self.content) else self.content


class Isolated(Encoded):
    """An untrusted file, to be decoded in another process: see `data.isolated`."""

    content: bytes

    def opened(self, what: str, *arguments: Any) -> Any:
        """Decode the file in another process. Raises UserError naming it if it cannot be used."""
        raise NotImplementedError

    def read(self) -> bytes:
        raise AssertionError(f"{self.name} must not be decoded in this process")


_budget = Budget(MEMORY)


def open_photograph(path: str | Path | Encoded, at_least: int | None = None) -> Image.Image:
    """Open the first image in `path`: 8-bit RGB, upright by its EXIF tag, with white for transparent parts. The result
    has no metadata, so that nothing turns it a second time.

    With `at_least`, a JPEG may be reduced by 2, 4 or 8, as long as its sides keep that many pixels; this saves time and
    memory. An image of more than `KEPT_PIXELS` is reduced by an integer factor. Raises UserError naming the file if it
    cannot be read or is too large.
    """
    with decoded_image(path, at_least) as image:
        return image


@contextmanager
def decoded_image(path: str | Path | Encoded, at_least: int | None = None) -> Iterator[Image.Image]:
    """Context manager: do as `open_photograph`; the memory of the image counts against the budget of all threads until
    the block ends."""
    if isinstance(path, Isolated):
        yield path.opened("photograph", at_least)
        return
    with ExitStack() as held:
        with _named(path):
            image = _loaded(path, held, at_least)
            photograph = in_rgb(image)
            del image
        yield photograph


def open_as_stored(path: str | Path | Encoded) -> Image.Image:
    """Open the first image in `path`, upright, in the mode of the file, such as RGBA. Raises like `open_photograph`."""
    if isinstance(path, Isolated):
        return path.opened("stored")
    with ExitStack() as held, _named(path):
        image = _loaded(path, held)
        return upright(image, image.copy())


def size_of(path: str | Path | Encoded) -> tuple[int, int]:
    """Read the width and height of the first image in `path` when upright, without decoding it. Raises like
    `open_photograph`."""
    with ExitStack() as held, _named(path):
        return upright_size(_identified(_opened(path, held)))


def _loaded(path: str | Path | Encoded, held: ExitStack, at_least: int | None = None) -> ImageFile.ImageFile:
    """Load the first image in `path`.

    held: keeps its file open, and its share of the budget.
    """
    file = _opened(path, held)
    image = _identified(file)
    whole = _draft(image, at_least)
    lower = _lower_bytes(image)
    memory = checked_memory(image, whole, file) + (12 * image.width * image.height if lower else 0)
    held.enter_context(_budget.take(memory))
    if memory > _TRIMMED_ABOVE:
        held.callback(_give_back)
    image.load()
    if lower and largest(image) < 128:
        again = _identified(file)
        again.tile = lower
        again.load()
        image.paste(joined_bytes(image, again))
    return image


def _lower_bytes(image: ImageFile.ImageFile) -> list[Any]:
    """Return Pillow's `tile` of a 16-bit RGB image, changed so that it decodes the lower byte of each number in place
    of the upper byte, which may be empty in images of few bits. Empty for other images, and for very large ones."""
    native = "RGB;16B" if sys.byteorder == "little" else "RGB;16L"
    other = {"RGB;16B": "RGB;16L", "RGB;16L": "RGB;16B", "RGB;16N": native}
    tiles = []
    for tile in image.tile if image.mode == "RGB" and image.width * image.height <= KEPT_PIXELS else ():
        several = isinstance(tile[3], tuple)
        given: Any = tile[3]
        mode, *rest = given if several and given else (given,)
        if mode not in other:
            return []
        arguments = (other[mode], *rest) if several else other[mode]
        make = getattr(type(tile), "_make", tuple)  # a NamedTuple in newer versions of Pillow
        tiles.append(make((*tile[:3], arguments)))
    return tiles


def _opened(path: str | Path | Encoded, held: ExitStack) -> BufferedIOBase:
    """Open the file of `path`. `held` closes it."""
    if isinstance(path, Encoded):
        return BytesIO(path.read())
    _refuse_special(path)
    file = held.enter_context(open(path, "rb"))  # noqa: SIM115
    return file if os.fstat(file.fileno()).st_size > _AT_ONCE else BytesIO(file.read())


def _give_back() -> None:
    """Return freed memory to the system. Otherwise glibc keeps the peak of each thread."""
    with suppress(AttributeError, OSError, TypeError):  # other C libraries lack malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def _named(path: str | Path | Encoded) -> Iterator[None]:
    """Context manager: convert any exception to a UserError of one line that names `path`."""
    try:
        yield
    except Refused as error:
        raise error.error_type(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except Image.DecompressionBombError as error:
        raise UserError(f"{path}: too large for PIL.Image.MAX_IMAGE_PIXELS ({error})") from error
    except Exception as error:  # a damaged file can make Pillow raise almost anything
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"{path}: not a readable image ({error.strerror})") from error
        why = " ".join(str(error).replace(str(path), Path(str(path)).name).split())
        raise UserError(f"{path}: not a readable image ({type(error).__name__}: {why})") from error


def _refuse_special(path: str | Path) -> None:
    """Raise UserError for anything but a regular file: opening a FIFO would block, and reading a device may do
    anything."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise Refused(f"not a readable image ({'a folder' if stat.S_ISDIR(mode) else 'not a regular file'})")


def _identified(file: BufferedIOBase) -> ImageFile.ImageFile:
    """Open the image in `file` and read its header.

    Unlike PIL.Image.open, ignores Pillow's limit on pixels, which is a global variable. Gives Pillow no file name,
    because it would map the file into memory, and truncating a mapped file kills the process.
    """
    file.seek(0)
    start = file.read(16)
    if not start:
        raise Refused("not a readable image (the file is empty)")
    for load in (Image.preinit, Image.init):  # plugins of common formats, then of all: importing those takes a while
        load()
        for name in (name for name in FORMATS if name in Image.OPEN):
            plugin: Any = Image.OPEN[name]
            make, accepts = plugin
            if not accepts or accepts(start) is True:  # may also be a string: why Pillow cannot read it
                if name == "TIFF":
                    _quiet_libtiff()
                file.seek(0)
                return make(file, "")
    supported = ", ".join(name for name in FORMATS if name in Image.OPEN)
    raise Refused(f"not a readable image: supported are {supported}")


@cache
def _quiet_libtiff() -> None:
    """Keep libtiff from printing its messages about damaged files, which lack the file's name, on standard error."""
    with suppress(AttributeError, OSError, TypeError):  # Pillow may be built without it, or hold it without its names
        ctypes.CDLL(Image.core.__file__).TIFFSetErrorHandler(None)


def _draft(image: ImageFile.ImageFile, at_least: int | None) -> int:
    """Set a JPEG to be decoded at a fraction of its size. Returns its pixels at full size."""
    width, height = image.size
    factor = reduction(image)
    if at_least is not None:
        image.draft(None, (at_least, at_least))
    elif factor > 1:
        image.draft(None, (width // factor, height // factor))
    return width * height

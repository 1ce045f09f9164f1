"""Photographs decoded from anyone's files: a few formats, and bounds on pixels and memory.

A small file may promise a huge image. Its size is read from its header and refused before anything is decoded, large
images are converted and reduced tile by tile, and threads that decode at the same time share a budget of memory.
"""

import ctypes
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from io import BufferedIOBase
from math import ceil
from pathlib import Path

from PIL import Image, ImageFile

from vision_attn.data.conversion import KEPT_PIXELS, in_rgb, reduction

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
"""The formats that are read, with the endings of their files. Where Pillow was built without one, that one is not."""
ENDINGS = frozenset(ending for endings in FORMATS.values() for ending in endings)
"""The endings of image files in a folder, in lower case."""

MAX_PIXELS = 64_000_000
"""Pixels of an image as it is decoded, at most, unless the environment variable VISION_ATTN_MAX_PIXELS says more."""
BYTES_PER_PIXEL = 8
"""Memory for each of them. Decoders that need more (WebP, AVIF, JPEG 2000, progressive JPEG) may decode fewer."""
MEMORY = 1 << 30
"""Bytes that all decoding threads together may use; a larger image is decoded alone."""

_MUCH = 1 << 26
_PLANES = 8
"""How often a file may store each pixel: colours may lie in planes of their own."""
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
"""What brings an image upright, by the value of its EXIF tag."""


class Budget:
    """An amount that threads take parts of and return, first come, first served."""

    def __init__(self, most: int) -> None:
        self.most, self.free = most, most
        self._turn, self._changed = threading.Lock(), threading.Condition()

    @contextmanager
    def take(self, amount: int) -> Iterator[None]:
        """Waits until `amount` is free, or everything where `amount` is more than there is."""
        amount = min(amount, self.most)
        with self._turn, self._changed:
            self._changed.wait_for(lambda: self.free >= amount)
            self.free -= amount
        try:
            yield
        finally:
            with self._changed:
                self.free += amount
                self._changed.notify_all()


_budget = Budget(MEMORY)


def open_photograph(path: str | Path, at_least: int | None = None) -> Image.Image:
    """The first picture in `path`: RGB, 8 bits, turned upright by its EXIF tag; transparent parts are white.

    With `at_least`, a JPEG may come back smaller by 2, 4 or 8, its sides still at least that many pixels; a huge one is
    then read in a fraction of the time and memory. An image of more than `KEPT_PIXELS` comes back reduced by a whole
    number. Raises ValueError naming the file that cannot be read or is too large.
    """
    with decoded(path, at_least) as image:
        return image


@contextmanager
def decoded(path: str | Path, at_least: int | None = None) -> Iterator[Image.Image]:
    """As `open_photograph`; until the block ends, its memory counts against the budget of all threads."""
    with ExitStack() as held:
        with _named(path):
            _refuse_special(path)
            file = held.enter_context(open(path, "rb"))
            image = _identified(file)
            whole = _draft(image, at_least)
            memory = _checked_memory(image, whole, file)
            held.enter_context(_budget.take(memory))
            if memory > _MUCH:
                held.callback(_give_back)
            image.load()
            upright = _upright(image, in_rgb(image))
            del image
        yield upright


def _give_back() -> None:
    """Return freed memory to the system. Without this, glibc keeps for each thread as much as it ever used."""
    with suppress(AttributeError, OSError, TypeError):  # other C libraries do not know it
        ctypes.CDLL(None).malloc_trim(0)


class _Refused(ValueError):
    """What is wrong with a file, without its name."""


@contextmanager
def _named(path: str | Path) -> Iterator[None]:
    """Whatever goes wrong inside becomes a ValueError of one line that names `path`."""
    try:
        yield
    except _Refused as error:
        raise ValueError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"{path}: too large for PIL.Image.MAX_IMAGE_PIXELS ({error})") from error
    except Exception as error:  # a damaged file can make Pillow raise almost anything
        why = " ".join(str(error).replace(str(path), Path(path).name).split())
        raise ValueError(f"{path}: not a readable image ({type(error).__name__}: {why})") from error


def _refuse_special(path: str | Path) -> None:
    """Opening a FIFO would wait for ever, and reading a device may do anything."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise _Refused(f"not a readable image ({'a folder' if stat.S_ISDIR(mode) else 'not a regular file'})")


@cache
def _plugins() -> dict[str, tuple]:
    Image.init()
    return {name: Image.OPEN[name] for name in FORMATS if name in Image.OPEN}


def _identified(file: BufferedIOBase) -> ImageFile.ImageFile:
    """The image in `file`, its header read.

    As PIL.Image.open does it, but without its limit on pixels, a global variable that belongs to the whole program, and
    without the name of the file, which would be mapped into memory: whoever shortens a mapped file kills this process.
    """
    start = file.read(16)
    for make, accepts in _plugins().values():
        if not accepts or accepts(start) is True:  # it may also answer with a text, why it cannot read the format
            file.seek(0)
            return make(file, "")
    raise _Refused(f"not a readable image: none of {', '.join(_plugins())}")


def _draft(image: ImageFile.ImageFile, at_least: int | None) -> int:
    """Let a JPEG be decoded at a fraction of its size; returns its pixels before."""
    width, height = image.size
    factor = reduction(image)
    if at_least is not None:
        image.draft(None, (at_least, at_least))
    elif factor > 1:
        image.draft(None, (width // factor, height // factor))
    return width * height


def _checked_memory(image: ImageFile.ImageFile, whole: int, file: BufferedIOBase) -> int:
    """The bytes that decoding `image` will take at most; raises _Refused where there would be too many.

    whole: the pixels of `image` before `_draft`.
    """
    most = _max_pixels()
    pixels, bands = image.width * image.height, len(image.getbands())
    name, memory = image.format, pixels * BYTES_PER_PIXEL
    if name == "WEBP":
        memory = pixels * 16
    elif name in ("AVIF", "JPEG2000"):
        memory = pixels * (4 + (2 if name == "AVIF" else 6) * bands)
    elif name in ("JPEG", "MPO") and _keeps_coefficients(file, bands):
        name, memory = "progressive JPEG", pixels * 4 + whole * 2 * bands
    if pixels > most or memory > most * BYTES_PER_PIXEL:
        few = f" of {name}, which takes more memory than others" if pixels <= most else ""
        needed = ceil(max(pixels, memory / BYTES_PER_PIXEL))
        raise _Refused(
            f"too large, {image.width:,} x {image.height:,} pixels{few}: make it smaller, or set "
            f"VISION_ATTN_MAX_PIXELS to at least {needed} (now {most})"
        )
    size = os.fstat(file.fileno()).st_size
    if size > max(most, MAX_PIXELS) * BYTES_PER_PIXEL:  # some decoders read the whole file at once
        raise _Refused(f"too large, {size / 1e6:,.0f} MB: make it smaller, or set VISION_ATTN_MAX_PIXELS")
    if sum((x1 - x0) * (y1 - y0) for _, (x0, y0, x1, y1), *_ in image.tile) > _PLANES * whole:
        raise _Refused("not a readable image (its tiles overlap)")
    return memory + 8 * min(pixels, KEPT_PIXELS)


def _max_pixels() -> int:
    given = os.environ.get("VISION_ATTN_MAX_PIXELS") or str(MAX_PIXELS)
    if not given.strip().isdecimal() or int(given) < 1:
        raise _Refused(f"VISION_ATTN_MAX_PIXELS={given} is no number of pixels")
    return int(given)


def _keeps_coefficients(file: BufferedIOBase, components: int) -> bool:
    """Whether the decoder of this JPEG holds all its coefficients at once: it is progressive, or in several scans."""
    place = file.tell()
    file.seek(2)
    try:
        while len(head := file.read(4)) == 4 and head[0] == 0xFF:
            if head[1] == 0xFF:  # padding
                file.seek(-3, os.SEEK_CUR)
                continue
            if head[1] in (0xC2, 0xC6, 0xCA, 0xCE):
                return True
            if head[1] == 0xDA:
                return file.read(1) != bytes([components])
            file.seek(int.from_bytes(head[2:], "big") - 2, os.SEEK_CUR)
        return True
    finally:
        file.seek(place)


def _upright(image: Image.Image, rgb: Image.Image) -> Image.Image:
    """`rgb` turned as the EXIF tag of `image`, from which it was made, says."""
    try:
        turn = _TURNS.get(image.getexif().get(0x0112))
    except Exception:  # a broken tag says nothing about the picture
        turn = None
    return rgb if turn is None else rgb.transpose(turn)

"""Limits on the pixels and the memory of images, checked before they are decoded.

A small file may declare a huge image. Threads that decode at the same time share a memory budget.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from math import ceil
from typing import Any

from PIL import ImageFile

from vision_attn.data.images.upright_rgb import KEPT_PIXELS
from vision_attn.system.errors import UserError

MAX_PIXELS = 64_000_000
"""Limit on the pixels of a decoded image. The environment variable VISION_ATTN_MAX_PIXELS overrides it."""
BYTES_PER_PIXEL = 8
"""Bytes of memory per pixel. Decoders that need more (WebP, AVIF, JPEG 2000, progressive JPEG) have a lower limit on
pixels."""
MEMORY = 1 << 30
"""Bytes that all decoding threads together may use; a larger image is decoded alone."""
_PLANES = 8
"""The number of times that a file may store each pixel: each colour may have its own plane."""


class Budget:
    """An amount, such as of memory, from which threads take parts and give them back; first come, first served."""

    def __init__(self, most: int) -> None:
        self.most, self.free = most, most
        self._turn, self._changed = threading.Lock(), threading.Condition()

    @contextmanager
    def take(self, amount: int) -> Iterator[None]:
        """Context manager: wait until `amount` is free, or the whole budget if `amount` exceeds it, and take it."""
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


class TooLarge(UserError):
    """Raised for an image with too many pixels, or one that needs too much memory."""


class Refused(UserError):
    """Raised for a file that is refused, with the reason but without the name of the file."""

    error_type = UserError
    """The class of the error that the user sees."""


class Huge(Refused):
    """Raised for a file that is refused for its size."""

    error_type = TooLarge


def checked_memory(image: ImageFile.ImageFile, whole: int, file: BufferedIOBase) -> int:
    """Return an upper bound on the bytes that decoding `image` takes. Raises Refused if it is too large.

    whole: the pixels of `image` before the draft of a JPEG was chosen.
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
        raise Huge(
            f"too large, {image.width:,} x {image.height:,} pixels{few}: make it smaller, or set "
            f"VISION_ATTN_MAX_PIXELS to at least {needed} (now {most})"
        )
    place = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(place)
    if size > max(most, MAX_PIXELS) * BYTES_PER_PIXEL:  # some decoders read the whole file at once
        raise Huge(f"too large, {size / 1e6:,.0f} MB: make it smaller, or set VISION_ATTN_MAX_PIXELS")
    areas: list[Any] = [tile[1] for tile in image.tile]
    if sum((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in areas) > _PLANES * whole:
        raise Refused("not a readable image (its tiles overlap)")
    return memory + 8 * min(pixels, KEPT_PIXELS)


def _max_pixels() -> int:
    given = os.environ.get("VISION_ATTN_MAX_PIXELS") or str(MAX_PIXELS)
    if not given.strip().isdecimal() or int(given) < 1:
        raise Refused(f"VISION_ATTN_MAX_PIXELS={given} is not a number of pixels")
    return int(given)


def _keeps_coefficients(file: BufferedIOBase, components: int) -> bool:
    """Return whether the decoder of a JPEG needs all coefficients at once, because the file is progressive or has
    several scans."""
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

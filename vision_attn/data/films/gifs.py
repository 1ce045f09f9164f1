"""Decode GIFs as films, by Pillow, since PyAV reads only the first frame of a GIF without times."""

from collections.abc import Iterator
from io import BufferedIOBase
from typing import Any

import numpy as np
from PIL import Image

from vision_attn.data.films.sampling import Film, Limits, SinglePicture, moments, reduced_size
from vision_attn.system.errors import UserError

MAGIC = b"GIF8"
"""The first bytes of a GIF."""
PIXELS = 4_000_000_000
"""The largest number of pixels of all frames together, for which Pillow takes half a minute."""
SHORTEST, SHOWN = 0.011, 0.1
"""In seconds. A frame without a duration, or with one shorter than `SHORTEST`, is shown for the time `SHOWN`, as in
browsers."""


def film_of_gif(file: BufferedIOBase, frames: int, at_least: int, limits: Limits) -> Film:
    """Decode frames of a GIF, evenly spaced in time. Raises UserError if it cannot be read, or exceeds `limits`.

    frames: their number.
    at_least: the number of pixels to which their shorter side is reduced.
    """
    limits.most = min(limits.most, PIXELS)
    times = [*_times(file, limits)]
    if len(times) == 1:
        raise SinglePicture
    starts = np.cumsum([0.0, *times])
    wanted = moments(starts[:-1].tolist(), starts[-1], frames) if times else [0.0]  # Pillow says what is damaged
    places = np.searchsorted(starts[:-1], wanted, side="right") - 1
    try:
        file.seek(0)
        stream: Any = file
        with Image.open(stream, formats=["GIF"]) as film:
            kept = _pictures(film, {*places.tolist()}, at_least, limits)
    except Exception as error:  # a damaged file can make Pillow raise almost anything
        raise UserError(str(error) if type(error) in (UserError, ValueError) else type(error).__name__) from error
    return Film([kept[place] for place in places], wanted)


def _pictures(film: Image.Image, places: set[int], at_least: int, limits: Limits) -> dict[int, Image.Image]:
    """Return the frames with the numbers `places`."""
    pictures = {}
    for number in range(max(places) + 1):
        film.seek(number)
        limits.check(*film.size, number + 1)
        if number in places:
            size = reduced_size(*film.size, at_least)
            pictures[number] = film.convert("RGB").resize(size, Image.Resampling.BICUBIC)
    return pictures


def _times(file: BufferedIOBase, limits: Limits) -> Iterator[float]:
    """Yield the duration of each frame in seconds, without decoding. Raises UserError if frames are too many or too
    large."""
    file.seek(6)
    width, height = _size(header := file.read(7))
    _skip_colours(file, header[4:5])
    time, number = 0, 0
    while (block_type := file.read(1)) not in (b"", b";"):
        if block_type == b"!":
            control = file.read(1) == b"\xf9"
            for block in _blocks(file):
                if control and len(block) >= 4:
                    time, control = int.from_bytes(block[1:3], "little"), False
        elif block_type == b",":
            left, top = _size(place := file.read(9))
            across, down = _size(place[4:])
            width, height, number = max(width, left + across), max(height, top + down), number + 1
            limits.check(width, height, number)
            _skip_colours(file, place[8:])
            file.seek(1, 1)
            for _ in _blocks(file):
                pass
            yield time / 100 if time / 100 >= SHORTEST else SHOWN
            time = 0


def _size(content: bytes) -> tuple[int, int]:
    return int.from_bytes(content[:2], "little"), int.from_bytes(content[2:4], "little")


def _skip_colours(file: BufferedIOBase, flags: bytes) -> None:
    """Skip the table of colours that the flags of a GIF or of a frame announce."""
    if flags and flags[0] & 0x80:
        file.seek(3 << (flags[0] & 7) + 1, 1)


def _blocks(file: BufferedIOBase) -> Iterator[bytes]:
    """Yield the blocks of data up to the empty one."""
    while (length := file.read(1)) not in (b"", b"\0"):
        yield file.read(length[0])

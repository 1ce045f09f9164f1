"""Choose evenly spaced frames of a film, and limit the pixels and the time of decoding."""

from collections.abc import Callable, Iterable, Sequence
from time import monotonic

import numpy as np
from PIL import Image

from vision_attn.system.errors import UserError

LARGEST, LONGEST = 4096 * 4096, 200_000
"""The largest number of pixels of a frame, and of frames of a film."""
PIXELS = 400_000_000_000
"""The largest number of pixels of all frames together: two hours of Full HD."""
SECONDS, SECONDS_PER_MB = 60, 30
"""The time that decoding a film may take: `SECONDS`, and `SECONDS_PER_MB` for each megabyte of its file. Ordinary films
take a tenth of this; a small file that takes longer was made to do so."""


class Film(list[Image.Image]):
    """The frames of a film that a model sees."""

    def __init__(self, frames: Iterable[Image.Image], times: Sequence[float] | None = None) -> None:
        super().__init__(frames)
        self.times = None if times is None else [round(time, 3) for time in times]
        """The evenly spaced times at which the frames are on screen, in seconds from the beginning of the film; None if
        they are unknown, as for a folder of frames."""


class SinglePicture(UserError):
    """Raised for a file with a single picture, in which nothing happens."""

    def __init__(self) -> None:
        super().__init__("a single picture, and this model takes films: give a film, or a folder of frames")


class Limits:
    """Limits on decoding one film: counts its pixels and its time.

    size: the number of bytes of its file.
    pixels: the largest number of pixels of all frames together.
    clock: returns the time in seconds.
    """

    def __init__(self, size: int, *, pixels: int = PIXELS, clock: Callable[[], float] = monotonic) -> None:
        self.most, self.clock = pixels, clock
        self.seconds = round(SECONDS + SECONDS_PER_MB * size / 1e6)
        self.end = clock() + self.seconds

    def check(self, width: int, height: int, frames: int = 1) -> None:
        """Raise UserError if a film is too large, or decoding has taken too long.

        width, height, frames: the size of its frames and their number.
        """
        if width * height > LARGEST:
            raise UserError(f"it has more than {LARGEST:,} pixels in a frame")
        if frames > LONGEST:
            raise UserError(f"it has more than {LONGEST:,} frames")
        if frames * width * height > self.most:
            raise UserError(f"its frames have more than {self.most:,} pixels together")
        if self.clock() > self.end:
            raise UserError(f"decoding it takes more than {self.seconds} seconds")


def moments(starts: Sequence[float], end: float, frames: int) -> list[float]:
    """Return evenly spaced times, from the middle of the first frame of a film to the middle of its last frame.

    If all frames have the same duration, the frames on screen at these times have evenly spaced numbers, from the first
    to the last.

    starts: the time at which each frame appears, at least two, in order.
    end: the time at which the last frame disappears.
    frames: the number of times.
    """
    return np.linspace((starts[0] + starts[1]) / 2, (starts[-1] + end) / 2, frames).tolist()


def reduced_size(width: int, height: int, at_least: int) -> tuple[int, int]:
    """Return the size of a picture after its shorter side is reduced to `at_least` pixels, if it has more."""
    scale = min(1.0, at_least / min(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))

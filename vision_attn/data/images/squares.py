"""Read photographs as encoder inputs: upright, in RGB, the centre or the whole of it resized to a square."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vision_attn.contracts import Fit
from vision_attn.data.images.open import Encoded, decoded, open_photograph
from vision_attn.system.console import printable
from vision_attn.system.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")
log = logging.getLogger(__name__)


def read_image(
    path: str | Path | Encoded, resolution: int, fit: Fit = "centre"
) -> UInt8[Tensor, "3 {resolution} {resolution}"]:
    """Read an encoder input: the centre square of a photograph, or the whole of it, resized to `resolution` (bicubic,
    antialiased).

    Raises ValueError naming the file if it cannot be read.
    """
    with decoded(path, at_least=2 * resolution) as image:
        return encoder_input(image, resolution, fit)


def encoder_input(
    image: Image.Image, resolution: int, fit: Fit = "centre"
) -> UInt8[Tensor, "3 {resolution} {resolution}"]:
    """The centre square of an RGB image, or the whole of it, resized to `resolution` (bicubic, antialiased)."""
    square = image.resize((resolution, resolution), Image.Resampling.BICUBIC, box=seen_box(*image.size, fit))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


class View(NamedTuple):
    """A photograph, mirrored or not."""

    name: str
    file: str | Path | Encoded
    mirrored: bool = False
    size: int | None = None
    """Of the file, in bytes, if it is known."""

    def read(
        self, resolution: int, fit: Fit = "centre", frames: int = 1
    ) -> UInt8[Tensor, "3 S S"] | UInt8[Tensor, "F 3 S S"]:
        """Read the encoder input; see `read_image`. With several `frames`, that of a film."""
        if frames > 1:
            from vision_attn.data.films.files import read_film  # it reads frames by what is defined here

            image = read_film(self.file, frames, resolution, fit)
        else:
            image = read_image(self.file, resolution, fit)
        return image.flip(-1) if self.mirrored else image

    def read_or_black(self, resolution: int, fit: Fit = "centre", frames: int = 1) -> tuple[Tensor, str]:
        """The encoder input, and an empty text; a black one, and the reason, if it cannot be read."""
        try:
            return self.read(resolution, fit, frames), ""
        except UserError as error:
            return torch.zeros(*[frames] * (frames > 1), 3, resolution, resolution, dtype=torch.uint8), str(error)


class Pixels:
    """Photographs, or films of several `frames`, read from their files on demand, by several threads."""

    on_device = False

    def __init__(self, views: Sequence[View], resolution: int, fit: Fit = "centre", frames: int = 1) -> None:
        self.views, self.resolution, self.fit, self.frames = views, resolution, fit, frames
        self.unreadable: dict[str, str] = {}
        """The photographs that could not be read so far, with the reason."""

    def space(self, count: int) -> None:
        """Return None: pixels are not written into preallocated memory. See `Features.space`."""

    def gather(self, rows: NDArray[np.int64], space: None = None) -> UInt8[Tensor, "B *F 3 S S"]:
        """Read the pixels of views `rows`; photographs have their channels last in memory. One that cannot be read is
        black, logged and listed in `unreadable`."""
        pictures = in_threads(self._read, rows.tolist(), ahead=len(rows))
        return channels_last(torch.stack(list(pictures)))

    def _read(self, row: int) -> UInt8[Tensor, "*F 3 S S"]:
        return self._read_view(self.views[row])

    def _read_view(self, view: View) -> UInt8[Tensor, "*F 3 S S"]:
        pixels, why = view.read_or_black(self.resolution, self.fit, self.frames)
        if why and view.name not in self.unreadable:
            self.unreadable[view.name] = why
            log.warning("%s; it is left out", printable(why))
        return pixels


def channels_last(images: UInt8[Tensor, "B *F 3 S S"]) -> UInt8[Tensor, "B *F 3 S S"]:
    """Images with their channels last in memory, which is fast for convolutions; films as they are."""
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images


class WholePictures(Pixels):
    """Photographs as they are, for a model that prepares them itself: an array of PIL images."""

    def __init__(self, views: Sequence[View]) -> None:
        super().__init__(views, 1)

    def gather(self, rows: NDArray[np.int64], space: None = None) -> NDArray[np.object_]:
        pictures = np.empty(len(rows), dtype=object)
        pictures[:] = list(in_threads(self._open, [self.views[row] for row in rows.tolist()], ahead=len(rows)))
        return pictures

    def _open(self, view: View) -> Image.Image:
        try:
            return open_photograph(view.file)
        except UserError:
            return Image.fromarray(self._read_view(view).permute(1, 2, 0).numpy())  # which logs it


def open_seen(path: str | Path | Encoded, fit: Fit, at_least: int | None = None) -> Image.Image:
    """Open the part of a photograph that an encoder sees, in its own shape. See `open_photograph`."""
    return seen_part(open_photograph(path, at_least), fit)


def seen_part(photograph: Image.Image, fit: Fit) -> Image.Image:
    """Return the part of a photograph that an encoder sees, in its own shape."""
    return photograph.crop(tuple(round(edge) for edge in seen_box(*photograph.size, fit)))


def seen_box(width: int, height: int, fit: Fit) -> tuple[float, float, float, float]:
    """Return the box (left, top, right, bottom) of the part of an image that an encoder sees, in pixels."""
    return centre_square(width, height) if fit == "centre" else (0.0, 0.0, float(width), float(height))


def centre_square(width: int, height: int) -> tuple[float, float, float, float]:
    """Return the box (left, top, right, bottom) of the centre square of an image, in pixels."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def in_threads(make: Callable[[Item], Result], items: Iterable[Item], *, ahead: int = 64) -> Iterator[Result]:
    """Yield `make(item)` for each item, in order, computed by one thread per core, at most `ahead` items early.

    Threads suffice, because Pillow releases the GIL when it decodes and resizes.
    """
    with ThreadPoolExecutor(cores()) as pool:
        waiting = []
        try:
            for item in items:
                waiting.append(pool.submit(make, item))
                if len(waiting) > ahead:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

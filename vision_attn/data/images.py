"""Photographs from files, whatever their kind: upright, in RGB, and cut to the square that an encoder sees."""

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

from vision_attn.console import progress
from vision_attn.data.photographs import ENDINGS, decoded, open_photograph

Item = TypeVar("Item")
Made = TypeVar("Made")


def read_image(path: str | Path, resolution: int) -> UInt8[Tensor, "3 {resolution} {resolution}"]:
    """What an encoder sees of `path`: the shorter side resized to `resolution` (bicubic, antialiased), the centre cut.

    Raises ValueError naming the file that cannot be read.
    """
    with decoded(path, at_least=2 * resolution) as image:
        square = image.resize((resolution, resolution), Image.Resampling.BICUBIC, box=centre_square(*image.size))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


class View(NamedTuple):
    """A photograph as it is, or as in a mirror."""

    name: str
    file: Path
    mirrored: bool = False

    def read(self, resolution: int) -> UInt8[Tensor, "3 S S"]:
        """The pixels that an encoder sees; see `read_image`."""
        image = read_image(self.file, resolution)
        return image.flip(-1) if self.mirrored else image


class Pixels:
    """Photographs read from their files whenever they are asked for, by several threads."""

    on_device = False

    def __init__(self, views: Sequence[View], resolution: int) -> None:
        """Tries every file once, so that none stops a training later."""
        self.views, self.resolution = views, resolution
        complaints = progress(in_threads(self._complaint, views), what="photographs", unit="image", total=len(views))
        self.unreadable = {view.name: why for view, why in zip(views, complaints, strict=True) if why}
        """The photographs that cannot be read, with the reason."""

    def space(self, count: int) -> None:
        """Pixels need no memory beforehand; compare `Features.space`."""

    def gather(self, rows: NDArray[np.int64], space: None = None) -> UInt8[Tensor, "B 3 S S"]:
        """The pixels of views `rows`, laid out channels last. Raises ValueError naming a file that cannot be read."""
        pictures = in_threads(lambda row: self.views[row].read(self.resolution), rows, ahead=len(rows))
        return torch.stack(list(pictures)).contiguous(memory_format=torch.channels_last)

    def _complaint(self, view: View) -> str:
        try:
            if not view.mirrored:
                open_photograph(view.file, at_least=2 * self.resolution)
        except ValueError as error:
            return str(error).removeprefix(f"{view.file}: ")
        return ""


def open_square(path: str | Path, at_least: int | None = None) -> Image.Image:
    """The part of a photograph that an encoder sees, in the photograph's own pixels. See `open_photograph`."""
    photograph = open_photograph(path, at_least)
    return photograph.crop(centre_square(*photograph.size))


def centre_square(width: int, height: int) -> tuple[float, float, float, float]:
    """The part of a picture that encoders see, as left, top, right and bottom in its pixels."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def in_threads(make: Callable[[Item], Made], items: Iterable[Item], *, ahead: int = 64) -> Iterator[Made]:
    """`make` of each item, in order, worked on by as many threads as there are cores, at most `ahead` items early.

    Pillow decodes and resizes without Python's global lock, so threads serve, and no process has to be forked.
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


def images_in(folder: str | Path) -> list[Path]:
    """The image files in `folder`, by their endings, sorted; FIFOs, devices and folders with such names are none.

    Raises ValueError where there are none.
    """
    files = sorted(path for path in Path(folder).glob("*") if path.suffix.lower() in ENDINGS and os.path.isfile(path))
    if not files:
        raise ValueError(f"{folder}: no such folder, or no images in it")
    return files


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""Photographs from files, whatever their kind: upright, in RGB, and cut to the square that an encoder sees."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from vision_attn.console import progress

Item = TypeVar("Item")
Made = TypeVar("Made")

# Pillow warns above 89 million pixels and refuses above 179 million. The refusal is enough.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def open_photograph(path: str | Path, at_least: int | None = None) -> Image.Image:
    """The picture in `path`: RGB, 8 bits, turned upright by its EXIF tag; transparent parts are white.

    With `at_least`, a JPEG may come back smaller by 2, 4 or 8, its sides still at least so many pixels; a huge one is
    then read in a fraction of the time and memory. Raises ValueError naming the file that cannot be read.
    """
    try:
        with Image.open(path) as image:
            if at_least is not None:
                image.draft(None, (at_least, at_least))
            image.load()
            return _opaque(_upright(_eight_bits(image)))
    except Image.DecompressionBombError as error:
        raise ValueError(f"{path}: too large to be read safely, make it smaller ({error})") from error
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except Exception as error:  # a damaged file can make Pillow raise almost anything
        why = str(error).replace(str(path), Path(path).name)
        raise ValueError(f"{path}: not a readable image ({type(error).__name__}: {why})") from error


def read_image(path: str | Path, resolution: int) -> UInt8[Tensor, "3 {resolution} {resolution}"]:
    """What an encoder sees of `path`: the shorter side resized to `resolution` (bicubic, antialiased), the centre cut.

    Raises ValueError naming the file that cannot be read.
    """
    image = open_photograph(path, at_least=2 * resolution)
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
    """The image files in `folder`, by their endings, sorted. Raises ValueError where there are none."""
    kinds = Image.registered_extensions()
    files = sorted(path for path in Path(folder).glob("*") if path.suffix.lower() in kinds)
    if not files:
        raise ValueError(f"{folder}: no such folder, or no images in it")
    return files


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a broken tag says nothing about the picture
        return image


def _eight_bits(image: Image.Image) -> Image.Image:
    """Greys of 16 or 32 bits or of floating point brought to 0..255, where Pillow's own conversion would clip them."""
    if not image.mode.startswith("I") and image.mode != "F":
        return image
    values = np.asarray(image).astype(np.float32)
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    brightest = float(values.max(initial=0.0))
    white = 255.0
    if image.mode == "F" and brightest <= 1:
        white = 1.0
    if image.mode.startswith("I;16") or brightest > 255:
        white = max(65535.0, brightest)
    grey = Image.fromarray((values.clip(0) * (255 / white)).round().astype(np.uint8))
    grey.info["exif"] = image.info.get("exif", b"")
    return grey


def _opaque(image: Image.Image) -> Image.Image:
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")

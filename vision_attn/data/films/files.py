"""Read films from files or from folders of frames, as a fixed number of evenly spaced frames."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from vision_attn.contracts import Fit
from vision_attn.data.films.decode import ENDINGS as FILM_ENDINGS
from vision_attn.data.films.decode import decoded_film
from vision_attn.data.films.sampling import Film, SinglePicture
from vision_attn.data.images.open import ENDINGS, Encoded, Isolated, open_photograph
from vision_attn.data.images.resizing import resized
from vision_attn.data.images.squares import seen_part, seen_pixels
from vision_attn.system.console import with_article
from vision_attn.system.errors import UserError

SHOWN = 224
"""The smallest number of pixels on the shorter side of a frame for pictures."""


def read_film(
    path: str | Path | Encoded, frames: int, resolution: int, fit: Fit = "centre"
) -> UInt8[Tensor, "F 3 S S"]:
    """Read a film as the input of an encoder. Raises UserError naming the file if it cannot be read."""
    return film_input(open_film(path, frames, at_least=resolution), resolution, fit)


def film_input(film: Sequence[Image.Image], resolution: int, fit: Fit = "centre") -> UInt8[Tensor, "F 3 S S"]:
    return resized(torch.from_numpy(seen_frames(film, resolution, fit))[None], resolution)[0].contiguous()


def seen_frames(film: Sequence[Image.Image], resolution: int, fit: Fit) -> UInt8[np.ndarray, "F h w 3"]:
    """Return the pixels of the part of each frame that an encoder sees; see `seen_pixels`."""
    return np.stack([seen_pixels(frame, resolution, fit) for frame in film])


def strip(film: Sequence[Image.Image], fit: Fit = "centre") -> Image.Image:
    """Join the frames of a film, as an encoder sees them, side by side to a picture. Its `info["times"]` holds the
    times of a `Film`, if they are known."""
    pictures = [seen_part(frame, fit) for frame in film]
    joined = Image.new("RGB", (sum(picture.width for picture in pictures), pictures[0].height))
    for number, picture in enumerate(pictures):
        joined.paste(picture, (number * picture.width, 0))
    if (times := getattr(film, "times", None)) is not None:
        joined.info["times"] = times
    return joined


def open_film(path: Any, frames: int, at_least: int = SHOWN) -> Film:
    """Open frames of a film, evenly spaced in time from the first to the last.

    path: a file, a folder of frames in the order of their names, or an array (F, Y, X, 3) or tensor (F, 3, Y, X) of
    uint8.
    frames: their number; a shorter film repeats some.
    at_least: the number of pixels to which the shorter side of frames is reduced; for a file at least `SHOWN`.

    Raises UserError naming the file if it cannot be read or is too large.
    """
    if isinstance(path, np.ndarray | Tensor):
        return Film(_spaced("this film", [Image.fromarray(frame) for frame in _frames_of(path)], frames))
    if not isinstance(path, str | Path | Encoded):
        raise UserError(f"this film is {with_article(type(path).__name__)}: give a path, bytes, an array or a tensor")
    if not isinstance(path, Encoded) and Path(path).is_dir():
        names = frames_in(Path(path))
        if not names:
            raise UserError(f"{path}: no frames in this folder")
        return Film(_equal(path, [open_photograph(name, at_least) for name in _spaced(path, names, frames)]))
    if Path(str(path)).suffix.lower() in ENDINGS - FILM_ENDINGS:
        return Film(_spaced(path, [open_photograph(path, at_least)], frames))
    if isinstance(path, Isolated):
        return path.opened("film", frames, max(at_least, SHOWN))
    return decoded_film(path, frames, max(at_least, SHOWN))


def frames_in(folder: Path) -> list[Path]:
    """Return the frames in a folder: its images without hidden files, ordered by name with numbers by value, 2 before
    10."""

    def order(file: Path) -> list[str | int]:
        return [int(piece) if piece.isdecimal() else piece for piece in re.split(r"(\d+)", file.name)]

    frames = (file for file in folder.iterdir() if file.suffix.lower() in ENDINGS and not file.name.startswith("."))
    return sorted(frames, key=order)


def is_film(folder: Path) -> bool:
    """Return whether a folder is a film: it contains frames and no film file. A folder that cannot be read is no
    film."""
    try:
        endings = {file.suffix.lower() for file in folder.iterdir() if not file.name.startswith(".")}
    except OSError:
        return False
    return bool(endings & ENDINGS) and endings.isdisjoint(FILM_ENDINGS)


def _frames_of(array: np.ndarray | Tensor) -> np.ndarray:
    if isinstance(array, Tensor):
        array = array.detach().cpu().movedim(1, -1).numpy() if array.dim() == 4 else array.numpy()
    if array.ndim != 4 or array.shape[-1] != 3 or array.dtype != np.uint8 or 0 in array.shape:
        given = f"{tuple(array.shape)} of {array.dtype}"
        raise UserError(f"a film is an array (F, Y, X, 3) or a tensor (F, 3, Y, X) of uint8; this one is {given}")
    return np.ascontiguousarray(array)


def _spaced(path: Any, film: Sequence[Any], frames: int) -> list[Any]:
    """Return `frames` evenly spaced frames of a film. Raises UserError for a single frame, which shows no event to
    describe."""
    if len(film) == 1:
        raise UserError(f"{path}: {SinglePicture()}")
    return [film[place] for place in torch.linspace(0, len(film) - 1, frames).round().long().tolist()]


def _equal(path: Any, film: list[Image.Image]) -> list[Image.Image]:
    """Return the frames resized to one size. Raises UserError if a frame has another shape than the first."""
    (width, height), *others = {frame.size for frame in film}
    if others:
        raise UserError(
            f"{path}: its frames differ in size, such as {width}x{height} and {others[0][0]}x{others[0][1]}"
        )
    return film

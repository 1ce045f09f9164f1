"""Films in files: decoded by PyAV, or folders of frames; a fixed number of frames, evenly spaced, is kept of each."""

import re
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageSequence
from torch import Tensor

from vision_attn.contracts import Fit
from vision_attn.data.images.open import ENDINGS, Encoded, open_photograph
from vision_attn.data.images.squares import encoder_input, seen_part
from vision_attn.system.console import with_article

FILM_ENDINGS = frozenset(
    (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ogv", ".wmv", ".flv", ".gif")
)
"""File extensions of films, in lower case."""
LARGEST, LONGEST = 4096 * 4096, 200_000
"""Pixels of a frame, and frames of a film."""
GIF = b"GIF8"
"""The first bytes of a GIF."""
SHOWN = 224
"""Pixels that the shorter side of a frame keeps for pictures, at least."""


def read_film(
    path: str | Path | Encoded, frames: int, resolution: int, fit: Fit = "centre"
) -> UInt8[Tensor, "F 3 S S"]:
    """Read an encoder input of a film. Raises ValueError naming the file if it cannot be read."""
    return film_input(open_film(path, frames, at_least=resolution), resolution, fit)


def film_input(film: Sequence[Image.Image], resolution: int, fit: Fit = "centre") -> UInt8[Tensor, "F 3 S S"]:
    return torch.stack([encoder_input(frame, resolution, fit) for frame in film])


def strip(film: Sequence[Image.Image], fit: Fit = "centre") -> Image.Image:
    """What an encoder sees of the frames of a film, side by side: the picture of a film."""
    parts = [seen_part(frame, fit) for frame in film]
    joined = Image.new("RGB", (sum(part.width for part in parts), parts[0].height))
    for number, part in enumerate(parts):
        joined.paste(part, (number * part.width, 0))
    return joined


def open_film(path: Any, frames: int, at_least: int = SHOWN) -> list[Image.Image]:
    """Open `frames` frames of a film, evenly spaced from the first to the last; of a shorter film some are repeated.

    path: a file, a folder of frames, which are taken in the order of their names, or an array (F, Y, X, 3) or tensor
    (F, 3, Y, X) of uint8. Frames are reduced to `at_least` pixels on their shorter side. Raises ValueError naming the
    file if it cannot be read or is too large.
    """
    if isinstance(path, np.ndarray | Tensor):
        return _spaced("this film", [Image.fromarray(frame) for frame in _frames_of(path)], frames)
    if not isinstance(path, str | Path | Encoded):
        raise ValueError(f"this film is {with_article(type(path).__name__)}: give a path, bytes, an array or a tensor")
    if not isinstance(path, Encoded) and Path(path).is_dir():
        names = frames_in(Path(path))
        if not names:
            raise ValueError(f"{path}: no frames in this folder")
        return _equal(path, [open_photograph(name, at_least) for name in _spaced(path, names, frames)])
    if Path(str(path)).suffix.lower() in ENDINGS - FILM_ENDINGS:
        return _spaced(path, [open_photograph(path, at_least)], frames)
    return _spaced(path, _decoded(path, frames, at_least), frames)


def frames_in(folder: Path) -> list[Path]:
    """The frames in a folder: its images without hidden files, in the order of their names, in which 2 is before 10."""

    def order(file: Path) -> list[str | int]:
        return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", file.name)]

    found = (file for file in folder.iterdir() if file.suffix.lower() in ENDINGS and not file.name.startswith("."))
    return sorted(found, key=order)


def is_film(folder: Path) -> bool:
    """Whether a folder is a film: it holds frames, and no file of a film. One that cannot be read is none."""
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
        raise ValueError(f"a film is an array (F, Y, X, 3) or a tensor (F, 3, Y, X) of uint8; this one is {given}")
    return np.ascontiguousarray(array)


def _spaced(path: Any, film: Sequence[Any], frames: int) -> list[Any]:
    """`frames` of these, evenly spaced. Raises ValueError for a single one, which shows no event to describe."""
    if len(film) == 1:
        raise ValueError(f"{path}: a single picture, and this model takes films: give a film, or a folder of frames")
    return [film[place] for place in torch.linspace(0, len(film) - 1, frames).round().long().tolist()]


def _equal(path: Any, film: list[Image.Image]) -> list[Image.Image]:
    """Frames of one size. Raises ValueError if a frame has another shape than the first."""
    (width, height), *others = {frame.size for frame in film}
    if others:
        raise ValueError(
            f"{path}: its frames differ in size, such as {width}x{height} and {others[0][0]}x{others[0][1]}"
        )
    return film


def _decoded(path: str | Path | Encoded, frames: int, at_least: int) -> list[Image.Image]:
    """At least `frames` evenly spaced frames of a film file, if it has as many."""
    if not isinstance(path, Encoded) and not Path(path).is_file():
        raise ValueError(f"{path}: {'not a regular file' if Path(path).exists() else 'no such file'}")
    try:
        source = _not_empty(path)
        return (_by_pillow if _is_gif(source) else _by_pyav)(source, frames, at_least)
    except ImportError as error:
        raise ValueError(f"{path}: films need the extra [video]: pip install 'vision_attn[video]'") from error
    except (ValueError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path}: not a readable film ({str(error) or type(error).__name__})") from error
    except OSError as error:
        raise ValueError(f"{path}: not a readable film ({error.strerror or type(error).__name__})") from error


def _by_pyav(source: str | BytesIO, frames: int, at_least: int) -> list[Image.Image]:
    import av

    try:
        with av.open(source) as container:
            if not container.streams.video:
                raise ValueError("it has no pictures")
            return _kept((frame for frame in container.decode(video=0)), frames, at_least)
    except av.FFmpegError as error:
        raise ValueError(error.strerror or type(error).__name__) from error


def _by_pillow(source: str | BytesIO, frames: int, at_least: int) -> list[Image.Image]:
    """Of a GIF: of one without times, PyAV reads the first frame alone."""
    try:
        with Image.open(source, formats=["GIF"]) as film:
            _check_size(film)
            return _kept((frame.convert("RGB") for frame in ImageSequence.Iterator(film)), frames, at_least)
    except Exception as error:  # a damaged file can make Pillow raise almost anything
        raise ValueError(str(error) if type(error) is ValueError else type(error).__name__) from error


def _is_gif(source: str | BytesIO) -> bool:
    if isinstance(source, BytesIO):
        return bytes(source.getbuffer()[:4]) == GIF
    with open(source, "rb") as file:
        return file.read(4) == GIF


def _check_size(frame: Any) -> None:
    if frame.width * frame.height > LARGEST:
        raise ValueError(f"it has more than {LARGEST:,} pixels in a frame")


def _not_empty(path: str | Path | Encoded) -> str | BytesIO:
    """What decoders open. Raises ValueError for a file without a byte."""
    content = path.read() if isinstance(path, Encoded) else None
    if content == b"" or (content is None and not Path(str(path)).stat().st_size):
        raise ValueError("the file is empty")
    return str(path) if content is None else BytesIO(content)


def _kept(film: Iterable[Any], frames: int, at_least: int) -> list[Image.Image]:
    """Every n-th frame, where n doubles as soon as there are too many: a film of any length takes little memory."""
    kept: list[Image.Image] = []
    every, most = 1, 8 * frames
    number, last = -1, None
    for number, frame in enumerate(film):
        _check_size(frame)
        if number >= LONGEST:
            raise ValueError(f"it has more than {LONGEST:,} frames")
        last = frame
        if number % every == 0:
            kept.append(_reduced(frame, at_least))
            if len(kept) == most:
                kept, every = kept[::2], 2 * every
    if last is None:
        raise ValueError("it has no frames")
    return kept if number % every == 0 else [*kept, _reduced(last, at_least)]


def _reduced(frame: Any, at_least: int) -> Image.Image:
    """A frame of PyAV or Pillow as a picture whose shorter side has not many more pixels than `at_least`."""
    scale = at_least / min(frame.width, frame.height)
    size = (round(frame.width * scale), round(frame.height * scale)) if scale < 1 else (frame.width, frame.height)
    if isinstance(frame, Image.Image):
        return frame.resize(size, Image.Resampling.BICUBIC)
    return frame.to_image(width=size[0], height=size[1]) if scale < 1 else frame.to_image()

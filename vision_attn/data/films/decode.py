"""Decode films from untrusted files, by PyAV. It needs no torch.

A small file may declare a huge film. Or it may be a playlist, which names other files, or the description of a
broadcast, which opens network connections. So only demuxers of films are allowed, which read nothing but the file
itself, and the announced sizes are checked before anything is decoded.
"""

import errno
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path
from struct import unpack
from typing import Any, NamedTuple

from PIL import Image

from vision_attn.data.films.gifs import MAGIC, film_of_gif
from vision_attn.data.films.sampling import LARGEST, Film, Limits, SinglePicture, moments, reduced_size
from vision_attn.data.images.open import Encoded
from vision_attn.system.errors import UserError

DEMUXERS = "mov,matroska,avi,mpeg,mpegvideo,mpegts,flv,asf,ogg,yuv4mpegpipe"
"""The demuxers of FFmpeg that are allowed. Others read playlists, image sequences, devices and networks."""
FORMATS = "MP4, MOV, MKV, WebM, AVI, GIF, MPEG, FLV, WMV, Ogg, Y4M"
"""The formats that these demuxers read, for messages."""
ENDINGS = frozenset(
    (".mp4", ".m4v", ".mov", ".3gp", ".mkv", ".webm", ".avi", ".gif", ".mpg", ".mpeg", ".vob", ".mts", ".m2ts", ".flv",
     ".wmv", ".asf", ".ogv", ".y4m")
)  # fmt: skip
"""File extensions of films, in lower case."""
BUFFER = 1 << 18
"""Bytes of a file that are read at once."""
WIDEST = 8
"""The largest ratio of a pixel's width and height. If a film states a larger one, its pixels are taken as squares."""
TURNS = {
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT, (-1, 0, 0, -1): Image.Transpose.ROTATE_180,
    (1, 0, 0, -1): Image.Transpose.FLIP_TOP_BOTTOM, (0, 1, 1, 0): Image.Transpose.TRANSPOSE,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270, (0, -1, -1, 0): Image.Transpose.TRANSVERSE,
    (0, -1, 1, 0): Image.Transpose.ROTATE_90,
}  # fmt: skip
"""The transpose for a display matrix, by the signs of its a, b, c and d: (x, y) -> (a x + c y, b x + d y)."""


def decoded_film(path: str | Path | Encoded, frames: int, at_least: int, limits: Limits | None = None) -> Film:
    """Decode frames of a film file, evenly spaced in time and upright. Raises UserError naming the file if it cannot be
    read, shows a single picture, or exceeds `limits`.

    frames: their number; a film with fewer frames repeats some.
    at_least: the number of pixels to which their shorter side is reduced.
    """
    if not isinstance(path, Encoded) and not Path(path).is_file():
        raise UserError(f"{path}: {'not a regular file' if Path(path).exists() else 'no such file'}")
    try:
        with _opened(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            first = file.read(len(MAGIC))
            if not first:
                raise UserError("the file is empty")
            return (film_of_gif if first == MAGIC else _by_pyav)(file, frames, at_least, limits or Limits(size))
    except SinglePicture as error:
        raise UserError(f"{path}: {error}") from error
    except ImportError as error:
        raise UserError(f"{path}: films need the extra [video]: pip install 'vision_attn[video]'") from error
    except (ValueError, OverflowError, MemoryError) as error:
        raise UserError(f"{path}: not a readable film ({str(error) or type(error).__name__})") from error
    except OSError as error:
        raise UserError(f"{path}: not a readable film ({error.strerror or type(error).__name__})") from error


@contextmanager
def _opened(path: str | Path | Encoded) -> Iterator[Any]:
    """Context manager: open a film as bytes. FFmpeg gets no file name, since it would take names for addresses or
    patterns."""
    if isinstance(path, Encoded):
        yield BytesIO(path.read())
        return
    with open(path, "rb") as file:
        raw: Any = file.raw
        raw.name = "film"
        yield file


def _by_pyav(file: Any, frames: int, at_least: int, limits: Limits) -> Film:
    """Read the times of all frames, then keep the frames that are on screen at evenly spaced times. If frames have no
    times, or times jump back, frames are counted instead."""
    import av

    try:
        if (times := _times(file, limits)) is not None:
            wanted = moments(*times, frames)
            if (kept := _kept(_decoded(file, limits), wanted, at_least)) is not None:
                return Film(kept, [moment - times[0][0] for moment in wanted])
        count = sum(1 for _ in _decoded(file, limits))
        numbered = (shown._replace(start=float(number)) for number, shown in enumerate(_decoded(file, limits)))
        return Film(_kept(numbered, moments([0.0, 1.0, count - 1.0], float(count), frames), at_least) or ())
    except av.FFmpegError as error:
        raise UserError(error.strerror or type(error).__name__) from error


@contextmanager
def _stream(file: Any) -> Iterator[tuple[Any, Any]]:
    """Context manager: open the container in a file, and its film. Raises UserError if it has none, or is of another
    format."""
    import av

    # Not as `options`: with these, old versions of PyAV crash on containers whose streams are found later.
    allowed = {"format_whitelist": DEMUXERS, "protocol_whitelist": "none"}
    settings: dict[str, Any] = {
        "container_options": allowed,
        "io_open": _refused,
        "buffer_size": BUFFER,
        "metadata_errors": "replace",
    }
    file.seek(0)
    try:
        container = av.open(file, **settings)
    except av.FFmpegError as error:
        if error.errno == errno.EINVAL:
            raise UserError(f"none of the formats that are read: {FORMATS}") from error
        raise
    with container:
        if (stream := container.streams.best("video")) is None:
            raise UserError("it has no pictures")
        if stream.codec_context is None:
            raise UserError("FFmpeg does not know how its pictures are encoded")
        yield container, stream


def _refused(*_: Any) -> None:
    """Called by FFmpeg to open one more file."""
    raise UserError("it names other files")


def _times(file: Any, limits: Limits) -> tuple[list[float], float] | None:
    """Read the time at which each frame of a film appears, and the time at which the last one disappears, in seconds,
    without decoding. None if a time is missing."""
    starts, lengths, before = [], {}, None
    with _stream(file) as (container, stream):
        for packet in container.demux(stream):
            if not packet.size or packet.is_discard:
                continue
            if packet.pts is None or (None not in (before, packet.dts) and packet.dts < before):
                return None
            before = packet.dts
            starts.append(packet.pts)
            lengths[packet.pts] = packet.duration or 0
            limits.check(stream.width, stream.height, len(starts))
        unit = float(stream.time_base)
    starts.sort()
    if len(starts) < 2 or starts[0] == starts[-1]:
        return None
    end = starts[-1] + (lengths[starts[-1]] or starts[-1] - starts[-2])
    return [start * unit for start in starts], end * unit


class _Shown(NamedTuple):
    """A decoded frame."""

    start: float | None
    """The time at which it appears, in seconds, if it is known."""
    frame: Any
    aspect: float
    """The width of its pixels divided by their height."""


def _decoded(file: Any, limits: Limits) -> Generator[_Shown, None, None]:
    """Yield the frames of a film."""
    with _stream(file) as (container, stream):
        limits.check(stream.width, stream.height)
        stream.thread_type = "AUTO"
        stream.codec_context.options = {"max_pixels": str(LARGEST)}
        aspect = float(stream.sample_aspect_ratio or 1) or 1.0
        aspect = aspect if 1 / WIDEST <= aspect <= WIDEST else 1.0
        for number, frame in enumerate(container.decode(stream), start=1):
            limits.check(frame.width, frame.height, number)
            yield _Shown(None if frame.pts is None else float(frame.pts * frame.time_base), frame, aspect)


def _kept(shown: Generator[_Shown, None, None], wanted: Sequence[float], at_least: int) -> list[Image.Image] | None:
    """Return the frames on screen at the `wanted` times; None if a frame has no time."""
    kept: list[Image.Image] = []
    last, count = None, 0
    with closing(shown):
        for frame in shown:
            if frame.start is None:
                return None
            while last is not None and len(kept) < len(wanted) and wanted[len(kept)] < frame.start:
                kept.append(_picture(last, at_least))
            last, count = frame, count + 1
    if last is None:
        raise UserError("it has no frames")
    if count == 1:
        raise SinglePicture
    kept += [_picture(last, at_least)] * (len(wanted) - len(kept))
    size = kept[0].size  # which may change within a film
    return [frame if frame.size == size else frame.resize(size, Image.Resampling.BICUBIC) for frame in kept]


def _picture(shown: _Shown, at_least: int) -> Image.Image:
    """Return a frame upright, with square pixels, reduced."""
    frame, wide = shown.frame, max(1.0, shown.aspect)
    width, height = reduced_size(round(frame.width * wide), round(frame.height * wide / shown.aspect), at_least)
    picture = frame.to_image(width=width, height=height)
    turn = _turn(frame)
    return picture if turn is None else picture.transpose(turn)


def _turn(frame: Any) -> Image.Transpose | None:
    """Return the transpose that turns a frame upright, from its display matrix, which a camera held on its side
    writes."""
    matrix = next((data for data in frame.side_data if data.type.name == "DISPLAYMATRIX"), None)
    if matrix is None or len(content := bytes(matrix)) < 20:
        return None
    a, b, _, c, d = unpack("=5i", content[:20])
    if abs(a) + abs(d) >= abs(b) + abs(c):
        b = c = 0
    else:
        a = d = 0
    return TURNS.get(tuple((number > 0) - (number < 0) for number in (a, b, c, d)))

"""`Pixels`: read photographs and films from their files as inputs of encoders, and keep photographs in memory while
there is room.

A batch is read in two parts, so that files are decoded while the previous batch is in use: `read` may run in any thread
and does not call CUDA, `finish` runs in the thread that uses the batch.
"""

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vision_attn.contracts import Fit
from vision_attn.data.films.files import open_film, seen_frames
from vision_attn.data.images.open import Encoded, open_photograph
from vision_attn.data.images.resizing import SameSize, as_index, grouped, squares
from vision_attn.data.images.squares import in_threads, read_seen
from vision_attn.system.console import printable
from vision_attn.system.errors import UserError
from vision_attn.system.machine import cores
from vision_attn.system.memory import available

log = logging.getLogger(__name__)

SHARE, CPU_SHARE = 0.5, 0.25
"""The shares of the free memory of a GPU, and of the machine, that photographs may take; training needs the rest."""
AHEAD = 2
"""The number of batches that are read while one is in use, each in a thread, so that one is resized while files of the
next are decoded."""
CPU = torch.device("cpu")


class View(NamedTuple):
    """A photograph, mirrored or not."""

    name: str
    file: str | Path | Encoded
    mirrored: bool = False
    size: int | None = None
    """The bytes of the file, if they are known."""

    def read(
        self, resolution: int, fit: Fit = "centre", frames: int = 1
    ) -> UInt8[np.ndarray, "h w 3"] | UInt8[np.ndarray, "F h w 3"]:
        """Decode the part that an encoder sees; see `read_seen`. With several `frames`, decode a film."""
        if frames > 1:
            pixels = seen_frames(open_film(self.file, frames, at_least=resolution), resolution, fit)
        else:
            pixels = read_seen(self.file, resolution, fit)
        return np.ascontiguousarray(pixels[..., ::-1, :]) if self.mirrored else pixels

    def read_or_black(self, resolution: int, fit: Fit = "centre", frames: int = 1) -> tuple[np.ndarray, str]:
        """Return the result of `read` and an empty text, or black pixels and the reason if the file cannot be read."""
        try:
            return self.read(resolution, fit, frames), ""
        except UserError as error:
            return np.zeros([*[frames] * (frames > 1), resolution, resolution, 3], dtype=np.uint8), str(error)


class Pixels:
    """Photographs, or films with several `frames`, read from their files on demand by several threads, and resized on
    `device`."""

    def __init__(
        self,
        views: Sequence[View],
        resolution: int,
        fit: Fit = "centre",
        frames: int = 1,
        device: torch.device = CPU,
        *,
        silent: bool = False,
    ) -> None:
        """silent: whether not to log photographs that cannot be read."""
        self.silent = silent
        self.views, self.resolution, self.fit, self.frames = views, resolution, fit, frames
        self.device = device if device.type == "cuda" else CPU
        self.unreadable: dict[str, str] = {}
        """The photographs that could not be read so far, with the reason."""

    def space(self, count: int) -> None:
        """Return None: pixels are not written into preallocated memory. See `Features.space`."""

    def read(self, indices: NDArray[np.int64], space: Tensor | None = None) -> Any:
        """Decode views `indices`, and resize them if `device` is the CPU. A view that cannot be read is black, logged
        and listed in `unreadable`."""
        return self._early(self._groups([self.views[index] for index in indices.tolist()]))

    def finish(self, read: Any) -> UInt8[Tensor, "B *F 3 S S"]:
        """Complete a batch that `read` has begun. Photographs have their channels last in memory."""
        return read if isinstance(read, Tensor) else squares(read, self.resolution, self.device)

    def gather(self, indices: NDArray[np.int64], space: Tensor | None = None) -> UInt8[Tensor, "B *F 3 S S"]:
        return self.finish(self.read(indices, space))

    def _groups(self, views: list[View]) -> list[SameSize]:
        return grouped(list(_decoders(os.getpid(), cores()).map(self._read_view, views)))

    def _early(self, groups: list[SameSize]) -> Any:
        """Return the result of `read` for decoded photographs. For a CPU, they are resized in the reading thread."""
        return squares(groups, self.resolution, self.device) if self.device.type == "cpu" else groups

    def _read_view(self, view: View) -> UInt8[np.ndarray, "*F h w 3"]:
        pixels, why = view.read_or_black(self.resolution, self.fit, self.frames)
        if why and view.name not in self.unreadable:
            self.unreadable[view.name] = why
            if not self.silent:
                log.warning("%s; it is left out", printable(why))
        return pixels


class WholePictures(Pixels):
    """Unchanged photographs for a model that prepares them itself: an array of PIL images."""

    def __init__(self, views: Sequence[View]) -> None:
        super().__init__(views, 1)

    def read(self, indices: NDArray[np.int64], space: Tensor | None = None) -> NDArray[np.object_]:
        pictures = np.empty(len(indices), dtype=object)
        pictures[:] = list(
            in_threads(self._open, [self.views[index] for index in indices.tolist()], ahead=len(indices))
        )
        return pictures

    def finish(self, read: NDArray[np.object_]) -> NDArray[np.object_]:
        return read

    def _open(self, view: View) -> Image.Image:
        try:
            return open_photograph(view.file)
        except UserError:
            return Image.fromarray(self._read_view(view))  # which logs it


@cache
def _decoders(process: int, number: int) -> ThreadPoolExecutor:
    """Return the decoding threads, one for each core, shared by all batches that are read at the same time; more
    threads would only wait for Python's lock. Threads of another process (before a fork) do not exist in this one."""
    return ThreadPoolExecutor(number)


def pixels(
    views: Sequence[View],
    resolution: int | None,
    device: torch.device,
    *,
    repeated: bool,
    fit: Fit = "centre",
    frames: int = 1,
) -> Pixels:
    """Return photographs, or films with several `frames`, for an encoder.

    resolution: None: for a model that takes unchanged photographs.
    device: the device of the encoder.
    repeated: whether each photograph is needed in many epochs, so that it should stay in memory. Films are too large
        for this.
    """
    if resolution is None:
        return WholePictures(views)
    if not repeated or frames > 1:
        return Pixels(views, resolution, fit, frames, device)
    room = SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else CPU_SHARE * available()
    return HeldPixels(views, resolution, device, fit=fit, room=int(room))


class HeldPixels(Pixels):
    """Photographs that are decoded once, as the square that an encoder sees, and then stay in memory, for a GPU in its
    own. Photographs for which there is no room are read each time."""

    def __init__(
        self, views: Sequence[View], resolution: int, device: torch.device, *, room: int, fit: Fit = "centre"
    ) -> None:
        """room: the number of bytes that photographs may take. Memory is allocated when the first photograph is
        read."""
        super().__init__(views, resolution, fit, device=device)
        self.places: dict[str, int] = {}
        """The position of each photograph in `table`, by name."""
        self.most = min(len({view.name for view in views}), room // (3 * resolution**2))
        self.table: UInt8[Tensor, "N S S 3"] | None = None
        self._lock = Lock()

    def read(self, indices: NDArray[np.int64], space: Tensor | None = None) -> Any:
        views = [self.views[index] for index in indices.tolist()]
        with self._lock:
            held = {number: self.places[view.name] for number, view in enumerate(views) if view.name in self.places}
        new = [number for number in range(len(views)) if number not in held]
        read = _ReadBatch(views, held, new, self._groups([views[number] for number in new]) if new else [])
        return self._finished(read) if self.device.type == "cpu" else read

    def finish(self, read: Any) -> UInt8[Tensor, "B 3 S S"]:
        return read if isinstance(read, Tensor) else self._finished(read)

    def _finished(self, read: "_ReadBatch") -> UInt8[Tensor, "B 3 S S"]:
        with self._lock:
            if self.table is None:
                shape = self.most, self.resolution, self.resolution, 3
                self.table = torch.empty(shape, dtype=torch.uint8, device=self.device)
        pieces = []
        if read.held:
            pieces.append(self.table.index_select(0, as_index([*read.held.values()], self.device)))
        if read.new:
            pieces.append(squares(read.groups, self.resolution, self.device).movedim(1, -1))
            self._hold([read.views[number].name for number in read.new], pieces[-1])
        if len(pieces) == 1:
            return pieces[0].movedim(-1, 1)
        order = np.argsort([*read.held, *read.new]).tolist()
        return torch.cat(pieces).index_select(0, as_index(order, self.device)).movedim(-1, 1)

    def _hold(self, names: list[str], images: UInt8[Tensor, "M S S 3"]) -> None:
        """Keep as many photographs as there is room for; a repeated photograph is kept once."""
        with self._lock:
            first = {name: number for number, name in reversed(list(enumerate(names))) if name not in self.places}
            start = len(self.places)
            kept = sorted(first.values())[: self.most - start]
            if kept and self.table is not None:
                self.table[start : start + len(kept)] = images[as_index(kept, self.device)]
                self.places |= {names[number]: start + place for place, number in enumerate(kept)}


class _ReadBatch(NamedTuple):
    """The photographs of a batch, held and new, between `HeldPixels.read` and `finish`."""

    views: list[View]
    held: dict[int, int]
    """For photographs that are already in the table: their position in the table, by their position in the batch."""
    new: list[int]
    """The positions in the batch of the others, which are in `groups`."""
    groups: list[SameSize]

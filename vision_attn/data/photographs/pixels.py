"""Photographs and films, read from their files as encoder inputs; on a GPU they stay there once they have been read, as
far as its memory allows."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vision_attn.contracts import Fit
from vision_attn.data.films.files import read_film
from vision_attn.data.images.open import Encoded, open_photograph
from vision_attn.data.images.squares import in_threads, read_image
from vision_attn.system.console import printable
from vision_attn.system.errors import UserError

log = logging.getLogger(__name__)

SHARE = 0.5
"""Of a GPU's free memory that photographs may take; training needs the rest."""


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
        film = frames > 1
        image = read_film(self.file, frames, resolution, fit) if film else read_image(self.file, resolution, fit)
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

    def gather(self, rows: NDArray[np.int64], space: Tensor | None = None) -> UInt8[Tensor, "B *F 3 S S"]:
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

    def gather(self, rows: NDArray[np.int64], space: Tensor | None = None) -> NDArray[np.object_]:
        pictures = np.empty(len(rows), dtype=object)
        pictures[:] = list(in_threads(self._open, [self.views[row] for row in rows.tolist()], ahead=len(rows)))
        return pictures

    def _open(self, view: View) -> Image.Image:
        try:
            return open_photograph(view.file)
        except UserError:
            return Image.fromarray(self._read_view(view).permute(1, 2, 0).numpy())  # which logs it


def pixels(
    views: Sequence[View],
    resolution: int | None,
    device: torch.device,
    *,
    repeated: bool,
    fit: Fit = "centre",
    frames: int = 1,
) -> Pixels:
    """Photographs, or films of several `frames`, for an encoder on `device`; without a `resolution`, as they are.
    repeated: each is needed in many epochs, so a GPU holds photographs; films are too large."""
    if resolution is None:
        return WholePictures(views)
    if device.type != "cuda" or not repeated or frames > 1:
        return Pixels(views, resolution, fit, frames)
    free, _ = torch.cuda.mem_get_info(device)
    return HeldPixels(views, resolution, device, fit=fit, room=int(SHARE * free))


class HeldPixels(Pixels):
    """Each photograph is decoded once, as the square that an encoder sees, and stays on the device. Those that there is
    no room for are read each time."""

    on_device = True

    def __init__(
        self, views: Sequence[View], resolution: int, device: torch.device, *, room: int, fit: Fit = "centre"
    ) -> None:
        """`room`: the bytes that photographs may take. Memory is allocated when the first one is read."""
        super().__init__(views, resolution, fit)
        self.device = device
        self.places: dict[str, int] = {}
        """Where each photograph lies in `table`, by name."""
        self.most = min(len({view.name for view in views}), room // (3 * resolution**2))
        self.table: UInt8[Tensor, "N S S 3"] | None = None

    def gather(self, rows: NDArray[np.int64], space: Tensor | None = None) -> UInt8[Tensor, "B 3 S S"]:
        views = [self.views[row] for row in rows.tolist()]
        if self.table is None:
            self.table = torch.empty(self.most, *[self.resolution] * 2, 3, dtype=torch.uint8, device=self.device)
        images = self.table.new_empty(len(views), *self.table.shape[1:])
        held = [number for number, view in enumerate(views) if view.name in self.places]
        if held:
            places = self._there([self.places[views[number].name] for number in held])
            images.index_copy_(0, self._there(held), self.table.index_select(0, places))
        if new := [number for number, view in enumerate(views) if view.name not in self.places]:
            read = torch.stack(list(in_threads(self._read_view, [views[number] for number in new], ahead=len(new))))
            read = read.permute(0, 2, 3, 1).to(self.device)
            images.index_copy_(0, self._there(new), read)
            self._hold([views[number].name for number in new], read)
        return images.permute(0, 3, 1, 2)

    def _hold(self, names: list[str], read: UInt8[Tensor, "M S S 3"]) -> None:
        """Keep as many as there is room for, a photograph that is there twice once."""
        first = {name: number for number, name in reversed(list(enumerate(names)))}
        kept = sorted(first.values())[: self.most - len(self.places)]
        start = len(self.places)
        assert self.table is not None
        self.table[start : start + len(kept)] = read[kept]
        self.places |= {names[number]: start + place for place, number in enumerate(kept)}

    def _there(self, numbers: list) -> Tensor:
        """Numbers as a tensor on the device, copied without waiting for it."""
        tensor = torch.tensor(numbers)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

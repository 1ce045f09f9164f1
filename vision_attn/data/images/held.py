"""Photographs that stay on a GPU once they have been read, as far as its memory allows."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from vision_attn.contracts import Fit
from vision_attn.data.images.squares import Pixels, View, WholePictures, in_threads

SHARE = 0.5
"""Of a GPU's free memory that photographs may take; training needs the rest."""


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

    def gather(self, rows: NDArray[np.int64], space: None = None) -> UInt8[Tensor, "B 3 S S"]:
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
        self.table[start : start + len(kept)] = read[kept]
        self.places |= {names[number]: start + place for place, number in enumerate(kept)}

    def _there(self, numbers: list) -> Tensor:
        """Numbers as a tensor on the device, copied without waiting for it."""
        tensor = torch.tensor(numbers)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

"""`Views`, the photographs of all splits as inputs of an encoder, plain and mirrored."""

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import compress, pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from vision_attn.data.photographs.pixels import View
from vision_attn.data.photographs.store import Photographs
from vision_attn.data.ragged import BLOCK
from vision_attn.system.errors import UserError


class Views(Sequence[View]):
    """The photographs of all splits, each once, then those of `train` mirrored if `flips` is set."""

    def __init__(self, splits: Mapping[str, Photographs], *, flips: bool) -> None:
        """Raises UserError if a file is in two splits."""
        self.splits = list(splits.values())
        self.ends = np.cumsum([len(members) for members in self.splits])
        names = [name for photographs in self.splits for name in photographs.all_names()]
        order = sorted(range(len(names)), key=names.__getitem__)
        new = [True, *(names[before] != names[after] for before, after in pairwise(order))][: len(order)]
        self.photographs = np.fromiter(compress(order, new), dtype=np.int64)
        """The number of the photograph of each view, counted over all splits."""
        view_indices = np.empty(len(names), dtype=np.int64)
        view_indices[order] = np.cumsum(new) - 1
        self.view_indices = dict(zip(splits, np.split(view_indices, self.ends[:-1]), strict=True))
        """The index of the view of each photograph, by split."""
        self._refuse_shared()
        self.mirrored = np.unique(self.view_indices["train"][: None if flips else 0])
        """The indices of the views that are repeated at the end, mirrored."""
        self.numbers = range(len(self.photographs) + len(self.mirrored))

    @overload
    def __getitem__(self, number: int) -> View: ...
    @overload
    def __getitem__(self, number: slice) -> "Views": ...
    def __getitem__(self, number: int | slice) -> "View | Views":
        if isinstance(number, slice):
            views = copy(self)
            views.numbers = self.numbers[number]
            return views
        return next(self._views([self.numbers[number]]))

    def __iter__(self) -> Iterator[View]:
        return self._views(self.numbers)

    def _views(self, numbers: Sequence[int]) -> Iterator[View]:
        starts, count = np.array([0, *self.ends[:-1]]), len(self.photographs)
        for first in range(0, len(numbers), BLOCK):
            block = np.array(numbers[first : first + BLOCK])
            mirrored = block >= count
            block[mirrored] = self.mirrored[block[mirrored] - count]
            photographs = self.photographs[block]
            splits = np.searchsorted(self.ends, photographs, side="right")
            places = zip(splits.tolist(), (photographs - starts[splits]).tolist(), mirrored.tolist(), strict=True)
            yield from (self.splits[split].view(number, mirrored=flip) for split, number, flip in places)

    def __len__(self) -> int:
        return len(self.numbers)

    def _refuse_shared(self) -> None:
        """Raise UserError if a file is in two splits."""
        owner = np.full(len(self.photographs), -1)
        for number, (split, view_indices) in enumerate(self.view_indices.items()):
            if (owner[view_indices] >= 0).any():
                shared = int(np.argmax(owner[view_indices] >= 0))
                other = list(self.view_indices)[owner[view_indices[shared]]]
                more = int((owner[view_indices] >= 0).sum()) - 1
                raise UserError(
                    f"{self.splits[number].file(shared)} is in two splits, {other} and {split}"
                    + (f", and so are {more:,} others of {split}" if more else "")
                )
            owner[view_indices] = number

    def plain_and_mirrored(self) -> "list[Views]":
        """Return the plain views and, if there are any, the mirrored ones. Each has its own cache, so that a cache of
        the plain views can be used with mirroring."""
        count = len(self.photographs)
        return [views for views in (self[:count], self[count:]) if len(views)]

    def ids(self) -> Iterator[int | str]:
        """Yield the id of each photograph once, without the mirrored views."""
        starts = np.array([0, *self.ends[:-1]])
        splits = np.searchsorted(self.ends, self.photographs, side="right")
        for split, number in zip(splits.tolist(), (self.photographs - starts[splits]).tolist(), strict=True):
            photographs = self.splits[split]
            yield json.loads(photographs.ids.text(photographs.members.item(number)))

    def mirrors(self, view_indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return indices of the mirrored views of training photographs."""
        return len(self.photographs) + np.searchsorted(self.mirrored, view_indices)

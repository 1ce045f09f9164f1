"""Several data sets of photographs in one run: the files of each, and what an encoder takes of all."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from vision_attn.data.photographs.annotations import read_splits
from vision_attn.data.photographs.pixels import View
from vision_attn.data.photographs.store import Photographs, locate
from vision_attn.data.photographs.views import Views
from vision_attn.system.errors import UserError
from vision_attn.system.files import find
from vision_attn.task import SPLITS, known_split

NAME = re.compile(r"\w[\w.-]{0,63}")
OWN = ("images", "annotations", "split_files", "columns", "features")
"""Keys of a data set alone that each of several has for itself."""


@dataclass
class PhotographSet:
    """A data set of photographs, one of `data.sources`."""

    images: str | dict[str, str] | None
    """The folder of photographs: as `data.images`."""
    name: str = ""
    """Letters, digits, -, _ and dots. Metrics of this set end in it, as `CIDEr_mine`."""
    annotations: str | dict[str, str] | None = None
    """The file of captions: as `data.annotations`."""
    split_files: str | dict[str, str] | None = None
    """Lists of names or ids: as `data.split_files`."""
    columns: dict[str, str | int] | None = None
    """The names of columns: as `data.columns`."""
    features: str | None = None
    """Annotation vectors that another program computed: as `data.features`."""
    share: float | None = None
    """The share of each epoch, above 0 and below 1; None: what the others leave, by size."""
    new_words: bool = True
    """Whether the vocabulary has the words of its training captions. False for a set that a run rehearses, whose words
    the captioner knows as far as they are frequent."""

    @property
    def place(self) -> str:
        """What messages call it."""
        return f"{self.images if self.annotations is None else self.annotations}"

    def read(self, *, cache: str | None, download: bool) -> dict[str, Photographs]:
        """All photographs with captions, by split, in the order of the annotation files."""
        annotations = self.images if self.annotations is None else self.annotations
        assert annotations is not None
        return read_splits(annotations, self.split_files, columns=self.columns, cache=cache, download=download)

    def located(self, photographs: Mapping[str, Photographs], *, films: bool) -> dict[str, Photographs]:
        """Find the files of `photographs`: see `store.locate`."""
        images: dict[str, Any] = self.images if isinstance(self.images, dict) else dict.fromkeys(SPLITS, self.images)
        if any(members.files is not None for members in photographs.values()):
            images = {}  # the dataset holds them
        folders = {known_split(split): find(path) for split, path in images.items()}
        return locate(photographs, folders, films=films)


def sources_of(
    sources: Sequence[PhotographSet] | None, one: PhotographSet, evaluate: Sequence[str] | None
) -> list[PhotographSet]:
    """The data sets that a config names: several, or `one`. Raises UserError if it names both or neither, for `sources`
    that do not fit together, and for names in `evaluate` that they do not have."""
    if sources is None and one.images is None:
        raise UserError("data.images is missing: name a folder of photographs, or several data sets (data.sources)")
    if sources is not None:
        if given := next((name for name in OWN if getattr(one, name) is not None), None):
            raise UserError(
                f"data.sources and data.{given} exclude each other: write it into the source that it belongs to, with "
                f"--data.{given}=null, or leave out the sources, with --data.sources=null"
            )
        _check(sources)
    found = [one] if sources is None else [*sources]
    names = [each.name for each in found]
    if unknown := next((name for name in evaluate or () if name not in names), None):
        raise UserError(f"data.evaluate: {unknown} is no source; there are {', '.join(filter(None, names)) or 'none'}")
    return found


def _check(sources: Sequence[PhotographSet]) -> None:
    """Raise UserError unless `sources` have names of their own and shares that leave something for the others."""
    if not sources:
        raise UserError("data.sources is empty: name at least one data set, or set data.images")
    for number, one in enumerate(sources):
        if not NAME.fullmatch(one.name):
            given = f"is {one.name!r:.80}, but must consist" if one.name else "is missing: give one that consists"
            raise UserError(f"data.sources.{number}.name {given} of letters, digits, -, _ and dots")
        if one.images is None:
            raise UserError(f"data.sources: {one.name} has no images: name its folder of photographs")
        if one.name in (other.name for other in sources[:number]):
            raise UserError(f"data.sources: {one.name} is the name of two data sets: give each its own")
        if one.share is not None and not 0 < one.share < 1:
            raise UserError(
                f"data.sources: the share of {one.name} is {one.share:g}, but must be above 0 and below 1; leave it "
                "out for that of its size"
            )
    shares = [one.share for one in sources if one.share is not None]
    every, total = len(shares) == len(sources), sum(shares)
    if every and abs(total - 1) > 1e-3 or not every and total >= 1:
        way = "must be 1 together" if every else "must be below 1 together, or nothing is left for the others"
        raise UserError(f"data.sources: the shares are {total:g} together, but {way}")
    if not any(one.new_words for one in sources):
        raise UserError("data.sources: no data set has new_words, and the vocabulary would be empty")
    if len({one.features is None for one in sources}) > 1:
        raise UserError("data.sources: give `features` of all data sets, or of none")


class Found:
    """The photographs of a source whose files are there."""

    def __init__(self, splits: dict[str, Photographs], *, flips: bool) -> None:
        self.splits, self.views = splits, Views(splits, flips=flips)
        self.kept = {split: np.ones(len(members), dtype=bool) for split, members in splits.items()}
        """Which photographs of each split are used. A cache holds all of them."""

    def keep_only(self, split: str | None) -> None:
        """Forget the photographs of all other splits."""
        for name, members in self.splits.items():
            chosen = np.full(len(members), name == split)
            self.splits[name], self.kept[name] = members.selected(chosen), self.kept[name][chosen]
        self.views = Views(self.splits, flips=False)


class JoinedViews(Sequence[View]):
    """The views of several sources, one source after the other, each with its mirrored ones. Names begin with that of
    the source, as those of `Photographs.joined`."""

    def __init__(self, sources: Mapping[str, Views]) -> None:
        self.names, self.sources = [*sources], [*sources.values()]
        self.starts = np.cumsum([0, *map(len, self.sources)])
        self.rows = {
            split: np.concatenate([part.rows[split] + start for part, start in self._started()]) for split in SPLITS
        }
        """The view of each photograph, by split."""
        self.photographs = np.concatenate([part.photographs for part in self.sources])

    @classmethod
    def of(cls, sources: Mapping[str, Views]) -> "Views | JoinedViews":
        """The views of several sources; those of one alone as they are."""
        return cls(sources) if len(sources) > 1 else next(iter(sources.values()))

    def _started(self) -> Iterator[tuple[Views, int]]:
        return zip(self.sources, self.starts.tolist(), strict=False)

    @overload
    def __getitem__(self, number: int) -> View: ...
    @overload
    def __getitem__(self, number: slice) -> "Sequence[View]": ...
    def __getitem__(self, number: int | slice) -> "View | Sequence[View]":
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        part = int(np.searchsorted(self.starts, number, side="right")) - 1
        view = self.sources[part][number - int(self.starts[part])]
        return view._replace(name=f"{self.names[part]}/{view.name}")

    def __iter__(self) -> Iterator[View]:
        for name, part in zip(self.names, self.sources, strict=True):
            yield from (view._replace(name=f"{name}/{view.name}") for view in part)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def mirrors(self, rows: Int[ndarray, "N"]) -> Int[ndarray, "N"]:
        """Indices of the mirrored views of training photographs."""
        found = np.array(rows)
        for part, start in self._started():
            mine = (rows >= start) & (rows < start + len(part))
            found[mine] = start + part.mirrors(rows[mine] - start)
        return found


def joined(sources: Mapping[str, Mapping[str, Photographs]]) -> dict[str, Photographs]:
    """The photographs of all sources by split."""
    return {split: Photographs.joined({name: found[split] for name, found in sources.items()}) for split in SPLITS}

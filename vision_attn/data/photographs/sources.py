"""Train on several data sets of photographs in one run: the files of each, and the joined inputs of an encoder."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from vision_attn.data.photographs.annotations import read_splits
from vision_attn.data.photographs.mirrored_views import Views
from vision_attn.data.photographs.pixels import View
from vision_attn.data.photographs.store import Photographs, locate
from vision_attn.system.errors import UserError
from vision_attn.system.files import find
from vision_attn.task import SPLITS, known_split

NAME = re.compile(r"\w[\w.-]{0,63}")
OWN = ("images", "annotations", "split_files", "columns", "features")
"""The keys of `data` that belong to each source if there are several."""


@dataclass
class PhotographSet:
    """A data set of photographs, one of `data.sources`."""

    images: str | dict[str, str] | None
    """The folder of photographs: as `data.images`."""
    name: str = ""
    """Letters, digits, -, _ and dots. Names of metrics of this set end in it: `CIDEr_mine`."""
    annotations: str | dict[str, str] | None = None
    """The file of captions: as `data.annotations`."""
    split_files: str | dict[str, str] | None = None
    """Lists of names or ids: as `data.split_files`."""
    columns: dict[str, str | int] | None = None
    """The names of columns: as `data.columns`."""
    features: str | None = None
    """Annotation vectors that another program computed: as `data.features`."""
    share: float | None = None
    """The share of each epoch, above 0 and below 1; None: a part of the rest, in proportion to the size."""
    new_words: bool = True
    """Whether the vocabulary gets the words of its training captions. False for a set that a run rehearses, since the
    captioner already knows its frequent words."""

    @property
    def place(self) -> str:
        """The name of the data set for messages."""
        return f"{self.images if self.annotations is None else self.annotations}"

    def read(self, *, cache: str | None, download: bool) -> dict[str, Photographs]:
        """Return all photographs with captions, by split, in the order of the annotation files."""
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
    sources: Sequence[PhotographSet] | None, single: PhotographSet, evaluate: Sequence[str] | None
) -> list[PhotographSet]:
    """Return the data sets of a config: `sources`, or `single`. Raises UserError if the config has both or neither, if
    `sources` do not fit together, and for unknown names in `evaluate`."""
    if sources is None and single.images is None:
        raise UserError("data.images is missing: name a folder of photographs, or several data sets (data.sources)")
    if sources is not None:
        if given := next((name for name in OWN if getattr(single, name) is not None), None):
            raise UserError(
                f"data.sources and data.{given} exclude each other: write it into the source that it belongs to, with "
                f"--data.{given}=null, or leave out the sources, with --data.sources=null"
            )
        _check(sources)
    chosen = [single] if sources is None else [*sources]
    names = [source.name for source in chosen]
    if unknown := next((name for name in evaluate or () if name not in names), None):
        raise UserError(f"data.evaluate: {unknown} is no source; there are {', '.join(filter(None, names)) or 'none'}")
    return chosen


def _check(sources: Sequence[PhotographSet]) -> None:
    """Raise UserError unless `sources` have different names, and shares that leave a part for sources without one."""
    if not sources:
        raise UserError("data.sources is empty: name at least one data set, or set data.images")
    for number, source in enumerate(sources):
        if not NAME.fullmatch(source.name):
            given = f"is {source.name!r:.80}, but must consist" if source.name else "is missing: give one that consists"
            raise UserError(f"data.sources.{number}.name {given} of letters, digits, -, _ and dots")
        if source.images is None:
            raise UserError(f"data.sources: {source.name} has no images: name its folder of photographs")
        if source.name in (other.name for other in sources[:number]):
            raise UserError(f"data.sources: {source.name} is the name of two data sets: give each its own")
        if source.share is not None and not 0 < source.share < 1:
            raise UserError(
                f"data.sources: the share of {source.name} is {source.share:g}, but must be above 0 and below 1; leave "
                "it out for that of its size"
            )
    shares = [source.share for source in sources if source.share is not None]
    every, total = len(shares) == len(sources), sum(shares)
    if every and abs(total - 1) > 1e-3 or not every and total >= 1:
        way = "must be 1 together" if every else "must be below 1 together, or nothing is left for the others"
        raise UserError(f"data.sources: the shares are {total:g} together, but {way}")
    if not any(source.new_words for source in sources):
        raise UserError("data.sources: no data set has new_words, and the vocabulary would be empty")
    if len({source.features is None for source in sources}) > 1:
        raise UserError("data.sources: give `features` of all data sets, or of none")


class LocatedSource:
    """The photographs of a source whose files exist."""

    def __init__(self, splits: dict[str, Photographs], *, flips: bool) -> None:
        self.splits, self.views = splits, Views(splits, flips=flips)
        self.kept = {split: np.ones(len(members), dtype=bool) for split, members in splits.items()}
        """The photographs of each split that are used, as a mask. A cache contains all of them."""

    def keep_only(self, split: str | None) -> None:
        """Drop the photographs of all other splits."""
        for name, members in self.splits.items():
            chosen = np.full(len(members), name == split)
            self.splits[name], self.kept[name] = members.selected(chosen), self.kept[name][chosen]
        self.views = Views(self.splits, flips=False)


class JoinedViews(Sequence[View]):
    """The views of several sources, one source after the other, each with its mirrored views. Names begin with the name
    of the source, as in `Photographs.joined`."""

    def __init__(self, sources: Mapping[str, Views]) -> None:
        self.names, self.sources = [*sources], [*sources.values()]
        self.starts = np.cumsum([0, *map(len, self.sources)])
        self.view_indices = {
            split: np.concatenate([views.view_indices[split] + start for views, start in self._started()])
            for split in SPLITS
        }
        """The view of each photograph, by split."""
        self.photographs = np.concatenate([views.photographs for views in self.sources])

    @classmethod
    def of(cls, sources: Mapping[str, Views]) -> "Views | JoinedViews":
        """Join the views of several sources. A single source is returned unchanged."""
        return cls(sources) if len(sources) > 1 else next(iter(sources.values()))

    def _started(self) -> Iterator[tuple[Views, int]]:
        return zip(self.sources, self.starts.tolist(), strict=False)

    @overload
    def __getitem__(self, number: int) -> View: ...
    @overload
    def __getitem__(self, number: slice) -> "Sequence[View]": ...
    def __getitem__(self, number: int | slice) -> "View | Sequence[View]":
        if isinstance(number, slice):
            return [self[position] for position in range(len(self))[number]]
        index = int(np.searchsorted(self.starts, number, side="right")) - 1
        view = self.sources[index][number - int(self.starts[index])]
        return view._replace(name=f"{self.names[index]}/{view.name}")

    def __iter__(self) -> Iterator[View]:
        for name, views in zip(self.names, self.sources, strict=True):
            yield from (view._replace(name=f"{name}/{view.name}") for view in views)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def mirrors(self, view_indices: Int[ndarray, "N"]) -> Int[ndarray, "N"]:
        """Return indices of the mirrored views of training photographs."""
        mirrored = np.array(view_indices)
        for views, start in self._started():
            mine = (view_indices >= start) & (view_indices < start + len(views))
            mirrored[mine] = start + views.mirrors(view_indices[mine] - start)
        return mirrored


def joined(sources: Mapping[str, Mapping[str, Photographs]]) -> dict[str, Photographs]:
    """Return the photographs of all sources by split."""
    return {split: Photographs.joined({name: splits[split] for name, splits in sources.items()}) for split in SPLITS}

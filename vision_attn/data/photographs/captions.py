"""`Captions`, the data set of photographs (or films) with captions, from folders and annotation files of any common
shape."""

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vision_attn.contracts import END
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.grouping import Stratified
from vision_attn.data.images.crops import random_crops
from vision_attn.data.images.open import Encoded
from vision_attn.data.photographs.annotation_vectors.features import Features, cached_features, complete_in
from vision_attn.data.photographs.annotation_vectors.vectors import Vectors
from vision_attn.data.photographs.batches import Batches, BatchPositions, CaptionTable, identity_of
from vision_attn.data.photographs.captioned import Captioned
from vision_attn.data.photographs.copies import leave_out_copies
from vision_attn.data.photographs.pixels import Pixels, pixels
from vision_attn.data.photographs.remarks import remarks
from vision_attn.data.photographs.shares import EpochPlaces, mean_places
from vision_attn.data.photographs.sources import JoinedViews, LocatedSource, PhotographSet, joined, sources_of
from vision_attn.data.photographs.store import Photographs
from vision_attn.data.words import Kind
from vision_attn.system.checks import check_range
from vision_attn.system.console import printable
from vision_attn.system.errors import UserError
from vision_attn.system.files import find
from vision_attn.task import SPLITS, Static, Task, counted, equal_part, known_split

CROPS = 1
"""The last seed of the random stream of crops, so that other random choices are the same with and without crops."""
log = logging.getLogger(__name__)


class Captions(Captioned):
    """Photographs in a folder, with captions in a file of any common shape; or several such data sets. For an encoder
    of films, each item is a film: a file or a folder of frames."""

    batch_size: int

    def __init__(
        self,
        *,
        images: str | dict[str, str] | None = None,
        annotations: str | dict[str, str] | None = None,
        split_files: str | dict[str, str] | None = None,
        columns: dict[str, str | int] | None = None,
        vocabulary: str | None = None,
        words: Kind | None = None,
        function_words: str | list[str] | None = None,
        min_count: int = 5,
        max_words: int | None = None,
        max_length: int = 30,
        batch_size: int = 64,
        evaluation_batch_size: int = 64,
        rows: int = 5,
        cache: str | None = "cache",
        residency: Literal["memmap", "memory", "device"] = "memmap",
        flips: bool = False,
        crops: float = 1.0,
        verify: bool = False,
        features: str | None = None,
        download: bool = False,
        sources: list[PhotographSet] | None = None,
        evaluate: list[str] | None = None,
        turns: Literal["equal", "captions"] = "equal",
        without_copies: bool | None = None,
    ) -> None:
        """Stores its arguments and reads nothing. Files are also searched for under `$VISION_ATTN_DATA` and `data/`.

        images: the folder of photographs, or one folder per split; or a dataset with photographs and captions: see
            `data.photographs.annotation_files.hub_datasets`.
        annotations: a file of captions, a folder with such a file or with one for each photograph (`a.jpg`, `a.txt`),
            or a dataset; or one of these for each split (train, val, test). The shape is recognised by the content: see
            `data.photographs.annotation_files.caption_files`. None: the folder `images`, or the folder above it.
        split_files: a list of names or ids for each split, or one JSON file {split: [names or ids]}.
        columns: the names of the columns image, caption and split, if they are not recognised; for a table without a
            header their numbers, from 1.
        vocabulary: a saved vocabulary, which also decides how captions are split; None: build one from the training
            captions.
        words: how captions become words: see `data.words`; None: at spaces, or as a saved vocabulary splits them.
        function_words: words that are no content words (`metrics.function_words`): a list, or the name of a language,
            such as german; None: those of the detected language of all captions.
        min_count: the minimum number of occurrences of a word in the training captions.
        max_words: the maximum number of words; None: no limit.
        max_length: the number of words of a caption that training and `nll` use: a longer caption is cut, and has no
            end. `references` keep all words.
        batch_size: images per training batch, over all processes together, or "auto": as many as fit into memory. Every
            batch has captions of all lengths in the same proportions, and one of four shapes; see `data.grouping`.
        evaluation_batch_size: images per validation or test batch.
        rows: captions per image in a batch; an image with fewer captions repeats them.
        cache: the folder for the outputs of the frozen part of an encoder, and for the captions of large annotation
            files, both shared by all processes of a machine; None: batches hold pixels, captions stay in memory.
        residency: keep cached vectors in memory-mapped files, in main memory, or on the encoder's device.
        flips: whether to mirror each training photograph with probability 1/2 in each epoch. Captions are not changed,
            even if they say left or right. Adds the mirrored training photographs to the cache.
        crops: the smallest side of the random crops on which to train, relative to the photograph; crops differ in each
            epoch. 1: train on whole photographs. Not with cached vectors.
        verify: whether to check the checksums of the whole cache before use.
        features: annotation vectors that another program computed, in place of the encoder's: a folder with an .npy or
            .npz file for each photograph, an HDF5 file or an LMDB (`annotation_vectors.vector_files`). See
            `encoders.precomputed`.
        download: whether to download a dataset of the hub that is not on this machine.
        sources: several data sets, each with a `name`, its files, and possibly its `share` of each epoch: see
            `data.photographs.sources.PhotographSet`. They replace images, annotations, split_files, columns and
            features. They share one vocabulary, and metrics of each end in its name.
        evaluate: the names of the sources to validate and test on; None: all.
        turns: how often an epoch shows each photograph of a source: "equal", all equally often; "captions", in
            proportion to the number of its captions.
        without_copies: whether to leave out photographs for training or validation that have a copy in another split,
            even if resized or saved again: see `data.photographs.copies`. None: only if there are several sources.
        """
        single = PhotographSet(images, "", annotations, split_files, columns, features)
        self.sources = sources_of(sources, single, evaluate)
        self.evaluate, self.turns = evaluate, turns
        self.without_copies = len(self.sources) > 1 if without_copies is None else without_copies
        self.vocabulary_file, self.min_count, self.max_words = vocabulary, min_count, max_words
        self.words, self.max_length, self.rows = words, max_length, rows
        self.function_words = function_words
        self.check_function_words()
        self.batch_size, self.evaluation_batch_size = batch_size, evaluation_batch_size
        self.cache, self.residency, self.flips, self.verify = cache, residency, flips, verify
        check_range("Captions", 1, 10**6, batch_size=batch_size, evaluation_batch_size=evaluation_batch_size)
        check_range("Captions", 1, 1000, rows=rows, max_length=max_length)
        check_range("Captions", 0.1, 1, crops=crops)
        self.features = ", ".join(source.features for source in self.sources if source.features) or None
        self.crops, self.download = crops, download
        for key, set_, done in (("flips", flips, "mirrored"), ("crops", crops < 1, "cropped")):
            if self.features and set_:
                raise UserError(f"data.{key} needs an encoder: vectors in data.features cannot be {done}")
        self._prepared: Any = None
        self._only: str | None = None

    @cached_property
    def _read(self) -> dict[str, dict[str, Photographs]]:
        """The photographs of each source, by the name of the source and by split."""
        return {source.name: source.read(cache=self.cache, download=self.download) for source in self.sources}

    @cached_property
    def photographs(self) -> dict[str, Photographs]:
        """All photographs with captions, by split, in the order of the sources and of their annotation files."""
        return joined(self._read)

    def located(self, *, films: bool = False) -> dict[str, dict[str, Photographs]]:
        """Return the photographs of each source whose files exist, by split, and log how many are missing. No file is
        opened."""
        return {source.name: source.located(self._read[source.name], films=films) for source in self.sources}

    def captions_of_words(self) -> Iterator[str]:
        self._members("train")  # or an error says that there are none
        texts = [self._read[source.name]["train"].captions for source in self.sources if source.new_words]
        return chain.from_iterable(captions.all_texts() for captions in texts)

    def references(self) -> Iterator[tuple[str, ...]]:
        return (tuple(photograph.captions) for photograph in self._members("train"))

    def all_captions(self) -> Iterator[str]:
        return chain.from_iterable(members.captions.all_texts() for members in self.photographs.values())

    def captions_by_image(self) -> Iterator[list[str]]:
        return (photograph.captions for members in self.photographs.values() for photograph in members)

    @property
    def num_sources(self) -> int:
        return sum(self._is_evaluated(source.name) for source in self.sources)

    @property
    def films(self) -> bool:
        """Whether the data set was prepared for an encoder of films."""
        return self._prepared is not None and self._prepared.frames > 1

    def only(self, split: str) -> None:
        self._only = known_split(split)

    def prepare(self, task: Task) -> None:
        """Find the photographs, and cache the outputs of the frozen part of `task.encoder`. After `only`, caches a
        single split, unless there is a complete cache of all splits.

        Photographs that are missing or cannot be read are logged and left out. Without a cache, unreadable photographs
        are found only when their batch is read.
        """
        encoder: Any = task.encoder
        if self._prepared is encoder:
            return
        if task.frames > 1 and (self.flips or self.crops < 1):
            raise UserError("data.flips and data.crops are of photographs, and the encoder takes films: leave them out")
        films = task.frames > 1
        cache = None if self.cache is None else Path(self.cache).expanduser()
        frozen = None if cache is None or self.features else encoder.frozen_part()
        if frozen is not None and self.crops < 1 and self._only is None:
            raise UserError(
                "data.crops and data.cache exclude each other, because the cache holds vectors of whole photographs: "
                "set --data.cache=null to encode the crops of each epoch, or --data.crops=1"
            )
        # An evaluation mirrors nothing. Photographs that are not cached are mirrored by `crops` of a batch.
        flips = self.flips and frozen is not None and self._only is None
        self._find(cache, films=films, flips=flips)
        for name, located in self._located.items() if self._only else ():
            used = self._only == "train" or self._is_evaluated(name)
            if not used or (cache is not None and frozen is not None and not complete_in(cache, frozen, located.views)):
                located.keep_only(self._only if used else None)
        self._views = JoinedViews.of({name: located.views for name, located in self._located.items()})
        self._pictures = self._pictured(task, frozen, cache)
        self._readable = joined({name: located.splits for name, located in self._located.items()})
        self._picture_indices = dict(self._views.view_indices)
        for split in SPLITS:
            self._keep(split, np.concatenate([located.kept[split] for located in self._located.values()]))
        if self._pictures.unreadable:
            self._leave_out(self._pictures.unreadable, "films" if films else "photographs")
        self._tables: dict[str, CaptionTable] = {}
        self._plans: dict[int, tuple[EpochPlaces | None, Stratified]] = {}
        self._prepared = encoder

    def _find(self, cache: Path | None, *, films: bool, flips: bool) -> None:
        """Find the photographs of each source, and leave out copies of photographs of another split."""
        self._located = {name: LocatedSource(splits, flips=flips) for name, splits in self.located(films=films).items()}
        if self.without_copies and not films and self._only != "test":  # of which none are left out
            leave_out_copies(self._located, cache)

    def _pictured(self, task: Task, frozen: nn.Module | None, cache: Path | None) -> Features | Pixels | Vectors:
        """Return the pictures of all sources or, if they are given or cached, their annotation vectors. Missing vectors
        of a cache are computed."""
        encoder: Any = task.encoder  # of a captioner of transformers the task itself
        device = next((weight.device for weight in encoder.parameters()), torch.device("cpu"))
        if self.features:
            several = len(self.sources) > 1
            given = {source.name: source.features if several else self.features for source in self.sources}
            paths = {name: find(path) for name, path in given.items() if path is not None}
            return Vectors.joined(
                {name: Vectors.of(located.views, paths[name], encoder) for name, located in self._located.items()}
            )
        if frozen is None:
            options: dict[str, Any] = {"fit": encoder.fit, "frames": task.frames}
            return pixels(self._views, encoder.resolution, device, repeated=self._only is None, **options)
        prefixed = [
            (f"{name}/" * (len(self._located) > 1), views)
            for name, located in self._located.items()
            for views in located.views.plain_and_mirrored()
        ]
        assert cache is not None
        folders = [cached_features(cache, frozen, views, verify=self.verify) for _, views in prefixed]
        return Features(folders, self.residency, device, [prefix for prefix, _ in prefixed])

    def _is_evaluated(self, source: str) -> bool:
        return self.evaluate is None or source in self.evaluate

    @property
    def summary(self) -> str:
        sizes = {split: len(members) for split, members in self._readable.items()}
        line = f"{'films' if self.films else 'photographs'}: {counted(sizes)}; {len(self.vocabulary):,} words"
        if len(self.sources) == 1:
            return line
        turns = np.histogram(self._photographs_of(0, seed=0), self._table("train").bounds)[0].tolist()
        told = (f"{number:,} of {source.name}" for source, number in zip(self.sources, turns, strict=True))
        return f"{line}; an epoch shows {', '.join(told)}"

    @property
    def remarks(self) -> Iterator[str]:
        table = self._table("train")
        targets, captions = table.words, table.photographs.captions
        cut = np.flatnonzero(targets.values[targets.starts[1:] - 1] != END)
        texts = (captions.text(number) for number in cut.tolist())
        told = remarks(captions.all_texts(), texts, self.vocabulary, self.max_length)
        return chain(told, filter(None, [self._on_language]))

    def _leave_out(self, unreadable: Mapping[str, str], what: str) -> None:
        """Keep only photographs that can be read, and log the others.

        unreadable: the names of the others, with the reason.
        what: what messages call them.
        """
        files: dict[str, Path | Encoded | None] = {}
        for split, members in self._readable.items():
            names = list(members.all_names())
            kept = np.array([name not in unreadable for name in names], dtype=bool)
            files |= {names[number]: members.file(number) for number in np.flatnonzero(~kept).tolist()}
            self._keep(split, kept)
        for name in list(files)[:10]:
            log.warning("%s", printable(f"{files[name]}: {unreadable[name]}"))
        if files:
            total = len(self._views.photographs)
            log.warning("%d of %d %s cannot be read and are left out", len(files), total, what)

    def _keep(self, split: str, kept: NDArray[np.bool_]) -> None:
        self._readable[split], self._picture_indices[split] = (
            self._readable[split].selected(kept),
            self._picture_indices[split][kept],
        )

    def __len__(self) -> int:
        return len(self._plan[1])

    @property
    def _plan(self) -> tuple[EpochPlaces | None, Stratified]:
        """The plan of which training photographs an epoch shows (None: each once), and the plan of its batches."""
        if self.batch_size not in self._plans:
            table = self._table("train")
            lengths, shares = table.most_words(self.rows), {source.name: source.share for source in self.sources}
            by_captions = self.turns == "captions"
            due = mean_places(table.count, table.bounds, shares, by_captions=by_captions, batch_size=self.batch_size)
            turns = None if due is None else EpochPlaces(due, table.bounds, lengths)
            self._plans[self.batch_size] = turns, Stratified(turns.lengths if turns else lengths, self.batch_size)
        return self._plans[self.batch_size]

    def _photographs_of(self, epoch: int, *, seed: int) -> NDArray[np.int64]:
        """Return the training photographs of an epoch, in the order of the lengths in `_plan`."""
        turns, _ = self._plan
        return turns.epoch(epoch, seed) if turns else np.arange(len(self._table("train").count))

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[CaptionBatch]:
        table, rng = self._table("train"), np.random.default_rng([seed % 2**64, epoch])
        (_, groups), members = self._plan, self._photographs_of(epoch, seed=seed)
        captions, picture_indices, crops = table.pick(self.rows, rng, members), table.picture_indices[members], None
        mirrored = self.flips & (rng.integers(0, 2, len(captions)) == 1)
        if not isinstance(self._pictures, Pixels):
            picture_indices = np.where(mirrored, self._views.mirrors(picture_indices), picture_indices)
        elif self.flips or self.crops < 1:
            crops = random_crops(float(self.crops), mirrored, np.random.default_rng([seed % 2**64, epoch, CROPS]))
        mine = equal_part(groups.size, rank, world)
        batch_positions = [
            BatchPositions(
                members[turns], captions[turns], picture_indices[turns], shape, None if crops is None else crops[turns]
            )
            for group in groups.epoch(rng)[skip:]
            for turns, shape in [(group.members[mine], Static(group.shape[mine]))]
        ]
        return iter(Batches(table, self._pictures, batch_positions))

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> Batches:
        table, size = self._table(known_split(name)), self.evaluation_batch_size
        captions = table.pick(self.rows)
        ends = zip(self.sources, pairwise(table.bounds.tolist()), strict=True)
        used = [range(*bounds, size) for source, bounds in ends if self._is_evaluated(source.name)]
        firsts = {starts[0] for starts in used if starts}
        batches = [np.arange(start, min(start + size, starts.stop)) for starts in used for start in starts]
        batches.sort(key=lambda members: members[0] not in firsts)  # see `Source.num_sources`
        if not batches:
            raise UserError(f"data.evaluate: no photograph of split {name} is in {', '.join(self.evaluate or ())}")
        batch_positions = [
            BatchPositions(members, captions[members], table.picture_indices[members])
            for members in batches[rank::world]
        ]
        return Batches(table, self._pictures, batch_positions, may_skip=True)

    @property
    def _place(self) -> str:
        """The name of the data for messages."""
        return ", ".join(source.place for source in self.sources)

    def _members(self, split: str) -> Photographs:
        members = self.photographs[split]
        if not members:
            raise UserError(
                f"{self._place}: split {split} has no images; assign some images to it"
                + ", or train without validation: --run.validate_every=0" * (split == "val")
            )
        return members

    def identity(self, split: str) -> str | None:
        depends = self.vocabulary.json(), self.max_length, self.evaluate
        return None if self.features else identity_of(self._readable[known_split(split)], *depends)

    def _table(self, split: str) -> CaptionTable:
        if self._prepared is None:
            raise UserError("call prepare(task) before iterating over batches")
        if split not in self._tables:
            members = self._readable[split]
            if self._members(split) and not members:
                where = self.features or ", ".join(f"{source.images}" for source in self.sources)
                raise UserError(f"{self._place}: no photograph of split {split} can be read; check {where}")
            self._tables[split] = CaptionTable(members, self._picture_indices[split], self.vocabulary, self.max_length)
        return self._tables[split]

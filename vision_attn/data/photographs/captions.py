"""Photographs with captions, read from a folder and an annotation file."""

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from vision_attn.contracts import END
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.grouping import Stratified
from vision_attn.data.images.crops import random_crops
from vision_attn.data.photographs.annotation_vectors.features import Features, cached_features, complete_in
from vision_attn.data.photographs.annotation_vectors.vectors import Vectors
from vision_attn.data.photographs.annotations import read_splits
from vision_attn.data.photographs.batches import Batches, CaptionTable, Part
from vision_attn.data.photographs.captioned import Captioned
from vision_attn.data.photographs.pixels import Pixels, pixels
from vision_attn.data.photographs.remarks import remarks
from vision_attn.data.photographs.store import Photographs, locate
from vision_attn.data.photographs.views import Views
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.data.words import Kind
from vision_attn.system.checks import check_range
from vision_attn.system.console import printable
from vision_attn.system.errors import UserError
from vision_attn.system.files import find
from vision_attn.task import SPLITS, Static, Task, counted, equal_part, known_split

CROPS = 1
"""The last seed of the random numbers of crops, so that all others are the same with and without them."""
log = logging.getLogger(__name__)


class Captions(Captioned):
    """Photographs in a folder, with captions in a file of any common shape. For an encoder of films: films, each a file
    or a folder of frames."""

    def __init__(
        self,
        *,
        images: str | dict[str, str],
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
    ) -> None:
        """Stores its arguments and reads nothing. Files are also searched for under `$VISION_ATTN_DATA` and `data/`.

        Args:
            images: the folder of photographs, or one folder per split; or a dataset with photographs and captions: see
                `data.photographs.annotation_files.hub_datasets`.
            annotations: a file of captions, a folder with one or with one for each photograph (`a.jpg`, `a.txt`), a
                dataset, or one for each split (train, val, test). Its shape is recognised by its content: see
                `data.photographs.annotation_files.caption_files`. None: the folder `images`, or the one above it.
            split_files: a list of names or ids for each split, or one JSON file {split: [names or ids]}.
            columns: the names of the columns image, caption and split where they are not recognised; of a table without
                a header their numbers, from 1.
            vocabulary: a saved vocabulary, which splits captions in its own way; None: build one from the training
                captions.
            words: how captions become words: see `data.words`; None: at spaces, or as a saved vocabulary splits them.
            function_words: words that are no content words (`metrics.function_words`): a list, or the name of a
                language, such as german; None: those of the language that the captions of all splits are found in.
            min_count: the minimum number of occurrences of a word in the training captions.
            max_words: the maximum number of words; None: no limit.
            max_length: the number of words kept of a caption, for training and `nll`: a longer one is cut, and has no
                end. `references` keep all.
            batch_size: images per training batch, over all processes together. Every batch has captions of all lengths
                in the same proportions, and one of four shapes: see `data.grouping`.
            evaluation_batch_size: images per validation or test batch.
            rows: captions per image in a batch; an image with fewer captions repeats them.
            cache: the folder for what the frozen part of an encoder computes, and for the captions of large annotation
                files, which all processes of a machine then share; None: batches hold pixels, captions stay in memory.
            residency: keep cached vectors in memory-mapped files, in main memory, or on the encoder's device.
            flips: mirror each training photograph with probability 1/2 in each epoch. Captions are not changed, even if
                they say left or right. Adds the mirrored training photographs to the cache.
            crops: train on random crops with sides of `crops` to 1 times the photograph's, different ones in each
                epoch; 1: on whole photographs. Not with cached vectors.
            verify: check the checksums of the whole cache before use.
            features: annotation vectors that another program computed, in the place of the encoder's: a folder with an
                .npy or .npz file for each photograph, or an HDF5 file (`annotation_vectors.vector_files`). See
                `encoders.precomputed`.
            download: download a dataset of the hub, if it is not on this machine.
        """
        self.images, self.annotations = images, images if annotations is None else annotations
        self.split_files, self.columns = split_files, columns
        self.vocabulary_file, self.min_count, self.max_words = vocabulary, min_count, max_words
        self.words, self.max_length, self.rows = words, max_length, rows
        self.function_words = function_words
        self.check_function_words()
        self.batch_size, self.evaluation_batch_size = batch_size, evaluation_batch_size
        self.cache, self.residency, self.flips, self.verify = cache, residency, flips, verify
        check_range("Captions", 1, 10**6, batch_size=batch_size, evaluation_batch_size=evaluation_batch_size)
        check_range("Captions", 1, 1000, rows=rows, max_length=max_length)
        check_range("Captions", 0.1, 1, crops=crops)
        self.features, self.crops, self.download = features, crops, download
        for key, set_, done in (("flips", flips, "mirrored"), ("crops", crops < 1, "cropped")):
            if features and set_:
                raise UserError(f"data.{key} needs an encoder: vectors in data.features cannot be {done}")
        self._prepared: nn.Module | None = None
        self._only: str | None = None

    @cached_property
    def photographs(self) -> dict[str, Photographs]:
        """All photographs with captions, by split, in the order of the annotation files."""
        options = {"columns": self.columns, "cache": self.cache, "download": self.download}
        return read_splits(self.annotations, self.split_files, **options)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary: restored with a run, read from a file, or built from the training captions."""
        if self.vocabulary_file:
            return self.with_function_words(self.saved(find(self.vocabulary_file)))
        limits = {"min_count": self.min_count, "max_words": self.max_words}
        captions = self._members("train").captions.all_texts()
        return self.with_function_words(Vocabulary.build(captions, words=self.words, **limits))

    def references(self) -> Iterator[tuple[str, ...]]:
        return (tuple(photograph.captions) for photograph in self._members("train"))

    def all_captions(self) -> Iterator[str]:
        return chain.from_iterable(members.captions.all_texts() for members in self.photographs.values())

    def captions_by_image(self) -> Iterator[list[str]]:
        return (photograph.captions for members in self.photographs.values() for photograph in members)

    @property
    def films(self) -> bool:
        """Whether it was prepared for an encoder of films."""
        return self._prepared is not None and self._prepared.frames > 1

    def only(self, split: str) -> None:
        self._only = known_split(split)

    def prepare(self, task: Task) -> None:
        """Find the photographs, and cache the outputs of the part of `task.encoder` that is not trained. After `only`,
        caches one split alone, unless there is a complete cache of all splits.

        Photographs that are missing or cannot be read are logged and left out; without a cache, those that cannot be
        read are found when their batch is.
        """
        encoder = task.encoder
        if self._prepared is encoder:
            return
        if task.frames > 1 and (self.flips or self.crops < 1):
            raise UserError("data.flips and data.crops are of photographs, and the encoder takes films: leave them out")
        found = self._located(films=task.frames > 1)
        cache = None if self.cache is None else Path(self.cache).expanduser()
        frozen = None if cache is None or self.features else encoder.frozen_part()
        if frozen is not None and self.crops < 1 and self._only is None:
            raise UserError(
                "data.crops and data.cache exclude each other, because the cache holds vectors of whole photographs: "
                "set --data.cache=null to encode the crops of each epoch, or --data.crops=1"
            )
        # An evaluation mirrors nothing. Photographs that are not cached are mirrored by `crops` of a batch.
        views = Views(found, flips=self.flips and frozen is not None and self._only is None)
        if frozen is not None and self._only and not complete_in(cache, frozen, views):
            found = {
                split: members.selected(np.full(len(members), split == self._only)) for split, members in found.items()
            }
            views = Views(found, flips=False)
        device = next((weight.device for weight in encoder.parameters()), torch.device("cpu"))
        if self.features:
            self._pictures: Features | Pixels | Vectors = Vectors.of(views, find(self.features), encoder)
        elif frozen is None:
            kind = {"fit": encoder.fit, "frames": task.frames}
            self._pictures = pixels(views, encoder.resolution, device, repeated=self._only is None, **kind)
        else:
            parts = [views[: len(views.photographs)], views[len(views.photographs) :]]  # flips use an existing cache
            folders = [cached_features(cache, frozen, part, verify=self.verify) for part in parts if len(part)]
            self._pictures = Features(folders, self.residency, device)
        self._readable, self._views, self._rows = found, views, views.rows
        if self._pictures.unreadable:
            self._leave_out(self._pictures.unreadable, "films" if task.frames > 1 else "photographs")
        self._tables: dict[str, CaptionTable] = {}
        self._groups: Stratified | None = None
        self._prepared = encoder

    def _located(self, films: bool) -> dict[str, Photographs]:
        images = self.images if isinstance(self.images, dict) else dict.fromkeys(SPLITS, self.images)
        if any(members.files is not None for members in self.photographs.values()):
            images = {}  # the dataset holds them
        folders = {known_split(split): find(path) for split, path in images.items()}
        return locate(self.photographs, folders, films=films)

    @property
    def summary(self) -> str:
        sizes = {split: len(members) for split, members in self._readable.items()}
        return f"{'films' if self.films else 'photographs'}: {counted(sizes)}; {len(self.vocabulary):,} words"

    @property
    def remarks(self) -> Iterator[str]:
        table = self._table("train")
        targets, captions = table.words, table.photographs.captions
        cut = np.flatnonzero(targets.values[targets.starts[1:] - 1] != END)
        texts = (captions.text(number) for number in cut.tolist())
        told = remarks(captions.all_texts(), texts, self.vocabulary, self.max_length)
        return chain(told, filter(None, [self._on_language]))

    def _leave_out(self, unreadable: Mapping[str, str], what: str) -> None:
        """Keep only photographs that can be read, and log the others; `what` messages call them."""
        files: dict[str, Path | None] = {}
        for split, members in self._readable.items():
            names = list(members.all_names())
            kept = np.array([name not in unreadable for name in names], dtype=bool)
            files |= {names[number]: members.file(number) for number in np.flatnonzero(~kept).tolist()}
            self._readable[split], self._rows[split] = members.selected(kept), self._rows[split][kept]
        for name in list(files)[:10]:
            log.warning("%s", printable(f"{files[name]}: {unreadable[name]}"))
        if files:
            total = len(self._views.photographs)
            log.warning("%d of %d %s cannot be read and are left out", len(files), total, what)

    def __len__(self) -> int:
        return len(self._grouping)

    @property
    def _grouping(self) -> Stratified:
        """How training photographs meet in batches."""
        if self._groups is None:
            self._groups = Stratified(self._table("train").most_words(self.rows), self.batch_size)
        return self._groups

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[CaptionBatch]:
        table, rng = self._table("train"), np.random.default_rng([seed % 2**64, epoch])
        captions = table.pick(self.rows, rng)
        mirrored = self.flips & (rng.integers(0, 2, len(captions)) == 1)
        rows, crops = table.rows, None
        if not isinstance(self._pictures, Pixels):
            rows = np.where(mirrored, self._views.mirrors(rows), rows)
        elif self.flips or self.crops < 1:
            crops = random_crops(float(self.crops), mirrored, np.random.default_rng([seed % 2**64, epoch, CROPS]))
        mine = equal_part(self._grouping.size, rank, world)
        parts = [
            Part(group.members[mine], captions[group.members[mine]], Static(group.shape[mine]))
            for group in self._grouping.epoch(rng)[skip:]
        ]
        return iter(Batches(table, self._pictures, parts, rows, crops=crops))

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> Batches:
        table, size = self._table(known_split(name)), self.evaluation_batch_size
        everyone = np.arange(len(table.photographs))
        captions = table.pick(self.rows)
        starts = range(rank * size, len(everyone), world * size)
        parts = [Part(everyone[start : start + size], captions[start : start + size], None) for start in starts]
        return Batches(table, self._pictures, parts, table.rows, may_skip=True)

    def _members(self, split: str) -> Photographs:
        members = self.photographs[split]
        if not members:
            raise UserError(
                f"{self.annotations}: split {split} has no images; assign some images to it"
                + ", or train without validation: --run.validate_every=0" * (split == "val")
            )
        return members

    def _table(self, split: str) -> CaptionTable:
        if self._prepared is None:
            raise UserError("call prepare(task) before iterating over batches")
        if split not in self._tables:
            members = self._readable[split]
            if self._members(split) and not members:
                where = self.features or self.images
                raise UserError(f"{self.annotations}: no photograph of split {split} can be read; check {where}")
            self._tables[split] = CaptionTable(members, self._rows[split], self.vocabulary, self.max_length)
        return self._tables[split]

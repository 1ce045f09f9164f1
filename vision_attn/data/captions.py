"""Photographs with captions: the batches that a captioner is trained and judged on."""

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from vision_attn.data.annotations import SPLITS, Photograph, read_annotations
from vision_attn.data.features import Features, cached_features
from vision_attn.data.images import cores, in_threads, open_photograph, read_image
from vision_attn.data.vocabulary import END, PAD, Vocabulary
from vision_attn.files import find
from vision_attn.progress import progress
from vision_attn.task import Source, Task

log = logging.getLogger(__name__)


class CaptionBatch(NamedTuple):
    """Images with R captions each; images by longest caption, longest first, and so are the captions of each.

    Whatever is padding is then a suffix of its turn, and a model may leave it out.
    """

    images: Float[Tensor, "B L D"] | UInt8[Tensor, "B 3 S S"]
    """Cached annotation vectors, or photographs as an encoder takes them."""
    words: Int[Tensor, "B R T"]
    """Targets: a caption's word ids, END, then PAD."""
    ids: tuple
    references: tuple
    """For each image the list of all its captions, as written."""
    files: tuple
    """For each image its file, or None for a drawn one."""
    boxes: tuple
    """For each image the boxes of what its words name, {word: [(x0, y0, x1, y1)]}, or None where unknown."""


class Captions(Source):
    """Photographs in a folder and an annotation file, in COCO's format or Karpathy's."""

    def __init__(
        self,
        *,
        images: str | dict[str, str],
        annotations: str | dict[str, str],
        splits: str | None = None,
        vocabulary: str | None = None,
        min_count: int = 5,
        max_words: int | None = None,
        max_length: int = 30,
        batch_size: int = 64,
        evaluation_batch_size: int = 64,
        rows: int = 5,
        cache: str | None = "cache",
        residency: Literal["memmap", "memory", "device"] = "memmap",
    ) -> None:
        """What to read; nothing is read yet. Files are looked for under `$VISION_ATTN_DATA` and `data/` too.

        Args:
            images: the folder of photographs, or a folder for each split.
            annotations: the caption file with a `split` for each image, or a file for each split (train, val, test).
            splits: a JSON file of split -> image names or ids, where the caption file has no `split` fields.
            vocabulary: a saved vocabulary; None: the words of the training captions.
            min_count: how often a word must occur in them to be known.
            max_words: how many words may be known at most.
            max_length: words of a caption that are kept in training.
            batch_size: images in a training batch, over all processes together.
            evaluation_batch_size: images in a batch of validation and test.
            rows: captions of an image in a batch; an image with fewer repeats its own.
            cache: the folder for annotation vectors of a frozen encoder; None: batches carry photographs.
            residency: cached vectors are read from memory-mapped files, or held in memory, or on the encoder's device.
        """
        self.images, self.annotations, self.splits = images, annotations, splits
        self.vocabulary_file, self.min_count, self.max_words = vocabulary, min_count, max_words
        self.max_length, self.rows = max_length, rows
        self.batch_size, self.evaluation_batch_size = batch_size, evaluation_batch_size
        self.cache, self.residency = cache, residency
        for name in ("batch_size", "evaluation_batch_size", "rows", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        self._encoder: nn.Module | None = None
        self._features: Features | None = None
        self._unreadable: dict[str, str] = {}
        self._parts: dict[str, Part] = {}

    @cached_property
    def photographs(self) -> dict[str, list[Photograph]]:
        """All photographs with captions, by split, as the annotation files list them."""
        if isinstance(self.annotations, str):
            return read_annotations(find(self.annotations), splits=find(self.splits) if self.splits else None)
        found: dict[str, list[Photograph]] = {name: [] for name in SPLITS}
        for split, path in self.annotations.items():
            found[_known(split)] = read_annotations(find(path), split=split)[split]
        return found

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words: restored with a run, or read from the given file, or counted in the training captions."""
        if self.vocabulary_file:
            return Vocabulary.load(find(self.vocabulary_file))
        captions = (caption for photograph in self._members("train") for caption in photograph.captions)
        return Vocabulary.build(captions, min_count=self.min_count, max_words=self.max_words)

    def export(self, folder: Path) -> None:
        self.vocabulary.save(Path(folder) / "vocabulary.json")

    def restore(self, folder: Path) -> None:
        self.vocabulary = Vocabulary.load(Path(folder) / "vocabulary.json")

    def prepare(self, task: Task) -> None:
        """Find the photographs; cache the vectors of `task.encoder` if it is frozen, else try every photograph.

        Photographs that are missing or cannot be read are named, counted and left out.
        """
        if self._encoder is task.encoder:
            return
        files = self._present()
        names = sorted(files)
        paths = [files[name] for name in names]
        self._features, unreadable = None, {}
        if self.cache is None or task.encoder.trainable:
            unreadable = _try(names, paths, task.encoder.resolution)
        else:
            folder = cached_features(Path(self.cache).expanduser(), task.encoder, names, paths)
            device = next((weight.device for weight in task.encoder.parameters()), torch.device("cpu"))
            self._features = Features(folder, self.residency, device)
            unreadable = self._features.unreadable
        for name, why in list(unreadable.items())[:10]:
            log.warning("%s: %s", files[name], why)
        if unreadable:
            log.warning("%d of %d photographs could not be read and are left out", len(unreadable), len(names))
        self._files = {name: path for name, path in files.items() if name not in unreadable}
        self._row = {name: row for row, name in enumerate(names)}
        self._encoder, self._parts = task.encoder, {}

    def __len__(self) -> int:
        return max(1, len(self._part("train").photographs) // self.batch_size)

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[CaptionBatch]:
        part, rng = self._part("train"), np.random.default_rng([seed, epoch])
        order, captions = rng.permutation(len(part.photographs)), part.pick(self.rows, rng)
        size = min(self.batch_size, len(order))
        if size % world:
            raise ValueError(
                f"a batch of {size} images cannot be shared evenly by {world} processes: change batch_size"
            )
        parts = [order[number * size + rank : (number + 1) * size : world] for number in range(skip, len(self))]
        return iter(Batches(self, part, parts, captions))

    def split(self, name: str) -> "Batches":
        part = self._part(_known(name))
        everyone = np.arange(len(part.photographs))
        starts = range(0, len(everyone), self.evaluation_batch_size)
        members = [everyone[start : start + self.evaluation_batch_size] for start in starts]
        return Batches(self, part, members, part.pick(self.rows))

    def _members(self, split: str) -> list[Photograph]:
        members = self.photographs[split]
        if not members:
            raise ValueError(f"{self.annotations}: split {split} has no images")
        return members

    def _part(self, split: str) -> "Part":
        if self._encoder is None:
            raise ValueError("prepare(task) must come before batches are read")
        if split not in self._parts:
            members = [photograph for photograph in self._members(split) if self._key(split, photograph) in self._files]
            if not members:
                raise ValueError(f"{self.annotations}: no photograph of split {split} can be read")
            keys = [self._key(split, photograph) for photograph in members]
            self._parts[split] = Part(
                members,
                [self._files[key] for key in keys],
                np.array([self._row[key] for key in keys]),
                self.vocabulary,
                self.max_length,
            )
        return self._parts[split]

    @cached_property
    def _folders(self) -> dict[str, Path]:
        if isinstance(self.images, str):
            return dict.fromkeys(SPLITS, find(self.images))
        return {_known(split): find(path) for split, path in self.images.items()}

    def _key(self, split: str, photograph: Photograph) -> str:
        """A photograph's path below the folder that holds all image folders: its name in caches."""
        root = os.path.commonpath([os.path.abspath(folder) for folder in self._folders.values()])
        return Path(os.path.relpath(os.path.abspath(self._folders[split] / photograph.name), root)).as_posix()

    def _present(self) -> dict[str, Path]:
        files: dict[str, Path] = {}
        split_of: dict[str, str] = {}
        missing = []
        for split in SPLITS:
            for photograph in self.photographs[split]:
                if split not in self._folders:
                    raise ValueError(f"images names no folder for split {split}")
                path, key = self._folders[split] / photograph.name, self._key(split, photograph)
                if split_of.setdefault(key, split) != split:
                    raise ValueError(f"{path} is in two splits, {split_of[key]} and {split}")
                if path.is_file():
                    files[key] = path
                else:
                    missing.append(path)
        if not files:
            raise ValueError(
                f"none of the photographs of {self.annotations} exists, such as {missing[0]}: check images"
            )
        if missing:
            log.warning("%d photographs do not exist and are left out, such as %s", len(missing), missing[0])
        return files

    def _look(self, part: "Part", members: NDArray[np.int64], space: Tensor | None) -> Tensor:
        """The annotation vectors of `members`, or their pixels."""
        if self._features is not None:
            return self._features.gather(part.rows[members], space)
        paths = [part.files[member] for member in members]
        pictures = self._pool.map(lambda path: read_image(path, self._encoder.resolution), paths)
        return torch.stack(list(pictures)).contiguous(memory_format=torch.channels_last)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(cores())


class Part:
    """The photographs of one split, with their captions as ids in one padded table."""

    def __init__(
        self,
        photographs: Sequence[Photograph],
        files: Sequence[Path],
        rows: NDArray[np.int64],
        vocabulary: Vocabulary,
        max_length: int,
    ) -> None:
        self.photographs, self.files, self.rows = photographs, files, rows
        encoded = [
            vocabulary.encode(caption)[:max_length] for photograph in photographs for caption in photograph.captions
        ]
        self.lengths = np.array([len(ids) + 1 for ids in encoded])
        self.words = np.full((len(encoded), self.lengths.max()), PAD, dtype=np.int32)
        for row, ids in zip(self.words, encoded, strict=True):
            row[: len(ids)] = ids
            row[len(ids)] = END
        self.count = np.array([len(photograph.captions) for photograph in photographs])
        self.first = np.cumsum(self.count) - self.count

    def pick(self, rows: int, rng: np.random.Generator | None = None) -> NDArray[np.int64]:
        """For each photograph the positions of `rows` of its captions: in the file's order, or in one drawn by `rng`.

        Captions come again only when all of that photograph have come.
        """
        order = np.broadcast_to(np.arange(self.count.max()), (len(self.count), self.count.max()))
        if rng is not None:
            order = np.where(order < self.count[:, None], rng.random(order.shape), 2).argsort(axis=1)
        turn = np.arange(rows) % self.count[:, None]
        return self.first[:, None] + np.take_along_axis(order, turn, axis=1)


class Batches:
    """The batches of one pass, in order; one is read ahead while the last is being used."""

    def __init__(
        self, source: Captions, part: Part, members: Sequence[NDArray[np.int64]], captions: NDArray[np.int64]
    ) -> None:
        self.source, self.part, self.members, self.captions = source, part, members, captions

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[CaptionBatch]:
        features = self.source._features
        # Pinned memory is asked for here, in the caller's thread: CUDA calls elsewhere would disturb a graph's capture.
        spaces = (None if features is None else features.space(len(members)) for members in self.members)
        jobs = zip(self.members, spaces, strict=True)
        if features is not None and self.source.residency == "device":
            yield from (self._batch(*job) for job in jobs)
            return
        with ThreadPoolExecutor(1) as reader:
            coming = None
            for job in jobs:
                ready, coming = coming, reader.submit(self._batch, *job)
                if ready is not None:
                    yield ready.result()
            if coming is not None:
                yield coming.result()

    def _batch(self, members: NDArray[np.int64], space: Any) -> CaptionBatch:
        part, captions = self.part, self.captions[members]
        lengths = part.lengths[captions]
        longest_first = np.argsort(-lengths, axis=1, kind="stable")
        captions = np.take_along_axis(captions, longest_first, axis=1)
        order = np.argsort(-lengths.max(axis=1), kind="stable")
        members, captions = members[order], captions[order]
        words = part.words[captions][:, :, : lengths.max()]
        photographs = [part.photographs[member] for member in members]
        return CaptionBatch(
            images=self.source._look(part, members, space),
            words=torch.from_numpy(words.astype(np.int64)),
            ids=tuple(photograph.id for photograph in photographs),
            references=tuple(photograph.captions for photograph in photographs),
            files=tuple(part.files[member] for member in members),
            boxes=(None,) * len(photographs),
        )


def _known(split: str) -> str:
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; expected {', '.join(SPLITS)}")
    return split


def _try(names: Sequence[str], files: Sequence[Path], resolution: int) -> dict[str, str]:
    """Those of `files` that cannot be read, with the reason."""

    def complaint(path: Path) -> str:
        try:
            open_photograph(path, at_least=2 * resolution)
        except ValueError as error:
            return str(error).removeprefix(f"{path}: ")
        return ""

    complaints = progress(in_threads(complaint, files), what="photographs", unit="image", total=len(files))
    return {name: why for name, why in zip(names, complaints, strict=True) if why}

"""`Batches` and `CaptionTable`: make batches of images and captions from the photographs of a split."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.images.resizing import RESIZING
from vision_attn.data.images.squares import in_threads
from vision_attn.data.photographs.annotation_vectors.features import Features
from vision_attn.data.photographs.annotation_vectors.vectors import Vectors
from vision_attn.data.photographs.photograph import Photograph
from vision_attn.data.photographs.pixels import AHEAD, Pixels
from vision_attn.data.photographs.store import Photographs
from vision_attn.data.vocabulary import PAD, Vocabulary
from vision_attn.system.errors import UserError
from vision_attn.system.files import digest
from vision_attn.task import Static


class BatchPositions(NamedTuple):
    """The photographs of a batch and their captions, as positions in a `CaptionTable`."""

    members: Int[np.ndarray, "B"]
    captions: Int[np.ndarray, "B R"]
    picture_indices: Int[np.ndarray, "B"]
    """The index of the picture of each photograph."""
    lengths: Static | None = None
    crops: Float[np.ndarray, "B 4"] | None = None
    """The part of each photograph that the model sees; None: all of it."""


class CaptionTable:
    """The photographs of one split and the word ids of their captions."""

    def __init__(
        self, photographs: Photographs, picture_indices: NDArray[np.int64], vocabulary: Vocabulary, max_length: int
    ) -> None:
        """picture_indices: the index of each photograph's picture.
        max_length: the largest number of words of a caption.
        """
        self.photographs, self.picture_indices = photographs, picture_indices
        self.words = photographs.encoded(vocabulary, max_length)
        self.first = photographs.starts[photographs.members]
        self.count = photographs.starts[photographs.members + 1] - self.first
        self.bounds = photographs.bounds
        """The number of the first photograph of each source, then the number of all photographs."""

    def sources(self, members: NDArray[np.int64]) -> tuple[str, ...]:
        """Return the name of the source of each photograph; empty if there is only one source."""
        if self.photographs.sources is None:
            return ()
        names, numbers = [*self.photographs.sources], np.searchsorted(self.bounds, members, side="right") - 1
        return tuple(names[number] for number in numbers.tolist())

    def most_words(self, rows: int) -> NDArray[np.int64]:
        """Return the largest number of words that each row of each photograph can have, longest first, whatever
        captions `pick` chooses."""
        columns = np.arange(self.count.max())
        there = columns < self.count[:, None]
        lengths = np.where(there, self.words.lengths(np.where(there, self.first[:, None] + columns, 0)), 0)
        times = -(-rows // self.count)[:, None]  # how often a caption is repeated
        return np.take_along_axis(-np.sort(-lengths, axis=1), np.arange(rows) // times, axis=1)

    def pick(
        self, rows: int, rng: np.random.Generator | None = None, members: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Choose captions of photographs. Return their positions in the table, (photographs, rows). A caption is
        repeated only after all captions of its photograph have been used.

        rows: the number of captions of each photograph.
        rng: for a random order; None: the order of the file.
        members: the photographs; None: all.
        """
        chosen = slice(None) if members is None else members
        first, count = self.first[chosen], self.count[chosen]
        order = np.broadcast_to(np.arange(self.count.max()), (len(count), self.count.max()))
        if rng is not None:
            order = np.where(order < count[:, None], rng.random(order.shape), 2).argsort(axis=1)
        position = np.arange(rows) % count[:, None]
        return first[:, None] + np.take_along_axis(order, position, axis=1)


class Batches:
    """The batches of one pass over the data, in order. Threads read the next batches while the current one is in
    use."""

    def __init__(
        self,
        table: CaptionTable,
        pictures: Features | Pixels | Vectors,
        batch_positions: Sequence[BatchPositions],
        *,
        may_skip: bool = False,
    ) -> None:
        """may_skip: whether to leave out a batch if none of its photographs can be read, which otherwise is an error.
        It is always an error if no batch is left."""
        self.table, self.pictures, self.batch_positions, self.may_skip = table, pictures, batch_positions, may_skip

    def __len__(self) -> int:
        return len(self.batch_positions)

    def __iter__(self) -> Iterator[CaptionBatch]:
        # Allocated here, in the caller's thread: CUDA calls in other threads would disturb the capture of a graph.
        jobs = ((positions, self.pictures.space(len(positions.members))) for positions in self.batch_positions)
        any_read = False
        for begun in in_threads(self._begun, jobs, ahead=AHEAD, threads=AHEAD):
            if begun is not None:
                any_read = True
                yield self._finished(*begun)
        if not any_read and len(self.batch_positions):
            raise _unreadable(self.table.photographs[int(self.batch_positions[0].members[0])])

    def _finished(self, batch: CaptionBatch, kept: Sequence[int] | None) -> CaptionBatch:
        """Complete a batch with its images, in the caller's thread.

        kept: the images that can be read; None: all.
        """
        images = self.pictures.finish(batch.images)
        return batch._replace(images=images if kept is None else images[kept])

    def _begun(self, job: tuple[BatchPositions, Tensor | None]) -> tuple[CaptionBatch, Sequence[int] | None] | None:
        """Begin to read the images of a batch. Return the batch, which `_finished` completes, and the numbers of the
        images that can be read."""
        positions, space = job
        table, (members, captions, picture_indices, _, crops) = self.table, positions
        lengths = table.words.lengths(captions)
        longest_first = np.argsort(-lengths, axis=1, kind="stable")
        captions = np.take_along_axis(captions, longest_first, axis=1)
        if positions.lengths is None:  # otherwise each image has its place
            order = np.argsort(-lengths.max(axis=1), kind="stable")
            members, captions, picture_indices = members[order], captions[order], picture_indices[order]
        photographs = [table.photographs[member] for member in members.tolist()]
        images = self.pictures.read(picture_indices, space)
        kept = [
            number for number, photograph in enumerate(photographs) if photograph.name not in self.pictures.unreadable
        ]
        if not kept:
            if self.may_skip:
                return None
            raise _unreadable(photographs[0])
        if incomplete := len(kept) < len(photographs):
            captions, members = captions[kept], members[kept]
            photographs, picture_indices = [photographs[number] for number in kept], picture_indices[kept]
            crops = None if crops is None else crops[kept]
        places = None if positions.lengths is None else Static(positions.lengths[number] for number in kept)
        longest = None if places is None else max(map(max, places))
        batch = CaptionBatch(
            images=images,
            words=torch.from_numpy(table.words.padded(captions, PAD, longest).astype(np.int64)),
            ids=tuple(photograph.id for photograph in photographs),
            references=tuple(photograph.captions for photograph in photographs),
            files=tuple(photograph.file for photograph in photographs),
            boxes=(None,) * len(photographs),
            vectors=tuple(self.pictures.files[index] for index in picture_indices)
            if isinstance(self.pictures, Vectors)
            else (),
            lengths=places,
            crops=None if crops is None else torch.from_numpy(crops),
            sources=table.sources(members),
        )
        return batch, kept if incomplete else None


def identity_of(members: Photographs, *further: Any) -> str:
    """Return a checksum of everything that metrics depend on: the names, file sizes and captions of located
    photographs, the way of resizing, and `further` values."""
    sizes = np.asarray(members.sizes).tolist()
    listed = [
        [photograph.id, photograph.name, photograph.captions, size]
        for photograph, size in zip(members, sizes, strict=True)
    ]
    return digest([RESIZING, listed, *further])


def _unreadable(photograph: Photograph) -> UserError:
    return UserError(f"no photograph of a whole batch can be read, such as {photograph.file}")

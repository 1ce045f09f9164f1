"""From captions to batches: a split's captions as one table of ids, and the batches cut from it, one read ahead."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vision_attn.data.annotations import Photograph
from vision_attn.data.features import Features
from vision_attn.data.images import Pixels
from vision_attn.data.vocabulary import END, PAD, Vocabulary


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


class CaptionTable:
    """The photographs of one split, their captions as ids in one padded table (captions, words)."""

    def __init__(
        self, photographs: Sequence[Photograph], rows: NDArray[np.int64], vocabulary: Vocabulary, max_length: int
    ) -> None:
        """`rows`: where each photograph stands among all pictures; `max_length`: words kept of a caption."""
        self.photographs, self.rows = photographs, rows
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
        self,
        table: CaptionTable,
        pictures: Features | Pixels,
        members: Sequence[NDArray[np.int64]],
        captions: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> None:
        """`members`: the photographs of each batch; `captions` and `rows`: what is taken of each photograph."""
        self.table, self.pictures, self.members, self.captions, self.rows = table, pictures, members, captions, rows

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[CaptionBatch]:
        # Space is asked for here, in the caller's thread: CUDA calls elsewhere would disturb a graph's capture.
        jobs = ((members, self.pictures.space(len(members))) for members in self.members)
        if self.pictures.on_device:
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

    def _batch(self, members: NDArray[np.int64], space: Tensor | None) -> CaptionBatch:
        table, captions = self.table, self.captions[members]
        lengths = table.lengths[captions]
        longest_first = np.argsort(-lengths, axis=1, kind="stable")
        captions = np.take_along_axis(captions, longest_first, axis=1)
        order = np.argsort(-lengths.max(axis=1), kind="stable")
        members, captions = members[order], captions[order]
        photographs = [table.photographs[member] for member in members]
        return CaptionBatch(
            images=self.pictures.gather(self.rows[members], space),
            words=torch.from_numpy(table.words[captions][:, :, : lengths.max()].astype(np.int64)),
            ids=tuple(photograph.id for photograph in photographs),
            references=tuple(photograph.captions for photograph in photographs),
            files=tuple(photograph.file for photograph in photographs),
            boxes=(None,) * len(photographs),
        )

"""`Shards`, the data set of captioned photographs that are streamed from tar files (WebDataset) or Parquet files
(Hugging Face). Memory holds only a shuffle buffer and a few batches, however many photographs there are.

Needs the extra `[scale]`.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, cycle, islice
from pathlib import Path
from random import Random
from threading import Lock
from typing import TypeVar

import numpy as np
import torch

from vision_attn.contracts import Fit
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.images.crops import random_crops
from vision_attn.data.images.squares import in_threads, read_seen
from vision_attn.data.photographs.annotation_files.samples import LeftOut, Sample
from vision_attn.data.photographs.annotation_files.shard_files import count, expanded, matching, read
from vision_attn.data.photographs.captioned import Captioned
from vision_attn.data.photographs.pixels import CPU
from vision_attn.data.photographs.remarks import remarks
from vision_attn.data.photographs.shard_batches import Picked, batches, readable
from vision_attn.data.words import Kind
from vision_attn.system.checks import check_range
from vision_attn.system.console import printable
from vision_attn.system.errors import UserError
from vision_attn.task import Task, equal_part, known_split

JUDGED = 2000
"""The number of captions whose lengths and dropped symbols are reported before training, and of photographs of each
split whose captions decide the language."""
NAMED = 5
"""The largest number of shards that messages about dropped samples name."""
Item = TypeVar("Item")
log = logging.getLogger(__name__)


class Shards(Captioned):
    """Captioned photographs in shards that are read from beginning to end.

    In training, each process reads its own part of the shards, in an order that depends on the seed and the epoch, and
    mixes the photographs in a shuffle buffer. A photograph that cannot be read is replaced by another of its batch.

    Each process takes the same number of photographs, and starts again at the end of its shards. So if shards differ in
    size, or their number is not a multiple of the number of processes, an epoch over all photographs shows some twice
    and leaves out as many.

    A resumed run reads the skipped samples without decoding them, and continues with the next photograph if the number
    of processes is the same. Unlike in other sources, another number of processes means other batches.
    """

    batch_size: int

    def __init__(
        self,
        *,
        shards: dict[str, str],
        epoch_images: int | None = None,
        photograph: str = "image",
        caption: str = "caption",
        vocabulary: str | None = None,
        vocabulary_images: int = 200_000,
        words: Kind | None = None,
        function_words: str | list[str] | None = None,
        min_count: int = 5,
        max_words: int | None = None,
        max_length: int = 30,
        batch_size: int = 64,
        rows: int = 1,
        shuffle: int = 2000,
        flips: bool = False,
        crops: float = 1.0,
    ) -> None:
        """Stores its arguments and reads nothing.

        shards: for train, val and test a pattern such as `pairs/train-*.tar` or `pairs/val-{00..07}.parquet`, also
            searched for under `$VISION_ATTN_DATA` and `data/`. All shards of a split are of one kind.
        epoch_images: photographs of one epoch over all processes; None: count those of the training shards.
        photograph, caption: the columns of a Parquet file; `photograph` holds the bytes of an image file, or `{bytes,
            path}`, and `caption` a text or a list of texts. In a tar file, members that follow each other and share the
            name up to its first dot are one sample: an image by its extension, and captions in `.caption` or `.txt`
            (one per line) or in `.json` (under the name `caption`). Other members are left out, and a logged line
        counts them. vocabulary: a saved vocabulary; None: build one from the captions of the first `vocabulary_images`
        training photographs, with at most `max_words` words that occur there at least `min_count` times.
        words: how captions become words: see `data.words`; None: at spaces, or as a saved vocabulary splits them.
        function_words: as in `Captions`; None: those of the detected language of the first captions of each split.
        max_length: the number of words of a caption that training and `nll` use: a longer caption is cut, and has no
            end. `references` keep all words.
        batch_size: photographs of a batch, over all processes together.
        rows: captions per photograph in a batch; one with fewer captions repeats them.
        shuffle: the number of photographs in the shuffle buffer of a process, kept as undecoded files.
        flips, crops: as in `Captions`.
        """
        for split in shards:
            known_split(split)
        check_range("Shards", 1, 10**6, batch_size=batch_size, shuffle=shuffle)
        check_range("Shards", 1, 1000, rows=rows, max_length=max_length)
        check_range("Shards", 0.1, 1, crops=crops)
        if epoch_images is not None and epoch_images < batch_size:
            raise UserError(f"Shards: epoch_images is {epoch_images}, but a batch holds {batch_size}")
        self.shards, self.epoch_images = shards, epoch_images
        self.fields = photograph, caption
        self.vocabulary_file, self.vocabulary_images = vocabulary, vocabulary_images
        self.words, self.min_count, self.max_words, self.max_length = words, min_count, max_words, max_length
        self.function_words = function_words
        self.check_function_words()
        self.batch_size, self.rows, self.shuffle, self.flips, self.crops = batch_size, rows, shuffle, flips, crops
        self._square: tuple[int, torch.device] = 0, CPU
        """The side of resized photographs, and the device that resizes them."""
        self._fit: Fit = "centre"
        self._warned = False
        self._told: set[Path] = set()
        self._telling = Lock()
        self._named = 0

    def prepare(self, task: Task) -> None:
        """Find the shards. No photograph is read."""
        if task.resolution is None:
            raise UserError("Shards: photographs of all sizes need an encoder with a resolution")
        owner: dict[Path, str] = {}
        for split in self.shards:
            for path in map(Path.resolve, self._paths(split)):
                if (other := owner.setdefault(path, split)) != split and "train" in (other, split):
                    raise UserError(f"{path} is in two splits, {other} and {split}: data.shards of both name it")
        device = next((weight.device for weight in task.parameters()), CPU)
        self._square, self._fit = (task.resolution, device if device.type == "cuda" else CPU), task.fit

    def captions_of_words(self) -> Iterator[str]:
        return chain.from_iterable(self.references())

    def captions_by_image(self) -> Iterator[tuple[str, ...]]:
        """Yield the captions of the first `JUDGED` photographs of each split: reading all would take as long as an
        epoch."""
        for split in self.shards:
            try:
                paths = self._paths(split)
            except UserError:  # said where the split is used
                continue
            yield from (sample.captions for sample in islice(chain.from_iterable(map(self._read, paths)), JUDGED))

    def references(self) -> Iterator[tuple[str, ...]]:
        samples = chain.from_iterable(map(self._read, self._paths("train")))
        return (sample.captions for sample in islice(samples, self.vocabulary_images))

    @property
    def remarks(self) -> Iterator[str]:
        captions = list(islice(chain.from_iterable(self.references()), JUDGED))
        cut = (text for text in captions if len(self.vocabulary.encode(text)) > self.max_length)
        told = remarks(captions, cut, self.vocabulary, self.max_length, "training captions that were looked at")
        return chain(told, filter(None, [self._on_language]))

    @cached_property
    def _counted(self) -> int:
        return self.counted("train")

    def counted(self, split: str) -> int:
        """Return the number of photographs of a split that have a caption. Logs how many samples are left out."""
        total, left_out = 0, LeftOut()
        for path in self._paths(split):
            own = LeftOut()
            total += count(path, *self.fields, own)
            if path not in self._told:
                self._told.add(path)
                left_out.update(own)
        if left_out.counts:
            log.warning("%s: %s", self.shards[split], printable(str(left_out)))
        return total

    def __len__(self) -> int:
        return max(1, (self.epoch_images or self._counted) // self.batch_size)

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[CaptionBatch]:
        paths, size = self._paths("train"), self.batch_size // world
        equal_part(self.batch_size, rank, world)
        if len(paths) < world:
            raise UserError(f"{len(paths)} shards cannot be divided among {world} processes: write more, smaller ones")
        if rank == 0 and not self._warned:
            self._warn_if_uneven(len(paths), world)
        rng = np.random.default_rng([seed % 2**64, epoch])
        mine = [paths[index] for index in rng.permutation(len(paths))[rank::world]]
        random = Random(f"{seed} {epoch} {rank} {world}")  # a text is hashed alike in every process
        numbered = ((sample, random.random()) for sample in self._endless(mine, random))
        decoded = in_threads(self._decode_sample, islice(numbered, skip * size, None), ahead=2 * size)
        for number, batch in enumerate(batches(self._filled(decoded, size), *self._square, len(self) - skip), skip):
            if self.flips or self.crops < 1:
                rng = np.random.default_rng([seed % 2**64, epoch, rank, number])  # a resumed epoch has the same crops
                mirrored = self.flips & (rng.integers(0, 2, size) == 1)
                batch = batch._replace(crops=torch.from_numpy(random_crops(float(self.crops), mirrored, rng)))
            yield batch

    def _filled(self, decoded: Iterator[Picked | str], size: int) -> Iterator[list[Picked]]:
        """Yield the samples of each batch. Samples that cannot be read are replaced by repeating others."""
        while True:
            if not (picked := readable(islice(decoded, size))):
                raise UserError(f"{self.shards['train']}: no photograph of a whole batch can be read")
            yield list(islice(cycle(picked), size))

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> "Split":
        return Split(self, name, rank, world)

    def _warn_if_uneven(self, shards: int, world: int) -> None:
        """Warn once if processes have different numbers of shards."""
        self._warned = True
        more = shards % world  # processes with one shard more than others
        if more:
            left_out = more * (-(-shards // world) / shards - 1 / world)
            log.warning(
                "%d shards are not a multiple of %d processes: an epoch over all photographs leaves out about %.0f%% "
                "of them, and shows as many twice",
                shards, world, 100 * left_out,
            )  # fmt: skip

    def _endless(self, paths: Sequence[Path], random: Random) -> Iterator[Sample]:
        """Yield the samples of shards in random order, endlessly: every sample once before any repetition."""
        while True:
            empty = True
            for sample in shuffled(chain.from_iterable(map(self._read, paths)), self.shuffle, random):
                empty = False
                yield sample
            if empty:
                raise UserError(f"{self.shards['train']}: no photograph with a caption is in {paths[0]}, ...")

    def _decode_sample(self, numbered: tuple[Sample, float | None]) -> Picked | str:
        """Decode a sample and choose captions. Return the reason if it cannot be read.

        numbered: the sample, and a random number that decides the order of captions; None: their own order.
        """
        sample, number = numbered
        try:
            pixels = read_seen(sample.photograph, self._square[0], self._fit)
        except UserError as error:
            return str(error)
        captions = list(sample.captions)
        if number is not None:
            Random(number).shuffle(captions)
        texts = islice(cycle(captions), self.rows)
        words = [self.vocabulary.targets(text, self.max_length) for text in texts]
        return Picked(sample.photograph.name, pixels, sorted(words, key=len, reverse=True), sample.captions)

    def _paths(self, split: str) -> list[Path]:
        """Return the shards of a split, in the order of their names. Only local files are allowed, since `webdataset`
        would run the command in an address such as `pipe:`."""
        if split not in self.shards:
            raise UserError(f"no shards are given for split {split}: set --data.shards.{split}")
        paths = [path for pattern in expanded(self.shards[split]) for path in matching(pattern)]
        if not paths:
            raise UserError(f"{self.shards[split]}: no such shards")
        endings = {path.suffix for path in paths}
        if endings not in ({".tar"}, {".parquet"}):
            raise UserError(f"{self.shards[split]}: shards must all end in .tar, or all in .parquet")
        return paths

    def _read(self, path: Path) -> Iterator[Sample]:
        left_out = LeftOut()
        yield from read(path, *self.fields, left_out)
        with self._telling:  # shards are read by several threads
            if left_out.counts and path not in self._told and self._named < NAMED:
                self._named += 1
                log.warning(
                    "%s: %s%s",
                    path, printable(str(left_out)), "; further shards are not named" * (self._named == NAMED),
                )  # fmt: skip
            self._told.add(path)


class Split:
    """The batches of a split for evaluation, in the order of the shards, with every readable photograph once. A process
    gets every `world`-th batch, from batch `rank` on."""

    def __init__(self, source: Shards, name: str, rank: int = 0, world: int = 1) -> None:
        self.source, self.paths, self.rank, self.world = source, source._paths(name), rank, world
        self.images = source.counted(name)

    def __len__(self) -> int:
        return len(range(self.rank, -(-self.images // self.source.batch_size), self.world))

    def __iter__(self) -> Iterator[CaptionBatch]:
        size = self.source.batch_size
        numbered = enumerate(sample for path in self.paths for sample in self.source._read(path))
        samples = ((sample, None) for number, sample in numbered if number // size % self.world == self.rank)
        decoded = in_threads(self.source._decode_sample, samples, ahead=2 * size)
        chunks = iter(lambda: list(islice(decoded, size)), [])
        yield from batches(filter(None, map(readable, chunks)), *self.source._square)


def shuffled(samples: Iterable[Item], size: int, random: Random) -> Iterator[Item]:
    """Yield items in random order from a buffer of `size` items, in which the next item replaces each one that is
    taken."""
    samples = iter(samples)
    buffer = list(islice(samples, size))
    for sample in samples:
        index = random.randrange(size)
        buffer[index], sample = sample, buffer[index]
        yield sample
    random.shuffle(buffer)
    yield from buffer

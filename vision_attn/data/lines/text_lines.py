"""`Lines`, the data set of your own images of lines with transcripts: handwriting, print, number plates, in any
script."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from vision_attn.data.caption_batch import CaptionBatch, padded_words
from vision_attn.data.counted_batches import Counted, slices
from vision_attn.data.images.open import ENDINGS, decoded_image
from vision_attn.data.images.squares import in_threads
from vision_attn.data.lines.characters import Characters, composed
from vision_attn.data.lines.strips import MULTIPLE
from vision_attn.data.random_streams import stream
from vision_attn.data.record_files import check_inside, divided, plain_path, read_records, say_endings, with_endings
from vision_attn.data.vocabulary import VocabularySource
from vision_attn.system.checks import check_range
from vision_attn.system.console import progress
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief, find
from vision_attn.system.splits import split_named
from vision_attn.task import SPLITS, Source, Task, equal_part, known_split

COLUMN = 4
"""Encoders of lines take widths that are multiples of this number of pixels."""
MAX_WIDTH = 1024
"""A wider line is compressed to this number of pixels."""
POOL = 16
"""The number of batches among which lines are sorted by length."""


class TextLine(NamedTuple):
    """The image file of a line and its transcript."""

    id: str
    file: Path
    text: str


class Lines(VocabularySource):
    """A folder of images of lines, and a file of their transcripts.

    images: the folder of the images, also searched for under `$VISION_ATTN_DATA` and `data/`.
    transcripts: a CSV file whose first row names its columns, or JSON lines: `image`, the name of a file in `images`;
        `text`; and, for all lines or for none, `split` (train, val or test). Without splits, a tenth of the lines is
        for validation and a tenth for test, chosen by a hash of the names, so that they stay the same when lines are
        added.
    height: the height to which lines are resized, in proportion.
    max_width: a wider line is compressed to this width.

    The input is the absolute difference of grey values from the paper, the median of the edges, so that ink is light on
    black for dark and for light paper. Lines of a batch are padded on the right with black to the width of the widest.

    Raises UserError naming the file and the line for transcripts that cannot be used, when they are first needed.
    """

    vocabulary_type = Characters

    batch_size: int

    def __init__(
        self,
        *,
        images: str,
        transcripts: str,
        height: int = 32,
        max_width: int = MAX_WIDTH,
        batch_size: int = 32,
    ) -> None:
        check_range("Lines", 8, 512, height=height)
        check_range("Lines", 8, 2**14, max_width=max_width)
        check_range("Lines", 1, 10**4, batch_size=batch_size)
        self.images, self.transcripts = images, transcripts
        self.height, self.max_width, self.batch_size = height, max_width, batch_size

    @cached_property
    def lines(self) -> dict[str, list[TextLine]]:
        """All lines by split, in the order of the file."""
        return read_transcripts(find(self.transcripts), find(self.images))

    @cached_property
    def vocabulary(self) -> Characters:
        """The characters of training transcripts, or those that `restore` read."""
        return Characters.build(line.text for line in self.lines["train"])

    def prepare(self, task: Task) -> None:
        """Read every image once, so that an unreadable one is found before training. Raises UserError naming it."""
        if task.resolution not in (None, self.height):
            raise UserError(
                f"lines are read at height={self.height}, but the encoder takes {task.resolution} pixels; "
                f"set the source's height to {task.resolution} or the encoder's to {self.height}"
            )
        everything = [line for split in SPLITS for line in self.lines[split]]
        for _ in progress(in_threads(self.read, everything), what="lines", unit="line", total=len(everything)):
            pass

    def __len__(self) -> int:
        return max(1, len(self.lines["train"]) // self.batch_size)

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[CaptionBatch]:
        """Yield every training line once, in random order; an incomplete last batch is dropped if there is another.

        In half of the batches, lines have similar lengths, so that models also see short lines without padding, as when
        a single line is read.
        """
        lines = self.lines["train"]
        size = min(self.batch_size, len(lines))
        equal_part(size, rank, world)
        bits, pool = stream(seed % 2**64, epoch), POOL * size
        order = bits.random_raw(len(lines)).argsort(kind="stable").tolist()
        half = (len(self) + 1) // 2 * size
        for first in range(0, half, pool):
            alike = slice(first, min(first + pool, half))
            order[alike] = sorted(order[alike], key=lambda number: len(lines[number].text))
        for index in bits.random_raw(len(self)).argsort(kind="stable")[skip:].tolist():
            members = order[index * size : (index + 1) * size]
            yield self.batch([lines[number] for number in members], rank, world)

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> Counted[CaptionBatch]:
        """Return the lines of a split, longest transcript first."""
        lines = sorted(self.lines[known_split(name)], key=lambda line: -len(line.text))
        return slices(lambda chosen: self.batch(lines[chosen]), len(lines), self.batch_size, rank=rank, world=world)

    def references(self) -> Iterator[list[str]]:
        return ([line.text] for line in self.lines["train"])

    def batch(self, lines: Sequence[TextLine], rank: int = 0, world: int = 1) -> CaptionBatch:
        """Return this process's part of a batch, padded to the width of the whole batch.

        rank, world: the number of this process, and of all processes.
        """
        lines = sorted(lines, key=lambda line: -len(line.text))
        strips = list(in_threads(self.read, lines))
        images, lines = padded_strips(strips)[rank::world], lines[rank::world]
        return CaptionBatch(
            images=images,
            words=padded_words([self.vocabulary.encode(line.text) for line in lines]),
            ids=tuple(line.id for line in lines),
            references=tuple([line.text] for line in lines),
            files=tuple(line.file for line in lines),
            boxes=(None,) * len(lines),
        )

    def read(self, line: TextLine) -> UInt8[Tensor, "Y X"]:
        """Return the ink of a line. Raises UserError naming the file if it cannot be read."""
        return read_line(line.file, self.height, self.max_width)


def max_width_of(source: Source) -> int:
    """Return the width to which a run that was trained on `source` compresses wider lines."""
    return source.max_width if isinstance(source, Lines) else MAX_WIDTH


def read_line(path: str | Path, height: int, max_width: int = MAX_WIDTH) -> UInt8[Tensor, "Y X"]:
    """Return the ink of a line, resized to `height` in proportion. Raises UserError naming the file if it cannot be
    read."""
    with decoded_image(path) as image:
        return ink(image, height, max_width)


def ink(image: Image.Image, height: int, max_width: int = MAX_WIDTH) -> UInt8[Tensor, "Y X"]:
    """Return the ink of a line: the absolute difference of its grey values from the paper. The paper is the median of
    the outermost pixels, because bold letters may fill more than half of a line."""
    width = max(1, min(max_width, round(image.width * height / image.height)))
    grey = np.array(image.convert("L").resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    paper = int(np.median(np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])))
    return torch.from_numpy(np.abs(grey - paper).astype(np.uint8))


def padded_strips(strips: Sequence[UInt8[Tensor, "Y _"]], multiple: int = MULTIPLE) -> UInt8[Tensor, "B 3 Y X"]:
    """Stack strips in three equal channels, padded on the right with black to the width of the widest, rounded up to
    `multiple`."""
    width = -(-max(strip.shape[1] for strip in strips) // multiple) * multiple
    images = torch.zeros(len(strips), 3, len(strips[0]), width, dtype=torch.uint8)
    for image, strip in zip(images, strips, strict=True):
        image[..., : strip.shape[1]] = strip
    return images


def read_transcripts(path: Path, images: Path) -> dict[str, list[TextLine]]:
    """Read the lines of each split from CSV or JSON lines. Raises UserError naming the file and the line."""
    records = read_records(path, "image", "text").records
    split: dict[str, list[TextLine]] = {name: [] for name in SPLITS}
    given = {record.get("split") not in (None, "") for _, record in records}
    if len(given) > 1:
        raise UserError(f"{path}: some lines have a split and some have none; give one for all or for none")
    said = [plain_path(str(record.get("image"))) for _, record in records]
    whole = with_endings(images, [name for name in said if not os.path.isfile(images / name)], ENDINGS)
    say_endings(whole, "images")
    names = sorted(whole.get(name, name) for name in said)
    if twice := next((name for name, following in pairwise(names) if name == following), None):
        raise UserError(f"{path}: image {brief(twice)} has two transcripts; give one line per image")
    apart = {} if given == {True} else dict(zip(names, divided(names), strict=True))
    for where, record in records:
        name, text = record.get("image"), record.get("text")
        if not isinstance(name, str) or not isinstance(text, str) or not name:
            raise UserError(f'{where}: "image" and "text" must be strings')
        name = plain_path(name)
        check_inside(where, name, images)
        name = whole.get(name, name)
        line_split = apart.get(name) or split_named(record.get("split"))
        if line_split not in SPLITS:
            raise UserError(f"{where}: split {brief(line_split)} is not one of {', '.join(SPLITS)}")
        split[line_split].append(TextLine(name, images / name, composed(text)))
    for name, lines in split.items():
        if not lines:
            raise UserError(
                f"{path} has no line for {name}: it has {len(records)} lines; give at least 3, or each its split"
            )
    return split

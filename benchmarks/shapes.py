"""The inputs of benchmarks: the same sizes, images and captions on all sides, from a seed."""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

START, END = 0, 1

# How many captions of COCO val2017 have each number of words, END included, per mille; the 1% with more than 20 words
# count as 20.
COCO = {9: 168, 10: 222, 11: 214, 12: 152, 13: 100, 14: 58, 15: 34, 16: 19, 17: 11, 18: 7, 19: 4, 20: 11}
EVEN = dict.fromkeys(range(12, 21), 1)
LENGTHS = {"12 to 20 words": EVEN, "COCO's lengths": COCO}

Case = TypeVar("Case")


class Shapes(NamedTuple):
    """The sizes that popular replications share."""

    images: int = 64
    rows: int = 5
    regions: int = 196
    region_size: int = 512
    hidden: int = 512
    attention: int = 512
    word: int = 512
    vocabulary: int = 10_000
    lengths: str = "12 to 20 words"
    quick: bool = False
    """Run everything once, as a test. Nothing is measured."""

    @property
    def captions(self) -> int:
        return self.images * self.rows

    def some(self, cases: Sequence[Case]) -> Sequence[Case]:
        """All cases of a table, or only the first if `quick`."""
        return cases[:1] if self.quick else cases

    def times(self, number: int) -> int:
        """The number of steps in one measurement: `number`, or one if `quick`."""
        return 1 if self.quick else number


QUICK = Shapes(images=2, rows=2, regions=16, region_size=8, hidden=8, attention=8, word=8, vocabulary=50, quick=True)


class Batch(NamedTuple):
    """A batch in the layout of `vision_attn`: regions once per image, its captions as rows."""

    regions: Tensor
    """(images, regions, region_size)."""
    words: Tensor
    """(images, rows, words): word ids, END, then zeros. Longest first among images and within each image."""

    def to(self, device: str) -> "Batch":
        return Batch(self.regions.to(device), self.words.to(device))


def random_lengths(shapes: Shapes, number: int, seed: int = 0) -> list[int]:
    """Random lengths of captions, END included, longest first."""
    lengths = LENGTHS[shapes.lengths]
    return sorted(random.Random(seed).choices(list(lengths), list(lengths.values()), k=number), reverse=True)


def random_batch(shapes: Shapes, seed: int = 0) -> Batch:
    """Random regions, rectified like the output of a ReLU, and random captions."""
    generator = torch.Generator().manual_seed(seed)
    seeds = random.Random(seed)
    per_image = [random_lengths(shapes, shapes.rows, seeds.randrange(2**31)) for _ in range(shapes.images)]
    per_image.sort(reverse=True)
    lengths = torch.tensor(per_image)
    words = torch.randint(3, shapes.vocabulary, (*lengths.shape, int(lengths.max())), generator=generator)
    position = torch.arange(words.shape[-1])
    words = torch.where(position == lengths[..., None] - 1, END, words)
    words = torch.where(position >= lengths[..., None], 0, words)
    regions = torch.randn(shapes.images, shapes.regions, shapes.region_size, generator=generator).relu_()
    return Batch(regions, words)

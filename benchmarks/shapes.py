"""What both sides are given: the same images, captions and sizes, drawn with a seed."""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

START, END = 0, 1

# Words of COCO val2017's captions with their end, per mille; the 1% beyond 20 words is cut to 20.
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
    """Run everything once, to show that it runs. Nothing is measured."""

    @property
    def captions(self) -> int:
        return self.images * self.rows

    def some(self, cases: Sequence[Case]) -> Sequence[Case]:
        """All cases of a table, or the first alone where `quick`."""
        return cases[:1] if self.quick else cases


QUICK = Shapes(images=2, rows=2, regions=16, region_size=8, hidden=8, attention=8, word=8, vocabulary=50, quick=True)


class Batch(NamedTuple):
    """One batch as `vision_attn` takes it: an image's regions once, its captions beside each other."""

    regions: Tensor
    """(images, regions, region_size)."""
    words: Tensor
    """(images, rows, words): word ids, END, then zeros. Longest first among images and within each image."""

    def to(self, device: str) -> "Batch":
        return Batch(self.regions.to(device), self.words.to(device))


def draw_lengths(shapes: Shapes, number: int, seed: int = 0) -> list[int]:
    """Lengths of captions, the end counted, longest first."""
    lengths = LENGTHS[shapes.lengths]
    return sorted(random.Random(seed).choices(list(lengths), list(lengths.values()), k=number), reverse=True)


def draw_batch(shapes: Shapes, seed: int = 0) -> Batch:
    """Regions like those of a ReLU, and random captions."""
    generator = torch.Generator().manual_seed(seed)
    draw = random.Random(seed)
    per_image = [draw_lengths(shapes, shapes.rows, draw.randrange(2**31)) for _ in range(shapes.images)]
    per_image.sort(reverse=True)
    lengths = torch.tensor(per_image)
    words = torch.randint(3, shapes.vocabulary, (*lengths.shape, int(lengths.max())), generator=generator)
    turn = torch.arange(words.shape[-1])
    words = torch.where(turn == lengths[..., None] - 1, END, words)
    words = torch.where(turn >= lengths[..., None], 0, words)
    regions = torch.randn(shapes.images, shapes.regions, shapes.region_size, generator=generator).relu_()
    return Batch(regions, words)

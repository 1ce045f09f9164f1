"""Groups of captions of nearly equal length, so that batches have few shapes and little padding.

The captions of an image are its *rows*, longest first. A *shape* is the number of words of each row, END included: row
r of every image of a batch is padded to number r of its shape. A few shapes serve a whole data set: `shapes_of` finds
them, and `grouped` divides the images of an epoch into batches of one shape each.

Kiros et al. trained on captions of one length at a time, as did the code of Xu et al. 2015. The five captions of a
photograph differ in length, so only up to `TOGETHER` of them meet in a batch, where an image costs little.
"""

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from vision_attn.task import Static

SHAPES = 16
"""The most shapes of the batches of a data set. Each takes the capture of a graph on a GPU."""
TOGETHER = 3
"""The most rows of an image in a batch, where it costs little to read an image in two batches of an epoch. Captions of
one image are of more different lengths than those of different ones: five of Flickr8k leave 12% of padding, three or
two less than 10%. Fewer would take more time on a CPU, which projects annotation vectors once for all rows."""
SAMPLE = 2048
"""Images from whose captions shapes are found."""
CANDIDATES = 500
WORKERS = 8
"""Sizes of batches stay multiples of this number, if that of whole images is one, so that processes can share them."""


class Group(NamedTuple):
    """The images of one batch."""

    members: Int[np.ndarray, "B"]
    rows: slice
    """Which rows of these images, where rows are sorted, longest first."""
    shape: Static
    """The number of words to which each row is padded."""


class Grouping:
    """Divides the images of each epoch into batches of few shapes.

    sample: the number of words of each row of some images, longest first, from which shapes are found. What an epoch
        holds may have rows that are longer.
    num_images: of an epoch.
    batch_size: the number of images of a batch of whole images. Batches of fewer rows hold more images, so that the
        number of captions is nearly the same.
    whole: all rows of an image meet in one batch, because an image takes long: its encoder is trained.
    """

    def __init__(self, sample: Int[np.ndarray, "N R"], num_images: int, batch_size: int, *, whole: bool) -> None:
        num_rows = sample.shape[1]
        parts = 1 if whole else -(-num_rows // TOGETHER)
        edges = [num_rows * part // parts for part in range(parts + 1)]
        self.num_images = num_images
        self.rows = [slice(start, end) for start, end in zip(edges[:-1], edges[1:], strict=True)]
        self.sizes = [part_size(num_images, batch_size, num_rows, part.stop - part.start) for part in self.rows]
        self.shapes = [shapes_of(sample[:, part], SHAPES // parts) for part in self.rows]

    def __len__(self) -> int:
        """The number of batches of an epoch; an incomplete last one of each kind is left out."""
        return sum(self.num_images // size for size in self.sizes)

    def epoch(self, lengths: Int[np.ndarray, "N R"], rng: np.random.Generator) -> list[Group]:
        """The batches of an epoch in random order. `lengths`: the number of words of each row, longest first."""
        found = [
            Group(members, rows, shape)
            for rows, size, shapes in zip(self.rows, self.sizes, self.shapes, strict=True)
            for members, shape in grouped(lengths[:, rows], shapes, size, rng)
        ]
        return [found[number] for number in rng.permutation(len(found))]


def part_size(num_images: int, batch_size: int, num_rows: int, rows: int) -> int:
    """The number of images of a batch that holds `rows` of their `num_rows`, with which few images are left out."""
    most = batch_size * num_rows // rows  # as many captions as in a batch of whole images
    if rows == num_rows or most >= num_images:
        return min(most, num_images)
    unit = gcd(batch_size, WORKERS)
    return max(1, num_images // -(-num_images // most) // unit) * unit


def shapes_of(lengths: Int[np.ndarray, "N R"], number: int) -> Int[np.ndarray, "K R"]:
    """At most `number` shapes with little padding for images with rows of these lengths, longest first.

    Each image belongs to the shape of fewest words that holds all of its rows. The first shape holds the rows of every
    image. The others are added one after the other, each time the one that saves most; then each is moved by single
    words for as long as that saves some.
    """
    rng = np.random.default_rng(0)
    some = lengths if len(lengths) <= SAMPLE else lengths[rng.choice(len(lengths), SAMPLE, replace=False)]
    kinds, images = np.unique(some, axis=0, return_counts=True)
    highest = lengths.max(axis=0)

    def words(shapes: Int[np.ndarray, "K R"]) -> Int[np.ndarray, "kinds K"]:
        holds = (kinds[:, None] <= shapes).all(axis=2)
        return np.where(holds, shapes.sum(axis=1), highest.sum() + 1)

    picked = some[rng.integers(len(some), size=(3, CANDIDATES))]
    candidates = np.unique(np.concatenate(np.maximum.accumulate(picked)), axis=0)
    costs, shapes = words(candidates), [highest]
    cost = np.full(len(kinds), highest.sum())
    for _ in range(number - 1):
        best = (images @ np.minimum(costs, cost[:, None])).argmin()
        cost = np.minimum(cost, costs[:, best])
        shapes.append(candidates[best])
    return np.unique(_moved(np.array(shapes), words, images), axis=0)


def _moved(shapes: NDArray, words, images: NDArray) -> NDArray:
    """Move each shape but the first by one word of one row at a time, for as long as fewer words are computed."""
    costs, shapes = words(shapes), shapes.copy()
    best, better = images @ costs.min(axis=1), True
    steps = np.concatenate([-np.eye(shapes.shape[1], dtype=int), np.eye(shapes.shape[1], dtype=int)])
    while better:
        better = False
        for number in range(1, len(shapes)):
            others = np.delete(costs, number, axis=1).min(axis=1)
            near = np.minimum.accumulate(np.clip(shapes[number] + steps, 1, shapes[0]), axis=1)
            found = words(near)
            totals = images @ np.minimum(found, others[:, None])
            if totals.min() < best:
                one = totals.argmin()
                best, better = totals[one], True
                shapes[number], costs[:, number] = near[one], found[:, one]
    return shapes


def grouped(
    lengths: Int[np.ndarray, "N R"], shapes: Int[np.ndarray, "K R"], size: int, rng: np.random.Generator
) -> list[tuple[NDArray, Static]]:
    """Divide images with rows of these lengths into batches of `size` and one shape each; some that do not fill a
    batch, chosen at random, are left out. Rows that no shape holds lengthen the shape of the most words."""
    highest = np.maximum(shapes.max(axis=0), lengths.max(axis=0))
    shapes = shapes[np.argsort(shapes.sum(axis=1), kind="stable")]
    shapes = np.concatenate([shapes[(shapes < highest).any(axis=1)], highest[None]])
    holds = (lengths[:, None] <= shapes).all(axis=2)
    kept = rng.permutation(len(lengths))[: len(lengths) // size * size]
    own = np.full(len(lengths), -1)
    own[kept] = holds[kept].argmax(axis=1)
    found = []
    for number, shape in enumerate(shapes):
        members = rng.permutation(np.flatnonzero(own == number))
        full = len(members) // size * size
        if full < len(members):  # those that take the fewest words more meet those of the next shape that holds them
            higher = number + 1 + holds[members, number + 1 :].argmax(axis=1)
            order = np.argsort(-higher, kind="stable")
            own[members[order[full:]]] = higher[order[full:]]
            members = rng.permutation(members[order[:full]])
        batches = members[:full].reshape(-1, size)
        found += [(batch, Static(shape.tolist())) for batch in batches]
    return found


def rounded(size: int) -> int:
    """The next larger of few sizes: the even numbers to 16, then four for each doubling (20, 24, 28, 32, 40, ..)."""
    step = max(2, 2 ** ((size - 1).bit_length() - 1) // 4)
    return -(-size // step) * step


def padding(groups: Sequence[Group], lengths: Int[np.ndarray, "N R"]) -> float:
    """The share of padding among the words of these batches."""
    words = sum(int(lengths[group.members][:, group.rows].sum()) for group in groups)
    return 1 - words / sum(len(group.members) * sum(group.shape) for group in groups)

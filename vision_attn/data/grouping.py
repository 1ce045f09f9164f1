"""Group images into batches of few shapes with little padding, each with captions of all lengths.

The captions of an image are its *rows*, longest first. A *shape* is the number of words, END included, to which each
row of each image of a batch is padded. On a GPU, a step is captured as a graph for each shape, and computes all words
of the shape. So batches should have few shapes, with little padding.

Differs from the code of Xu et al. 2015, where all captions of a batch have one length: a captioner learns less from
such batches (docs/log.md). Here images are divided into *strata* of nearly equal lengths, and place i of every batch
holds an image of stratum i. Every batch is then a fair sample of the data, and the shapes are always the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from vision_attn.task import Static

SHAPES = 4
"""The largest number of shapes of a data set; each needs a graph. With four, 7% of the words are padding for five
captions per photograph of Flickr8k; with one, 12%."""
TAIL = 8
"""The images with the longest captions of a set are taken to be one in this number."""


class ShapedBatch(NamedTuple):
    """The images of one batch, in the order of their places, and its shape."""

    members: Int[np.ndarray, "B"]
    shape: Static
    """The number of words of each row of each image."""


class Stratified:
    """Divides the images of each epoch into batches of few shapes.

    lengths: the number of words of each row of every image, longest first, or an upper bound.
    batch_size: the number of images of a batch.
    """

    def __init__(self, lengths: Int[np.ndarray, "N R"], batch_size: int) -> None:
        self.size = min(batch_size, len(lengths))
        self.batches = len(lengths) // self.size
        num_shapes = max(1, min(SHAPES, self.batches))
        self.counts = [self.batches // num_shapes + (index < self.batches % num_shapes) for index in range(num_shapes)]
        left_out = len(lengths) - self.batches * self.size
        sizes = np.array([self.counts[place % num_shapes] for place in range(self.size * num_shapes)])
        sizes[:: max(1, len(sizes) // max(1, left_out))][:left_out] += 1  # such a stratum leaves one image out
        sets = strata(lengths, sizes)
        longest = np.array([lengths[members].max(axis=0) for members in sets])
        order = [
            np.argsort(-longest[index::num_shapes, 0], kind="stable") * num_shapes + index
            for index in range(num_shapes)
        ]
        self.strata = [[sets[place] for place in places] for places in order]
        self.shapes = [Static(map(tuple, longest[places].tolist())) for places in order]

    def __len__(self) -> int:
        """Return the number of batches of an epoch, without an incomplete last one."""
        return self.batches

    def epoch(self, rng: np.random.Generator) -> list[ShapedBatch]:
        """Return the batches of an epoch in random order."""
        batches = []
        for places, count, shape in zip(self.strata, self.counts, self.shapes, strict=True):
            columns = np.stack([rng.permutation(members)[:count] for members in places])
            batches += [ShapedBatch(members, shape) for members in columns.T]
        return [batches[number] for number in rng.permutation(len(batches))]


def strata(lengths: Int[np.ndarray, "N R"], sizes: Sequence[int] | NDArray) -> list[Int[np.ndarray, "n"]]:
    """Divide images into sets of nearly the same lengths.

    lengths: the number of words of each row of every image.
    sizes: the number of images of each set.

    A set is halved by the length of a row, or by the sum of the lengths, whichever leaves the least padding; then the
    halves are halved.
    """

    def divided(members: NDArray, sizes: NDArray) -> list[NDArray]:
        if len(sizes) == 1:
            return [members]
        half = len(sizes) // 2
        some, cut, total = lengths[members], sizes[:half].sum(), lengths[members].sum(axis=1)

        def words(order: NDArray) -> float:
            return half * _words(some[order[:cut]]) + (len(sizes) - half) * _words(some[order[cut:]])

        best = min((np.lexsort([total, key]) for key in (*some.T, total)), key=words)
        return divided(members[best[:cut]], sizes[:half]) + divided(members[best[cut:]], sizes[half:])

    return divided(np.arange(len(lengths)), np.asarray(sizes))


def _words(lengths: Int[np.ndarray, "n R"]) -> float:
    """Estimate the number of words to which images of a set are padded."""
    few = max(1, len(lengths) // TAIL)
    return float(np.partition(lengths, len(lengths) - few, axis=0)[len(lengths) - few :].mean(axis=0).sum())


def padding(groups: Sequence[ShapedBatch], lengths: Int[np.ndarray, "N R"]) -> float:
    """Return the share of padding among the words of batches."""
    words = sum(int(lengths[group.members].sum()) for group in groups)
    return 1 - words / sum(sum(map(sum, group.shape)) for group in groups)

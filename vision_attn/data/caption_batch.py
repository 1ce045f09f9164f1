"""`CaptionBatch`, the batch of images with captions or transcripts that all data sets of captions return."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vision_attn.contracts import END, PAD
from vision_attn.task import Static


class CaptionBatch(NamedTuple):
    """Images with R captions each. Images are sorted by their longest caption, longest first, and the captions of an
    image by length. So at each time step the finished captions come last, and a model can skip them. With `lengths`,
    images are sorted by these instead.

    Training batches have few shapes: see `data.grouping`.
    """

    images: Float[Tensor, "B L D"] | UInt8[Tensor, "B 3 S S"] | UInt8[Tensor, "B F 3 S S"]
    """Annotation vectors from a cache or from files, or pixels for an encoder: images, or films of F frames."""
    words: Int[Tensor, "B R T"]
    """Targets: a caption's word ids, END, then PAD."""
    ids: tuple
    references: tuple
    """All captions of each image, as written."""
    files: tuple
    """The file of each image; None for a drawn one."""
    boxes: tuple
    """For each image the boxes of the objects that words name, {word: [(x0, y0, x1, y1)]}; None if unknown. Boxes are
    in coordinates of the whole image, even if a model sees a part of it. A box of a film has the number of its frame,
    from 0, as fifth number."""
    vectors: tuple = ()
    """The file of each image's annotation vectors, which may also hold the boxes of regions; () if there are no such
    files."""
    lengths: Static | None = None
    """For each row of each image, the largest number of words, END included, in all batches of this shape. None: any
    row may have T words."""
    crops: Float[Tensor, "B 4"] | None = None
    """The part (x0, y0, x1, y1) of each image that the model sees: see `data.images.crops`. None: the whole image."""
    sampled: tuple[Tensor, ...] = ()
    """The captions that a criterion sampled for this batch before a captured step: see `Criterion.sample`. Data sets
    leave it empty."""
    sources: tuple[str, ...] = ()
    """The name of each image's data set, if there are several. In an evaluation, all images of a batch come from the
    same one."""


def padded_words(encoded: Sequence[Sequence[int]]) -> Int[Tensor, "B 1 T"]:
    """Return word ids of one transcript per image, END included, padded to the longest."""
    longest = max(map(len, encoded)) + 1
    rows = [[*ids, END, *[PAD] * (longest - 1 - len(ids))] for ids in encoded]
    return torch.tensor(rows)[:, None]

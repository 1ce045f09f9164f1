"""A batch of images with captions or transcripts, whatever they were made from."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vision_attn.contracts import END, PAD
from vision_attn.task import Static


class CaptionBatch(NamedTuple):
    """Images with R captions each. Images are sorted by their longest caption, longest first, and so are the captions
    of an image. At each time step the finished captions therefore come last, and a model can skip them. With `lengths`,
    images are sorted by these.

    Training batches have few shapes: see `data.grouping`.
    """

    images: Float[Tensor, "B L D"] | UInt8[Tensor, "B 3 S S"] | UInt8[Tensor, "B F 3 S S"]
    """Annotation vectors of a cache or of files, or pixels for an encoder: images, or films of F frames."""
    words: Int[Tensor, "B R T"]
    """Targets: a caption's word ids, END, then PAD."""
    ids: tuple
    references: tuple
    """All captions of each image, as written."""
    files: tuple
    """The file of each image; None for a drawn one."""
    boxes: tuple
    """For each image the boxes of the objects that words name, {word: [(x0, y0, x1, y1)]}; None if unknown. Boxes are
    those in the whole image, also where a model sees a part of it. A box of a film has the number of its frame, from 0,
    as a fifth number."""
    vectors: tuple = ()
    """The file of each image's annotation vectors, which may hold the boxes of regions; () where there is none."""
    lengths: Static | None = None
    """The largest number of words of each row of each image, END included, in all batches of this shape. None: any row
    may have T words."""
    crops: Float[Tensor, "B 4"] | None = None
    """The part (x0, y0, x1, y1) of each image of pixels that is seen: see `data.images.crops`. None: all of it."""
    sampled: tuple[Tensor, ...] = ()
    """The samples that a criterion took for this batch before a captured step: see `Criterion.sample`. Data sets leave
    it empty."""
    sources: tuple[str, ...] = ()
    """The name of each image's data set, if there are several: in an evaluation it is that of all images of a batch."""


def padded_words(encoded: Sequence[Sequence[int]]) -> Int[Tensor, "B 1 T"]:
    """Word ids of one transcript per image, END included, padded to the longest."""
    longest = max(map(len, encoded)) + 1
    rows = [[*ids, END, *[PAD] * (longest - 1 - len(ids))] for ids in encoded]
    return torch.tensor(rows)[:, None]

"""Find copies of photographs, even if resized or saved again, by a hash of their content, then by their pixels.

The hash is a 64-bit difference hash (Krawetz 2013): whether each of 8 x 8 cells of the reduced photograph is brighter
than the one to its left. Photographs whose hashes differ in at most `BITS` bits are compared as `SIDE` x `SIDE` pixels.

Measured on the 12,761 photographs of Flickr8k and of everyday things (COCO, PASCAL): 99.3% of copies of half the size,
saved with a quality of 74, differ in at most 4 bits; all of these differ by at most 5.8 of 255 levels, with a
correlation of at least 0.98, and none of 500 by more than 72 levels in a pixel. Of the 80 million pairs of photographs,
two are copies (6.8 levels, 0.998); all others with at most 6 different bits differ by at least 23 levels, with a
correlation below 0.89.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from PIL import Image

from vision_attn.data.images.open import open_photograph
from vision_attn.data.images.squares import in_threads
from vision_attn.data.photographs.annotation_vectors.feature_index import listing
from vision_attn.data.photographs.pixels import View
from vision_attn.data.photographs.sources import LocatedSource
from vision_attn.data.photographs.store import shared
from vision_attn.data.ragged import map_array, write_array
from vision_attn.system.console import printable, progress
from vision_attn.system.errors import UserError

BITS = 4
"""The largest number of bits in which the hashes of copies differ."""
LEVELS, LARGEST, CORRELATION = 12.0, 80.0, 0.93
"""For the pixels of copies: the largest mean difference, the largest difference in one pixel, both out of 255, and the
smallest correlation. Drawings that differ in one shape differ by more than `LARGEST` there."""
SIDE = 16
DECODED = 32
"""JPEGs are decoded at a fraction of their size, with sides of at least this: 0.7 ms a photograph."""
NEIGHBOURS = 1000
"""The largest number of photographs with an equal part of the hash with which a photograph is compared. More
photographs share a part only if they show nothing."""
BANDS = ((0, 13), (13, 13), (26, 13), (39, 13), (52, 12))
"""The parts of a hash, as first bit and number of bits. There is one more part than `BITS`, so two near hashes have at
least one equal part."""
MARK = np.dtype([("known", "u1"), ("hash", "<u8"), ("pixels", "u1", (SIDE, SIDE, 3))])
"""The record of a photograph: its hash and its reduced pixels. `known` is 0 for one that cannot be read."""
PRIORITY = ("test", "val", "train")
"""A photograph that is in several splits is kept in the first of these."""
log = logging.getLogger(__name__)


def marks_of(views: Sequence[View], cache: Path | None) -> NDArray:
    """Return the `MARK` of each photograph. With a `cache`, which all sources share, they are computed only once."""

    def make() -> NDArray:
        bar = progress(views, what="copies", unit="image", total=len(views))
        return np.fromiter(in_threads(mark, bar), MARK, count=len(views))

    if cache is None:
        return make()
    path = cache / f"hashes-{listing(views)[:12]}.npy"

    def load() -> NDArray:
        marks = map_array(path, np.uint8)
        if len(marks) != len(views) * MARK.itemsize:
            raise UserError(f"{path}: these hashes are damaged")
        return marks.view(MARK)

    return shared(path, "hashes of photographs", load, make, lambda marks: write_array(path, marks.view(np.uint8)))


def mark(view: View) -> tuple[int, int, NDArray]:
    """Return the `MARK` of a photograph."""
    try:
        image = open_photograph(view.file, at_least=DECODED)
    except UserError:
        return 0, 0, np.zeros((SIDE, SIDE, 3), np.uint8)
    cells = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BILINEAR))
    (number,) = np.packbits(cells[:, 1:] > cells[:, :-1]).view("<u8").tolist()
    return 1, number, np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX))


def first_copies(marks: NDArray) -> Int[np.ndarray, "N"]:
    """Return for each photograph the position of the first photograph of which it is a copy, or its own position if it
    is no copy of an earlier one."""
    first, readable = np.arange(len(marks)), np.flatnonzero(marks["known"])
    raw = marks[readable].view(f"V{MARK.itemsize}")
    _, earliest, group = np.unique(raw, return_index=True, return_inverse=True)  # there may be thousands of one image
    known = readable[np.sort(earliest)]
    hashes = marks["hash"][known]
    for start, length in BANDS:
        band = hashes >> np.uint64(start) & np.uint64(2**length - 1)
        order = np.lexsort([hashes, band])
        for apart in range(1, min(NEIGHBOURS, len(order))):
            same = np.flatnonzero(band[order[apart:]] == band[order[:-apart]])
            if not len(same):
                break
            member, other = order[same], order[same + apart]
            near = different_bits(hashes[member] ^ hashes[other]) <= BITS
            member, other = known[member[near]], known[other[near]]
            copies = alike(marks["pixels"][member], marks["pixels"][other])
            member, other = np.sort([member[copies], other[copies]], axis=0)
            np.minimum.at(first, other, member)
    first[readable] = first[readable[earliest[group.ravel()]]]
    return first


def different_bits(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of bits that are 1 in each number."""
    return np.unpackbits(numbers[:, None].view(np.uint8), axis=1).sum(axis=1, dtype=np.int64)


def alike(pixels: NDArray[np.uint8], others: NDArray[np.uint8]) -> Bool[np.ndarray, "N"]:
    """Return whether pairs of pixels (N, SIDE, SIDE, 3) show the same photograph."""
    a, b = (images.reshape(len(images), 3 * SIDE**2).astype(np.float32) for images in (pixels, others))
    differences = np.abs(a - b)
    close = (differences.mean(axis=1) <= LEVELS) & (differences.max(axis=1) <= LARGEST)
    a, b = (values - values.mean(axis=1, keepdims=True) for values in (a, b))
    size = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return close & ((a * b).sum(axis=1) >= CORRELATION * size)


def leave_out_copies(sources: Mapping[str, LocatedSource], cache: Path | None) -> None:
    """If a photograph is in several splits, keep it only in the first of `PRIORITY`, across all sources. Logs how many
    photographs are repeated."""
    groups = [(split, source) for split in PRIORITY for source in sources.values()]
    marks = {id(source): marks_of(source.views.plain_and_mirrored()[0], cache) for source in sources.values()}
    joined = np.concatenate([marks[id(source)][source.views.view_indices[split]] for split, source in groups])
    ends = np.cumsum([len(source.splits[split]) for split, source in groups])
    first, numbers = first_copies(joined), np.arange(len(joined))
    group = np.searchsorted(ends, numbers, side="right")
    lower = group[first] // len(sources) < group // len(sources)
    for (split, source), out in zip(groups, np.split(lower, ends[:-1]), strict=True):
        source.kept[split] &= ~out
    twice, counts = int((first < numbers).sum()), np.bincount(group[lower] // len(sources), minlength=len(PRIORITY))
    if not twice:
        return
    said = "photographs that are copies of others in the data, also resized or saved again: %d"
    if not lower.any():
        log.warning(f"{said}; each is in the same split as the other, and is kept", twice)
        return

    def named(number: int) -> str:
        split, source = groups[group[number]]
        before = 0 if not group[number] else ends[group[number] - 1]
        return printable(f"{source.splits[split].file(number - int(before))} ({split})")

    number = int(np.argmax(lower))
    left_out = " and ".join(
        f"{count} of {split}" for split, count in zip(PRIORITY, counts.tolist(), strict=True) if count
    )
    text = f"{said}; left out, because the other is in a split that is measured: %s, such as %s, a copy of %s"
    log.warning(text, twice, left_out, named(number), named(int(first[number])))

"""Compute ragged batches, captions of unequal length, without their padding.

`CaptionBatch` sorts images, and the captions of each image, by decreasing length, so the images and rows that still
have a word at a time step come first. A time step computes only these leading images and rows. Operations that need no
image compute only the captions among them that have a word: the *packed* rows, ordered by image and row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.contracts.nested import Nested, map_tensors
from vision_attn.fast import accumulate
from vision_attn.task import Static


class PackedStep(NamedTuple):
    """The rows that a time step computes: N captions of B leading images and R leading rows."""

    images: int
    rows: int
    position: Int[Tensor, "N"]
    """The index of the word of each packed row in `words.flatten()`."""
    kept: Int[Tensor, "N"] | None
    """The packed rows of the previous time step that continue; None: all of them."""
    places: Int[Tensor, "N"] | None
    """The position of each packed row in a flattened (B, R); None: its own index, since all captions have a word."""
    sources: Int[Tensor, "places"] | None
    """The packed row for each position of a flattened (B, R); any row for a caption without a word."""


class HasRows:
    """A part of a model that may know the lengths of its rows in advance."""

    lengths: Static | None = None
    """Row r of image b of the batch has at most lengths[b][r] words; None: each may have T."""


@contextmanager
def row_lengths(model: nn.Module, lengths: Static | None) -> Iterator[None]:
    """Context manager: tell the model that row r of image b of a batch has at most lengths[b][r] words, so that lengths
    need not be read from a GPU. None: each row may have T words."""
    modules = [] if lengths is None else [module for module in model.modules() if isinstance(module, HasRows)]
    try:
        for module in modules:
            module.lengths = lengths
        yield
    finally:
        for module in modules:
            del module.lengths


def readable(words: Tensor) -> bool:
    """Return whether words can be read without waiting for a device."""
    return words.device.type == "cpu"


def _known_lengths(words: Int[Tensor, "B R T"], lengths: Static | None) -> Static | None:
    """Return the known lengths of the rows of `words`, in which each row may be repeated for several runs."""
    B, R, T = words.shape
    if lengths is None or len(lengths) != B or R % len(lengths[0]) or max(map(max, lengths)) > T:
        return None
    runs = R // len(lengths[0])
    return lengths if runs == 1 else Static(tuple(row for row in rows for _ in range(runs)) for rows in lengths)


def schedule(words: Int[Tensor, "B R T"], lengths: Static | None = None) -> list[PackedStep]:
    """Return the time steps in which any caption has a word.

    For two images with two captions each, of 3 and 1, and of 2 and 1 words, on a CPU:

        t  images x rows  packed rows (image, row)                   kept
        0  2 x 2          (0, 0) (0, 1) (1, 0) (1, 1)                None, all
        1  2 x 1          (0, 0) (1, 0)                              0, 2
        2  1 x 1          (0, 0)                                     0

    `position` of t = 1 is (1, 7): the words of row (0, 0) begin at 0 of `words.flatten()`, those of (1, 0) at 6. Both
    places of its 2 x 1 have a word, so `places` and `sources` are None.

    On a GPU, where a synchronisation costs more than padding, a time step computes all captions that may have a word by
    `lengths`, or all captions.
    """
    if readable(words):
        return _steps(words != 0)
    lengths = _known_lengths(words, lengths)
    return unpacked_schedule(words) if lengths is None else list(known_schedule(lengths, words.shape[2], words.device))


@lru_cache(maxsize=64)  # a graph that is captured cannot copy from the CPU
def known_schedule(lengths: Static, longest: int, device: torch.device) -> tuple[PackedStep, ...]:
    """Return the time steps of captions with known lengths: row r of image b has lengths[b][r] words."""
    word_mask = torch.arange(longest) < torch.tensor(lengths)[..., None]
    return tuple(
        PackedStep._make(field.to(device) if isinstance(field, Tensor) else field for field in step)
        for step in _steps(word_mask)
    )


def _steps(word_mask: Bool[Tensor, "B R T"]) -> list[PackedStep]:
    B, R, _ = word_mask.shape
    index = torch.arange(word_mask.numel()).view(word_mask.shape)
    images = (word_mask.any(1) * torch.arange(1, B + 1)[:, None]).amax(0).tolist()
    rows = (word_mask.any(0) * torch.arange(1, R + 1)[:, None]).amax(0).tolist()
    steps, before = [], torch.ones(B, R, dtype=torch.bool)
    for t, (b, r) in enumerate(zip(images, rows, strict=True)):
        if not b:
            break
        now, leading = word_mask[..., t], word_mask[:b, :r, t].flatten()
        places = leading.nonzero().squeeze(1)
        full = len(places) == b * r
        kept = None if now.equal(before) else now[before].nonzero().squeeze(1)
        sources = None if full else (leading.cumsum(0) - 1).clamp(min=0)
        steps.append(PackedStep(b, r, index[:b, :r, t].flatten()[places], kept, None if full else places, sources))
        before = now
    return steps


def unpacked_schedule(words: Int[Tensor, "B R T"]) -> list[PackedStep]:
    """Return the schedule of all captions in all time steps."""
    B, R, T = words.shape
    index = torch.arange(words.numel(), device=words.device).view(-1, T)
    return [PackedStep(B, R, index[:, t], None, None, None) for t in range(T)]


def places_of_words(words: Int[Tensor, "B R T"], lengths: Static | None = None) -> Int[Tensor, "N"]:
    """Return the positions in `words.flatten()` that hold a word; on a GPU, those that may hold one."""
    return torch.cat([step.position for step in schedule(words, lengths)])


def spread(packed: Tensor, step: PackedStep | None) -> Float[Tensor, "B R *sizes"]:
    """Arrange packed rows by image and row. A caption without a word at this step gets the row of another caption.

    step: None: rows are already in this order.
    """
    if step is None:
        return packed
    rows = packed if step.sources is None else packed.index_select(0, step.sources)
    return rows.unflatten(0, (step.images, step.rows))


def collect(rows: Float[Tensor, "B R *sizes"], step: PackedStep | None) -> Tensor:
    """Undo `spread`."""
    if step is None:
        return rows
    rows = rows.flatten(0, 1)
    return rows if step.places is None else rows.index_select(0, step.places)


def leading(nested: Nested, images: int, rows: int | None = None) -> Nested:
    """Select the leading images, and rows, of nested tensors. A tensor without other images is returned unchanged,
    because the gradient of a slice is as large as the whole tensor."""

    def cut(tensor: Tensor) -> Tensor:
        if len(tensor) == images and (rows is None or tensor.shape[1] == rows):
            return tensor
        return accumulate.leading(tensor, images) if rows is None else tensor[:images, :rows]

    return map_tensors(cut, nested)


def padded(steps: list[Tensor], words: Int[Tensor, "B R T"]) -> Tensor:
    """Stack the outputs of scheduled time steps, (b, r, ...) each, into (B, R, T, ...), with zeros elsewhere."""
    B, R, T = words.shape
    sizes = [(0, 0) * (step.dim() - 2) + (0, R - step.shape[1], 0, B - step.shape[0]) for step in steps]
    steps = [F.pad(step, size) if any(size) else step for step, size in zip(steps, sizes, strict=True)]
    stacked, more = torch.stack(steps, dim=2), T - len(steps)
    return F.pad(stacked, (0, 0) * (stacked.dim() - 3) + (0, more)) if more else stacked


def packed(words: Int[Tensor, "B R T"], lengths: Static | None = None) -> Int[Tensor, "B Q"]:
    """Return the indices of the words of each image in its part of `words.flatten(1)`, one caption after the other.

    Q is the largest number of words of an image; other images are padded. On a GPU, where a synchronisation costs more
    than padding, Q is the largest possible number by `lengths`.
    """
    word_mask = words.flatten(1) != 0
    lengths = None if readable(words) else _known_lengths(words, lengths)
    most = word_mask.shape[1] if lengths is None else max(map(sum, lengths))
    longest = int(word_mask.sum(dim=1).amax()) if readable(words) else most
    return word_mask.byte().argsort(dim=1, descending=True, stable=True)[:, :longest]


def unpacked(vectors: Float[Tensor, "B Q N"], index: Int[Tensor, "B Q"], words: Int[Tensor, "B R T"]) -> Tensor:
    """Undo `packed`: vectors of the words at `index`, as (B, R, T, N), with zeros at padding."""
    index = index[..., None].expand_as(vectors)
    whole = vectors.new_zeros(len(vectors), words[0].numel(), vectors.shape[-1]).scatter(1, index, vectors)
    return whole.unflatten(1, words.shape[1:]) * (words != 0)[..., None]

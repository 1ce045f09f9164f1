"""Batches: moving them to the device, slicing and counting them, and choosing the items to draw."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from vision_attn.attention.images import Images
from vision_attn.data.counted_batches import Counted
from vision_attn.task import Batch, Static, Task

TOGETHER = 8
"""Items of a sample from the same batch, or more if there are no more batches."""
APART = 16
"""Batches that a sample is from, or more."""


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors and `Images` on `device`, also in NamedTuples and tuples of tensors within it;
    other fields are unchanged."""

    def moved(part: Any) -> Any:
        if isinstance(part, Tensor | Images):
            return part.to(device, non_blocking=device.type == "cuda")
        return on_device(part, device) if hasattr(part, "_fields") or is_tensors(part) else part

    return like(batch, [moved(part) for part in batch])


def is_tensors(part: Any) -> bool:
    """Whether a part of a batch is a tuple of tensors itself."""
    return isinstance(part, tuple) and bool(part) and isinstance(part[0], Tensor)


def few(batch: Batch, number: int) -> Batch:
    """Return the first `number` images of a batch whose fields each hold one entry per image, or `Static`, or None."""
    return part_of(batch, slice(number))


def part_of(batch: Batch, some: slice) -> Batch:
    """Return some neighbours of such a batch."""
    return like(batch, [part if part is None or isinstance(part, Static) else part[some] for part in batch])


def examples(task: Task, batches: Iterable[Batch], number: int, device: torch.device) -> Batch:
    """Return the `number` items of a split that pictures show, on `device`: the first ones of the first batch. If the
    task knows which answers are wrong, the second half are the first wrong ones that follow, as far as there are any.
    """
    following = (on_device(batch, device) for batch in batches)
    first = next(following)
    wrong = task.wrong(first)
    if wrong is None:
        return few(first, number)
    room = number // 2
    half = number - room
    chosen = [few(first, half)]
    for batch, start in chain([(first, half)], ((batch, 0) for batch in following)):
        known = task.wrong(batch)
        assert known is not None
        places = [place for place in known.nonzero().flatten().tolist() if place >= start][:room]
        chosen.append(_taken(batch, places))
        room -= len(places)
        if not room:
            break
    others = [place for place in range(half, size(first)) if not wrong[place]][:room]
    return _joined([chosen[0], _taken(first, others), *chosen[1:]])


def sampled(
    split: Callable[..., Iterable[Batch]], number: int, seed: int, *, rank: int = 0, world: int = 1
) -> Counted[Batch]:
    """`number` items of a split, or all if it has fewer: neighbours from each of several batches, which the seed
    chooses, as well as where these neighbours begin. No other batch is read.

    split: from `rank` and `world` to the batches of a process, as `Source.split` with a name. Process `rank` of `world`
    gets its part.
    """
    whole = split()
    batches = len(whole) if isinstance(whole, Sized) else sum(1 for _ in whole)
    wanted = min(batches, max(-(-number // TOGETHER), min(number, APART)))
    random = torch.Generator().manual_seed(seed)
    chosen = sorted(
        torch.randperm(batches, generator=random)[:wanted].tolist(), key=lambda one: (one < batches - 1, one)
    )
    starts = torch.rand(batches, generator=random).tolist()
    mine = chosen[rank::world]
    left = sum(number * (place + 1) // wanted - number * place // wanted for place in range(rank, wanted, world))

    def parts() -> Iterator[Batch]:
        remaining = left
        for place, one in enumerate(mine):
            for batch in split(rank=one, world=batches):
                most = min(size(batch), -(-remaining // (len(mine) - place)))
                first = int(starts[one] * (size(batch) - most + 1))
                remaining -= most
                yield part_of(batch, slice(first, first + most))

    return Counted(parts(), len(mine))


def items_of(split: Callable[..., Iterable[Batch]]) -> int:
    """The number of items of a split, by its first and its last batch, if all but the last have the same size. `split`:
    see `sampled`."""
    whole = split()
    batches = len(whole) if isinstance(whole, Sized) else sum(1 for _ in whole)
    if not batches:
        return 0
    first, last = (sum(map(size, split(rank=one, world=batches))) for one in (0, batches - 1))
    return first * (batches - 1) + last


def _taken(batch: Batch, places: Sequence[int]) -> Batch:
    """The items at these places of a batch whose fields are tensors, tuples or None."""
    parts = [tuple(part[place] for place in places) if isinstance(part, tuple) else part for part in batch]
    return like(batch, [part[list(places)] if isinstance(part, Tensor) else part for part in parts])


def _joined(batches: Sequence[Batch]) -> Batch:
    """Batches as one."""
    parts = []
    for several in zip(*batches, strict=True):
        whole = torch.cat(several) if isinstance(several[0], Tensor) else several[0]
        parts.append(tuple(chain(*several)) if isinstance(whole, tuple) else whole)
    return like(batches[0], parts)


def like(batch: Batch, parts: list) -> Batch:
    """Return a batch of the type of `batch` with other parts."""
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def shapes(batch: Batch) -> tuple:
    """Return the shape of each tensor of a batch, also within tuples of tensors."""
    tensors = (part for part in batch if isinstance(part, Tensor) or is_tensors(part))
    return tuple(tuple(part.shape) if isinstance(part, Tensor) else shapes(part) for part in tensors)


def size(batch: Batch) -> int:
    """Return the number of images in a batch: the length of its first tensor."""
    return next((len(part) for part in batch if isinstance(part, Tensor)), 0)

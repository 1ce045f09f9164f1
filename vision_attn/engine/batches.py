"""Functions of batches: move them to a device, slice and count them, and choose items for pictures."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from vision_attn.attention.images import Images
from vision_attn.data.counted_batches import Counted
from vision_attn.task import Batch, Static, Task

TOGETHER = 8
"""The number of items that a sample takes from one batch; more if there are too few batches."""
APART = 16
"""The smallest number of batches from which a sample takes items, if there are as many."""


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors and `Images` on `device`, also in NamedTuples and tuples of tensors within it;
    other fields are unchanged."""

    def moved(field: Any) -> Any:
        if isinstance(field, Tensor | Images):
            return field.to(device, non_blocking=device.type == "cuda")
        return on_device(field, device) if hasattr(field, "_fields") or is_tensors(field) else field

    return like(batch, [moved(part) for part in batch])


def is_tensors(field: Any) -> bool:
    """Return whether a field of a batch is a tuple of tensors itself."""
    return isinstance(field, tuple) and bool(field) and isinstance(field[0], Tensor)


def few(batch: Batch, number: int) -> Batch:
    """Return the first `number` images of a batch whose fields each hold one entry per image, or `Static`, or None."""
    return part_of(batch, slice(number))


def part_of(batch: Batch, some: slice) -> Batch:
    """Return a slice of the images of such a batch."""
    return like(batch, [field if field is None or isinstance(field, Static) else field[some] for field in batch])


def examples(task: Task, batches: Iterable[Batch], number: int, device: torch.device) -> Batch:
    """Return `number` items of a split for pictures, on `device`: the first items of the first batch. If the task knows
    which answers are wrong, the second half is replaced by the first wrong items that follow, if there are any.
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
        chosen.append(_select(batch, places))
        room -= len(places)
        if not room:
            break
    others = [place for place in range(half, size(first)) if not wrong[place]][:room]
    return _joined([chosen[0], _select(first, others), *chosen[1:]])


def sampled(
    split: Callable[..., Iterable[Batch]], number: int, seed: int, *, rank: int = 0, world: int = 1
) -> Counted[Batch]:
    """Return a sample of `number` items of a split, or all if it has fewer: neighbouring items of several batches. The
    seed chooses these batches and items. No other batch is read. Process `rank` of `world` gets its part.

    split: returns the batches of a process for `rank` and `world`, as `Source.split` with a name does.
    """
    whole = split()
    batches = len(whole) if isinstance(whole, Sized) else sum(1 for _ in whole)
    wanted = min(batches, max(-(-number // TOGETHER), min(number, APART)))
    random = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(batches, generator=random)[:wanted].tolist()
    chosen.sort(key=lambda index: (index < batches - 1, index))
    starts = torch.rand(batches, generator=random).tolist()
    mine = chosen[rank::world]
    left = sum(number * (place + 1) // wanted - number * place // wanted for place in range(rank, wanted, world))

    def parts() -> Iterator[Batch]:
        remaining = left
        for place, index in enumerate(mine):
            for batch in split(rank=index, world=batches):
                most = min(size(batch), -(-remaining // (len(mine) - place)))
                first = int(starts[index] * (size(batch) - most + 1))
                remaining -= most
                yield part_of(batch, slice(first, first + most))

    return Counted(parts(), len(mine))


def items_of(split: Callable[..., Iterable[Batch]]) -> int:
    """Return the number of items of a split, computed from its first and its last batch. All batches but the last must
    have the same size.

    split: see `sampled`.
    """
    whole = split()
    batches = len(whole) if isinstance(whole, Sized) else sum(1 for _ in whole)
    if not batches:
        return 0
    first, last = (sum(map(size, split(rank=rank, world=batches))) for rank in (0, batches - 1))
    return first * (batches - 1) + last


def _select(batch: Batch, places: Sequence[int]) -> Batch:
    """Return the items at these places of a batch whose fields are tensors, tuples or None."""
    fields = [tuple(field[place] for place in places) if isinstance(field, tuple) else field for field in batch]
    return like(batch, [field[list(places)] if isinstance(field, Tensor) else field for field in fields])


def _joined(batches: Sequence[Batch]) -> Batch:
    """Join batches to one."""
    fields = []
    for several in zip(*batches, strict=True):
        whole = torch.cat(several) if isinstance(several[0], Tensor) else several[0]
        fields.append(tuple(chain(*several)) if isinstance(whole, tuple) else whole)
    return like(batches[0], fields)


def like(batch: Batch, parts: list) -> Batch:
    """Return a batch of the type of `batch` with other fields."""
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def shapes(batch: Batch) -> tuple:
    """Return the shape of each tensor of a batch, also within tuples of tensors."""
    tensors = (field for field in batch if isinstance(field, Tensor) or is_tensors(field))
    return tuple(tuple(field.shape) if isinstance(field, Tensor) else shapes(field) for field in tensors)


def size(batch: Batch) -> int:
    """Return the number of images in a batch: the length of its first tensor."""
    return next((len(field) for field in batch if isinstance(field, Tensor)), 0)

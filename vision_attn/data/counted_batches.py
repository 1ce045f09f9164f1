"""`Counted`, an iterator with a known length, so that a progress bar can estimate the time left; and batches by
`slices`."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Counted(Iterator[T], Generic[T]):
    """An iterator over a known number of items, with this number as its length."""

    def __init__(self, items: Iterable[T], number: int) -> None:
        self.items, self.number = iter(items), number

    def __len__(self) -> int:
        return self.number

    def __next__(self) -> T:
        return next(self.items)


def slices(batch: Callable[[slice], T], count: int, size: int, *, rank: int, world: int) -> Counted[T]:
    """Divide `count` items into slices of `size`. Return an iterator of batch(slice) over every `world`-th slice, from
    slice `rank` on."""
    starts = range(rank * size, count, world * size)
    return Counted((batch(slice(first, first + size)) for first in starts), len(starts))

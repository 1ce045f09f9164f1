"""Find out by a trial whether work on a CPU is faster with one thread of torch or with all.

Torch's threads wait for each other by spinning. On idle cores, all threads are faster than one. If other programs use
the cores, most of the time is spent waiting for a thread that is not running, and one thread is many times faster. No
setting is right for both, so the first pieces of work alternate between one thread and all.

The number of threads belongs to the whole process (`torch.set_num_threads`). So training and the commands, which own
their process, make a trial; a call of the library in somebody's program leaves torch's number as it is.
"""

import os
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

import torch

from vision_attn.system.console import plural
from vision_attn.system.machine import cores

VARIABLES = "OMP_NUM_THREADS", "MKL_NUM_THREADS"
"""Environment variables by which a user, or torchrun, has chosen the number of threads."""
MOST = 20
"""The largest number of pieces of work in a trial."""
ENOUGH = 3
"""The number of times measured for each number of threads that decide if they do not overlap."""
LONG, CLEAR = 0.5, 3.0
"""A pair of pieces decides if one took more than LONG seconds, and CLEAR times as long as the other."""
GAIN = 1.05
"""All threads must be at least this many times as fast, because one thread suffers less if the machine gets busy
later."""


class Piece(NamedTuple):
    """A piece of work that was timed."""

    threads: int
    seconds: float
    kind: Hashable


class ThreadTrial:
    """Times pieces of work with one thread and with all, alternately, and then keeps the faster number.

    Within `with trial:` torch has `trial.threads` threads. Each such block is a piece of work; of nested blocks, only
    the innermost counts. The order is 1 N N 1 1 N N 1 ..., so that a change in the load of the machine affects both
    alike. The first two pieces, which compile and start threads, only warm up. Pieces are compared with others of the
    same `kind`, such as the shapes of a batch, by their medians.
    """

    def __init__(self, numbers: Sequence[int], *, clock: Callable[[], float] = time.perf_counter) -> None:
        """
        numbers: the two numbers of threads to choose from; or a single one, which is chosen at once.
        """
        self.one, self.all = min(numbers), max(numbers)
        self.chosen = self.one if self.one == self.all else None
        self.pieces: list[Piece] = []
        self.kind: Hashable = None
        """The kind of the piece of work in progress, to be set within its block. Pieces of one kind are compared."""
        self._clock, self._began = clock, 0.0
        self._before: list[int] = []
        self._inner = False

    @property
    def threads(self) -> int:
        """The number of threads of the next piece of work."""
        if self.chosen is not None:
            return self.chosen
        pair, second = divmod(len(self.pieces), 2)
        return (self.one, self.all)[second ^ (pair % 2)]

    def __enter__(self) -> "ThreadTrial":
        self._before.append(torch.get_num_threads())
        torch.set_num_threads(self.threads)
        self.kind, self._inner, self._began = None, False, self._clock()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        seconds = self._clock() - self._began
        torch.set_num_threads(self._before.pop())
        if error is None and not self._inner:
            self.add(seconds, self.kind)
        self._inner = True

    def add(self, seconds: float, kind: Hashable = None) -> None:
        """Note that the next piece of work took `seconds`, and choose as soon as the times decide."""
        if self.chosen is None:
            self.pieces.append(Piece(self.threads, seconds, kind))
            if len(self.pieces) % 2 == 0:
                self.chosen = self._choice()

    def _choice(self) -> int | None:
        if (clear := self._clear()) is not None:
            return clear
        single, every = self._relative()
        ended = len(self.pieces) >= MOST
        if ended and not single:  # no two pieces of the same kind
            single, every = self._relative(alike=True)
        apart = min(len(single), len(every)) >= ENOUGH and (max(single) < min(every) or max(every) < min(single))
        if not ended and not apart:
            return None
        return self.all if median(every) * GAIN < median(single) else self.one

    def _clear(self) -> int | None:
        """Return the number of threads that the latest pair of pieces decides for by itself, or None. The first piece
        of all, in one thread, may have compiled."""
        pair = self.pieces[-2:]
        faster, slower = sorted(pair, key=lambda piece: piece.seconds)
        told = slower.seconds > max(LONG, CLEAR * faster.seconds) and pair[0].kind == pair[1].kind
        return faster.threads if told and (len(self.pieces) > 2 or faster.threads == self.one) else None

    def _relative(self, *, alike: bool = False) -> tuple[list[float], list[float]]:
        """Return the times in one thread and in all, relative to the medians of their kind, for kinds with both.

        alike: whether all pieces count as of one kind.
        """
        kinds: dict[Hashable, tuple[list[float], list[float]]] = {}
        for piece in self.pieces[2:]:
            kinds.setdefault(None if alike else piece.kind, ([], []))[piece.threads == self.all].append(piece.seconds)
        relative: tuple[list[float], list[float]] = [], []
        for both in kinds.values():
            if all(both):
                scale = sum(map(median, both)) or 1.0
                for times, scaled in zip(both, relative, strict=True):
                    scaled += [seconds / scale for seconds in times]
        return relative

    @property
    def excess(self) -> float:
        """How many seconds longer the latest piece took than is usual for the faster number of threads."""
        usual = [seconds for seconds in (self._usual(self.one), self._usual(self.all)) if seconds is not None]
        return max(0.0, self.pieces[-1].seconds - min(usual)) if usual else 0.0

    def _usual(self, threads: int) -> float | None:
        times = [piece.seconds for piece in self.pieces if piece.threads == threads]
        return median(times[1:] or times) if times else None

    def described(self, piece: str) -> str:
        """Say which number was chosen and why: "2 threads: a step took 0.1 s, and 0.13 s in 1 thread"."""
        assert self.chosen is not None
        other = self.one + self.all - self.chosen
        times = f"a {piece} took {self._usual(self.chosen):.2g} s, and {self._usual(other):.2g} s in {named(other)}"
        return f"{named(self.chosen)}: {times}"


def named(threads: int) -> str:
    """Return a number of threads in words: "1 thread", "2 threads"."""
    return plural(threads, "thread")


def numbers_to_try(device: torch.device) -> tuple[int, ...]:
    """Return the numbers of threads to try: one, and torch's number, at most the cores of this process. Only torch's
    number if there is nothing to try: on other devices than a CPU, and if the environment sets it (`VARIABLES`)."""
    own = torch.get_num_threads()
    if device.type != "cpu" or any(map(os.environ.get, VARIABLES)):
        return (own,)
    return tuple(sorted({1, min(own, cores())}))


@contextmanager
def threads_kept() -> Iterator[None]:
    """Context manager: restore the number of torch's threads afterwards."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)

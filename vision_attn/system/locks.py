"""Locks for work that threads must not do at the same time: computing with one model, drawing random numbers, and
loading models.

A thread that holds several locks takes them in this order: the `Turn` of a model, `LOADING`, `DRAWING`.
"""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vision_attn.system.thread_trial import ThreadTrial, numbers_to_try


class Turn:
    """A reentrant lock: the thread that holds it may take it again. A copy of it, also in another process, is a new
    lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._trial: ThreadTrial | None = None

    def __enter__(self) -> "Turn":
        self._lock.acquire()
        if self._trial is not None:
            self._trial.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._trial is not None:
            self._trial.__exit__(*error)
        self._lock.release()

    def compare(self, kind: Hashable) -> None:
        """Say which kind of work this turn is: a trial of threads compares its time with others of the same kind."""
        if self._trial is not None:
            self._trial.kind = kind

    def try_threads(self, device: torch.device) -> None:
        """From now on, compute turns in the number of torch's threads that was faster in the first turns. Between
        turns, the process keeps its own number."""
        with self._lock:  # not within a turn
            numbers = numbers_to_try(device)
            self._trial = None if numbers == (torch.get_num_threads(),) else ThreadTrial(numbers)

    @property
    def threads(self) -> int:
        """The number of torch's threads in the next turn."""
        return torch.get_num_threads() if self._trial is None else self._trial.threads

    def __reduce__(self) -> tuple[type["Turn"], tuple[()]]:
        return Turn, ()


LOADING = Turn()
"""Held while a model is loaded, because libraries change settings of the whole process for that time."""
DRAWING = Turn()
"""Held while a model samples, or a seed is set, because torch has one default generator for all threads."""


@contextmanager
def forked(seed: int | None = None, device: torch.device | None = None) -> Iterator[None]:
    """Context manager: reserve torch's default generators for this thread, and restore their state afterwards. Threads
    that draw without holding `DRAWING` are not kept out.

    seed: the seed of the generators; None: keep their state.
    device: the device whose generator is restored, in addition to the CPU's.
    """
    devices = [] if device is None or device.type == "cpu" else [device]
    with DRAWING, torch.random.fork_rng(devices, device_type=device.type if devices and device else "cuda"):
        if seed is not None:
            torch.manual_seed(seed)
        yield


class RandomStream:
    """The random numbers of one seed, continued over several contexts."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed, self._device, self._state = seed, device, list[Any]()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Context manager: let torch's default generators continue where the previous context ended; see `forked`."""
        library = None if self._device.type == "cpu" else torch.get_device_module(self._device)
        with forked(self._seed, self._device):
            if self._state:
                torch.set_rng_state(self._state[0])
                if library is not None:
                    library.set_rng_state(self._state[1], self._device)
            yield
            self._state = [torch.get_rng_state()]
            if library is not None:
                self._state.append(library.get_rng_state(self._device))

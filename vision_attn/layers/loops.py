"""Fused loops on a CPU, compiled by numba: one pass over memory where tensor operations need many.

Imported where such loops are used, not before: importing numba takes a second. Where it is not installed, tensor
operations do the same.
"""

import ctypes
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

FLAGS = {"reassoc", "contract", "arcp", "nsz"}
"""What the compiler may change: the order of sums, fused multiply-adds, approximate reciprocals. NaN stays NaN."""
OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": FLAGS}

LOG2_E = np.float32(1 / np.log(2))
ONE, HALF = np.float32(1), np.float32(0.5)
SMALLEST, LARGEST = np.float32(-126), np.float32(126)
"""Powers of 2 that are normal numbers in float32."""
C1, C2, C3 = np.float32(0.6931472), np.float32(0.24022648), np.float32(0.055503325)
C4, C5, C6 = np.float32(0.0096184374), np.float32(0.0013398875), np.float32(0.0001535336)
"""The polynomial of lowest largest error that is 1 + f C1 + f^2 C2 + .. = 2^f for |f| <= 1/2; see `exp2`."""

IN_ONE_THREAD = 2**21
"""Numbers to compute below which starting threads would take longer than the work."""


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compile `function` at its first call and keep the result for other processes, where there is a folder for it."""
    function = inspect.unwrap(function)  # of a check of shapes, which tests put around every function
    try:
        return njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # no folder can be written
        return njit(**OPTIONS)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that compiled loops call; it becomes a part of each. Caches of those loops do not notice a change."""
    return njit(inline="always", **OPTIONS)(inspect.unwrap(function))


@inlined
def exp2(x):
    """2^x of a float32 to a relative error of 2e-7, for x clipped to [-126, 126]; NaN for NaN. Loops with it use vector
    instructions, which they would not with a call of a library's function."""
    x = LARGEST if x > LARGEST else SMALLEST if x < SMALLEST else x
    whole = np.floor(x + HALF)
    f = x - whole
    power = ((((((C6 * f + C5) * f + C4) * f + C3) * f + C2) * f) + C1) * f + ONE
    return power * np.int32((np.int32(whole) + 127) << 23).view(np.float32)  # 2^whole, by its exponent


def in_threads(work: Callable[..., None], numbers: int, *tensors: Tensor) -> None:
    """Call work(first, last, *arrays) on parts of the first dimension, in as many threads as torch uses.

    `work` treats each index of the first dimension by itself, so results do not depend on the number of threads.
    `numbers`: how many numbers are computed in all.
    """
    arrays, length = [array(tensor) for tensor in tensors], len(tensors[0])
    threads = torch.get_num_threads()
    number = min(threads, length)
    if number < 2 or numbers < IN_ONE_THREAD or os.getpid() != PROCESS:
        return work(0, length, *arrays)
    edges = [length * part // number for part in range(number + 1)]
    parts = zip(edges[:-1], edges[1:], strict=True)
    if team is not None:
        return team.each(lambda part: work(*part, *arrays), parts, threads)
    done = [_pool(threads).submit(work, *part, *arrays) for part in parts]
    for part in done:
        part.result()


class Team:
    """The threads in which torch computes on a CPU, where they are those of GNU's OpenMP.

    After each operation they wait for the next one for some milliseconds without giving up their cores. Threads of our
    own would share the cores with them, and two of these would be no faster than one.
    """

    def __init__(self) -> None:
        """Raises OSError or AttributeError if torch has not loaded GNU's OpenMP."""
        with open("/proc/self/maps") as maps:  # torch's copy may have a name of its own
            loaded = [line.rstrip("\n").split(maxsplit=5)[5] for line in maps if "/libgomp" in line]
        folder = os.path.dirname(os.path.realpath(torch.__file__))
        own = [path for path in loaded if path.startswith(folder)]
        library = ctypes.CDLL([*own, *loaded, "libgomp.so.1"][0], mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        self._member = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self._parallel = library.GOMP_parallel
        self._parallel.argtypes = [self._member, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._parallel.restype = None

    def each(self, do: Callable[[Any], None], parts: Iterable[Any], threads: int) -> None:
        """Call `do` with each part, in this number of threads: with another number than torch's, they would be ended
        and started again each time."""
        left, failed, ended = list(parts), [], []

        def member(_: int | None) -> None:
            try:
                while True:
                    try:
                        part = left.pop()
                    except IndexError:
                        break
                    do(part)
                ended.append(threading.get_ident())
            except BaseException as error:  # which would be lost here, in C
                failed.append(error)

        self._parallel(self._member(member), None, threads, 0)
        if failed:
            raise failed[0]
        if threading.get_ident() not in ended:  # a signal came before the first line of `member`
            raise KeyboardInterrupt


PROCESS = os.getpid()
"""A forked process inherits the threads of neither kind."""
team: Team | None = None
if sys.platform == "linux":
    with suppress(OSError, AttributeError, UnicodeError):
        team = Team()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="loops")


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()

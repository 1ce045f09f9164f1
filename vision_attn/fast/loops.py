"""Compile and run fused loops on a CPU by numba: one pass over memory where tensor operations need many.

Import this module only where loops are used, since importing numba takes a second. Without numba, tensor operations
compute the same.
"""

import inspect
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from operator import methodcaller
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from vision_attn.fast.threads import Team

FLAGS = {"reassoc", "contract", "arcp", "nsz"}
"""What the compiler may change: the order of sums, fused multiply-adds, approximate reciprocals. NaN stays NaN."""
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": FLAGS}

LOG2_E = np.float32(1 / np.log(2))
ONE, HALF = np.float32(1), np.float32(0.5)
SMALLEST, LARGEST = np.float32(-126), np.float32(126)
"""The smallest and largest exponent of a power of 2 that is a normal number in float32."""
C1, C2, C3 = np.float32(0.6931472), np.float32(0.24022648), np.float32(0.055503325)
C4, C5, C6 = np.float32(0.0096184374), np.float32(0.0013398875), np.float32(0.0001535336)
"""The minimax polynomial 1 + f C1 + f^2 C2 + .. = 2^f for |f| <= 1/2; see `exp2`."""

IN_ONE_THREAD = 2**18
"""With fewer results, starting threads would take longer than the work."""


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compile `function` at its first call, and cache the result for other processes if there is a folder for it."""
    function = inspect.unwrap(function)  # of a check of shapes, which tests put around every function
    try:
        return njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # no folder can be written
        return njit(**OPTIONS)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is inlined into the compiled loops that call it. Caches of these loops do not notice its
    changes."""
    return njit(inline="always", **OPTIONS)(inspect.unwrap(function))


@inlined
def exp2(x):
    """Return 2^x of a float32 to a relative error of 2e-7, for x clipped to [-126, 126]; NaN for NaN. Unlike a call of
    a library function, it lets loops use vector instructions."""
    x = LARGEST if x > LARGEST else SMALLEST if x < SMALLEST else x
    whole = np.floor(x + HALF)
    f = x - whole
    power = ((((((C6 * f + C5) * f + C4) * f + C3) * f + C2) * f) + C1) * f + ONE
    return power * np.int32((np.int32(whole) + 127) << 23).view(np.float32)  # 2^whole, by its exponent


def in_threads(work: Callable[..., None], numbers: int, *tensors: Tensor) -> None:
    """Call work(first, last, *arrays) on parts of the first dimension, in as many threads as torch uses.

    `work` treats each index of the first dimension separately, so results do not depend on the number of threads.

    numbers: the total number of computed numbers.
    """
    threads, length = torch.get_num_threads(), len(tensors[0])
    number = min(threads, length)
    alone = number < 2 or numbers < IN_ONE_THREAD or os.getpid() != PROCESS
    if team is not None and not alone:
        return team.call(work, number, tensors, threads)
    arrays = [*map(AS_ARRAY, tensors)]
    if alone:
        return work(0, length, *arrays)
    edges = [length * index // number for index in range(number + 1)]
    ranges = zip(edges[:-1], edges[1:], strict=True)
    done = [_pool(threads).submit(work, *bounds, *arrays) for bounds in ranges]
    wait(done)  # also after an error, or others would go on writing
    for future in done:
        future.result()


AS_ARRAY = methodcaller("numpy", force=True)
PROCESS = os.getpid()
"""The process that owns the threads, since a forked process inherits none."""


@compiled
def _count(first, last, counts):
    for index in range(first, last):
        counts[index] += 1


def _torch_threads() -> Team | None:
    """Return torch's threads; None if they are not those of GNU's OpenMP, or if they cannot call functions compiled by
    numba."""
    try:
        made, counts = Team(), torch.zeros(2, dtype=torch.int64)
        made.call(_count, 2, [counts], 1)
    except Exception:  # other versions of numba and of llvmlite may be made otherwise
        return None
    return made if counts.tolist() == [1, 1] else None


team = _torch_threads() if sys.platform == "linux" else None


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="loops")

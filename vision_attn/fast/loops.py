"""Compile and run fused loops on a CPU, by numba: one pass over memory where tensor operations need many.

Imported where such loops are used, not before: importing numba takes a second. Where it is not installed, tensor
operations do the same.
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
"""The freedoms of the compiler: the order of sums, fused multiply-adds, approximate reciprocals. NaN stays NaN."""
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": FLAGS}

LOG2_E = np.float32(1 / np.log(2))
ONE, HALF = np.float32(1), np.float32(0.5)
SMALLEST, LARGEST = np.float32(-126), np.float32(126)
"""Powers of 2 that are normal numbers in float32."""
C1, C2, C3 = np.float32(0.6931472), np.float32(0.24022648), np.float32(0.055503325)
C4, C5, C6 = np.float32(0.0096184374), np.float32(0.0013398875), np.float32(0.0001535336)
"""The polynomial of lowest largest error that is 1 + f C1 + f^2 C2 + .. = 2^f for |f| <= 1/2; see `exp2`."""

IN_ONE_THREAD = 2**18
"""The number of results below which starting threads would take longer than the work."""


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
    numbers: how many numbers are computed in all.
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
"""Return the pool of threads of this process: a forked process inherits no threads."""


@compiled
def _count(first, last, counts):
    for index in range(first, last):
        counts[index] += 1


def _torch_threads() -> Team | None:
    """Return torch's threads; None where they are not GNU's, or where functions compiled by numba cannot be called in
    them."""
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

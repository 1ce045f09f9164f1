"""Fused loops on a CPU, compiled by numba: one pass over memory where tensor operations need many.

Imported where such loops are used, not before: importing numba takes a second. Where it is not installed, tensor
operations do the same.
"""

import inspect
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

FLAGS = {"reassoc", "contract", "arcp", "nsz"}
"""What the compiler may change: the order of sums, fused multiply-adds, approximate reciprocals. NaN stays NaN."""
OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": FLAGS}

IN_ONE_THREAD = 2**18
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


def in_threads(work: Callable[..., None], numbers: int, *tensors: Tensor) -> None:
    """Call work(first, last, *arrays) on parts of the first dimension, in as many threads as torch uses.

    `work` treats each index of the first dimension by itself, so results do not depend on the number of threads.
    `numbers`: how many numbers are computed in all.
    """
    arrays, length = [array(tensor) for tensor in tensors], len(tensors[0])
    threads = min(torch.get_num_threads(), length)
    if threads < 2 or numbers < IN_ONE_THREAD:
        return work(0, length, *arrays)
    edges = [length * part // threads for part in range(threads + 1)]
    parts = zip(edges[:-1], edges[1:], strict=True)
    done = [_pool(os.getpid(), threads).submit(work, *part, *arrays) for part in parts]
    for part in done:
        part.result()


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """The threads of this process: a forked process inherits the pool, but not its threads."""
    return ThreadPoolExecutor(threads, thread_name_prefix="loops")

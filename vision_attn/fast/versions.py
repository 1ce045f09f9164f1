"""Choose the version of an operation: `cpu.py` of its folder (loops of numba), `gpu.py` (kernels of Triton), or plain
tensor operations.

Only `fast_version` decides. The modules that it returns for a CPU and for a GPU have the same functions, if both exist.
If it returns None, the caller computes the same by its plain expression.
"""

import warnings
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vision_attn.system.context_variables import within

TRITON = find_spec("triton") is not None
"""Whether triton is installed, as with torch's CUDA builds. It is not imported, which takes a second."""

FLOAT32, NO_HALF = (torch.float32,), (torch.float32, torch.float64)
NO_FLOAT16, NO_FLOAT64 = (torch.float32, torch.bfloat16), (torch.float32, torch.bfloat16, torch.float16)
ALL = (*NO_FLOAT64, torch.float64)


class Version(NamedTuple):
    """The tensors that a version supports."""

    dtypes: tuple[torch.dtype, ...]
    compiled: bool = False
    """Whether the version is also used under torch.compile. Otherwise the compiler fuses the plain expression."""


ON_CPU = {
    "additive": Version(FLOAT32),
    "best_words": Version(NO_FLOAT16),
    "exponential": Version(NO_FLOAT64),
    "filterbank": Version(FLOAT32),
    "glimpse": Version(ALL),
    "holes": Version((torch.float64,)),
    "likelihood": Version(NO_FLOAT16),
    "lstm": Version(NO_FLOAT64),
    "weighted_sum": Version(FLOAT32),
}
ON_GPU = {
    "additive": Version(NO_HALF, compiled=True),
    "attend": Version(NO_FLOAT64, compiled=True),
    "beam": Version(FLOAT32, compiled=True),
    "best_words": Version(NO_FLOAT64, compiled=True),
    "exponential": Version(NO_FLOAT64, compiled=True),
    "filterbank": Version(FLOAT32),
    "lstm": Version(NO_FLOAT64, compiled=True),
    "norm": Version(FLOAT32),
    "pointwise": Version(NO_FLOAT64),
    "window": Version(FLOAT32),
    "words": Version(NO_HALF),
}

_left_out: ContextVar[Literal["none", "loops", "all"]] = ContextVar("left_out", default="none")


def fast_version(operation: str, *tensors: Tensor) -> ModuleType | None:
    """Return the module with the fast version of an operation for these tensors. None if there is none, if the compiler
    fuses the plain expression, if numba or Triton is missing, and within `without_loops` or `plainly`.

    Importing numba takes a second, and Triton more, so call this only where a version is used.
    """
    compiling, gpu = torch.compiler.is_compiling(), on_gpu(tensors[0])
    version = ON_GPU.get(operation) if gpu else ON_CPU.get(operation) if tensors[0].device.type == "cpu" else None
    if version is None or (compiling and not version.compiled):
        return None
    for tensor in tensors:
        if tensor.dtype not in version.dtypes:
            return None
    left_out = "none" if compiling else _left_out.get()  # torch 2.11 compiles no context variable
    if left_out == "all" or (left_out == "loops" and not gpu):
        return None
    return _kernels(operation) if gpu else _loops(operation)


def on_gpu(tensor: Tensor) -> bool:
    """Return whether kernels run on the device of `tensor`. Under torch.compile this is not tried, since a compiler has
    the same requirements."""
    return tensor.is_cuda and TRITON and (torch.compiler.is_compiling() or runs_on(tensor.device))


@cache
def runs_on(device: torch.device) -> bool:
    """Return whether Triton's kernels run on `device`. Logs a warning if they do not.

    Triton builds the code that launches a kernel when the kernel first runs. That takes a C compiler and the headers
    of Python, which not every machine has.
    """
    try:
        cell = import_module("vision_attn.fast.lstm.gpu")
        cell.update(torch.ones(1, 4, device=device), None, None, torch.ones(1, 1, device=device))
    except Exception as error:  # what Triton raises depends on what is missing, and on its version
        reason = (str(error) or type(error).__name__).splitlines()[0]
        warnings.warn(f"the step runs without its Triton kernels, so more slowly: {reason}", stacklevel=2)
        return False
    return True


def is_cuda(tensor: Tensor) -> bool:
    """Return whether a tensor is on a GPU, for choices between tensor operations. Tests replace this function."""
    return tensor.is_cuda


def without_loops(wanted: bool = True) -> AbstractContextManager[None]:
    """Context manager: if `wanted`, use only tensor operations on a CPU, for so little work that importing numba would
    take longer."""
    return within(_left_out, "loops") if wanted else nullcontext()


def plainly(wanted: bool = True) -> AbstractContextManager[None]:
    """Context manager: if `wanted`, use only tensor operations."""
    return within(_left_out, "all") if wanted else nullcontext()


@cache
def _loops(operation: str) -> ModuleType | None:
    folder = {"exponential": "additive", "weighted_sum": "attend"}.get(operation, operation)
    try:
        return import_module(f"vision_attn.fast.{folder}.cpu")
    except ImportError:
        return None


def _kernels(operation: str) -> ModuleType:
    """Import the kernels by statements: torch.compile follows no other way."""
    match operation:
        case "additive":
            from vision_attn.fast.additive import gpu as additive

            return additive
        case "attend":
            from vision_attn.fast.attend import gpu as attend

            return attend
        case "beam":
            from vision_attn.fast.best_words import beam_gpu as beam

            return beam
        case "best_words":
            from vision_attn.fast.best_words import gpu as best_words

            return best_words
        case "exponential":
            from vision_attn.fast.additive import exponential_gpu as exponential

            return exponential
        case "lstm":
            from vision_attn.fast.lstm import gpu as lstm

            return lstm
        case "norm":
            from vision_attn.fast.norm import gpu as norm

            return norm
        case "pointwise":
            from vision_attn.fast.models import recurrent_gpu as pointwise

            return pointwise
        case "words":
            from vision_attn.fast.best_words import words_gpu as words

            return words
        case "filterbank":
            from vision_attn.fast.filterbank import gpu as filterbank

            return filterbank
        case "window":
            from vision_attn.fast.filterbank import window_gpu as window

            return window
    raise KeyError(operation)

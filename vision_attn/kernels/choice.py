"""The fused loops of an operation, imported at their first use."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from types import ModuleType

_unwanted: ContextVar[bool] = ContextVar("unwanted", default=False)


def fused_loops(operation: str) -> ModuleType | None:
    """Return the loops of an operation, kernels/OPERATION_numba.py; None without numba or in `without_loops`, where
    tensor operations do the same.

    Importing numba takes a second, so this is called where loops are used and not before.
    """
    return None if _unwanted.get() else imported_loops(operation)


@contextmanager
def without_loops(wanted: bool = True) -> Iterator[None]:
    """Within this context, if `wanted`, tensor operations do all work: it is so little that importing numba would take
    longer."""
    token = _unwanted.set(wanted)
    try:
        yield
    finally:
        _unwanted.reset(token)


@cache
def imported_loops(operation: str) -> ModuleType | None:
    try:
        return import_module(f"vision_attn.kernels.{operation}_numba")
    except ImportError:
        return None

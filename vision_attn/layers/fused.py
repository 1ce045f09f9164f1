"""The module of fused loops that belongs to a module of tensor operations, imported at its first use."""

from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def fused_loops(module: str) -> ModuleType | None:
    """Return `module`_numba; None if numba is not installed, where tensor operations do the same.

    Importing numba takes a second, so this is called where loops are used and not before.
    """
    try:
        return import_module(f"{module}_numba")
    except ImportError:
        return None

"""`within`: set a context variable for a while, only in this thread and task."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Value = TypeVar("Value")


@contextmanager
def within(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Context manager: set `variable` to `value`, and restore it afterwards."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)

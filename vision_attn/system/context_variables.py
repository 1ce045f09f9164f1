"""`within`: give a context variable another value for a while, in this thread and task alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Value = TypeVar("Value")


@contextmanager
def within(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Within this context, `variable` has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)

"""Of many cases of one test, `make test` runs the first few."""

from collections.abc import Iterable
from typing import Any

import pytest


def after(number: int, values: Iterable[Any]) -> list[Any]:
    """The values of a parameter; those after the first `number` belong to `make test-slow`."""
    values = list(values)
    rest = [value if isinstance(value, tuple) else (value,) for value in values[number:]]
    return [*values[:number], *(pytest.param(*value, marks=pytest.mark.slow) for value in rest)]

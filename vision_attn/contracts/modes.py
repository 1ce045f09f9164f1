"""Modes of attention at test time: what a word sees, where a model or its attention has several."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def check_way(module: nn.Module, way: str) -> None:
    """Raise ValueError unless `way` is one of `module.ways`."""
    if way not in module.ways:
        ways = f"its ways are {', '.join(module.ways)}" if module.ways else "it has one way to look"
        raise ValueError(f"{type(module).__name__} cannot look by {way!r}; {ways}")


@contextmanager
def looking_at_test(module: nn.Module, way: str) -> Iterator[None]:
    """Context manager: `module.at_test` is `way`, one of `module.ways`."""
    check_way(module, way)
    before, module.at_test = module.at_test, way
    try:
        yield
    finally:
        module.at_test = before

"""Modes of attention at test time, such as "expectation" or "sample": checking a name, and switching for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vision_attn.system.errors import UserError


def check_mode(module: Any, mode: str) -> None:
    """Raise UserError unless `mode` is one of `module.modes`.

    module: a captioner or an attention.
    """
    if mode not in module.modes:
        known = f"its modes are {', '.join(module.modes)}" if module.modes else "it has one mode"
        raise UserError(f"{type(module).__name__} has no mode {mode!r}; {known}")


@contextmanager
def in_mode(module: Any, mode: str) -> Iterator[None]:
    """Context manager: set `module.at_test` to `mode`, one of `module.modes`, and restore it afterwards."""
    check_mode(module, mode)
    before, module.at_test = module.at_test, mode
    try:
        yield
    finally:
        module.at_test = before

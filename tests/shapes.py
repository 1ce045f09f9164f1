"""Shapes and types of arguments and results are checked in every call of the package.

`jaxtyping.jaxtyped` alone would do, but it compiles two checks of every function when it is imported, and checks
arguments twice in every call: two fifths of the time of all tests. Here one is compiled, at the first call."""

from collections.abc import Callable
from functools import partial, wraps
from inspect import isgeneratorfunction
from types import FunctionType
from typing import Any, get_type_hints

import jaxtyping

jaxtyped = jaxtyping.jaxtyped
_sizes = jaxtyped("context")
"""Within it a letter of a shape stands for one size."""


def install() -> None:
    """Check what is imported from now on."""
    jaxtyping.jaxtyped = checked
    jaxtyping.install_import_hook("vision_attn", "beartype.beartype")


def checked(fn: Callable | None = None, *, typechecker: Callable) -> Any:
    """A function whose calls `typechecker` checks; in place of `jaxtyped`, by which the import hook wraps functions."""
    if fn is None:
        return partial(checked, typechecker=typechecker)
    annotations = getattr(fn, "__annotations__", {})
    named_sizes = any("{" in repr(annotation) for annotation in annotations.values())  # sizes that arguments give
    if not isinstance(fn, FunctionType) or isgeneratorfunction(fn) or named_sizes:
        return jaxtyped(fn, typechecker=typechecker)
    if not annotations:
        return fn
    check = None

    @wraps(fn)
    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal check
        check = check or _made(fn, typechecker)
        with _sizes:
            return check(*arguments, **options)

    return call


def _made(fn: FunctionType, typechecker: Callable) -> Callable:
    try:
        fn.__annotations__ = get_type_hints(fn, include_extras=True)  # of names in quotes, what they name
    except NameError:  # imported for type checkers alone
        return jaxtyped(fn, typechecker=typechecker)
    return typechecker(fn)

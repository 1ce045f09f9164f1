"""Checks of annotations with shapes, once for each combination of shapes and types in the calls of a function."""

import re
import threading
from collections.abc import Callable
from functools import partial, update_wrapper, wraps
from types import FunctionType
from typing import Any

import jaxtyping
import numpy as np
from torch import Tensor, nn

JAXTYPED = jaxtyping.jaxtyped
ITEMS = 8
"""Of a long list the first items tell its kind; beartype checks one of them."""


def kind(value: Any, exact: bool) -> Any:
    """What an annotation can see of a value: the type, of arrays also the shape, and of lists that of their items.
    exact: also which number or text it is."""
    of = type(value)
    if of is Tensor or of is nn.Parameter or of is np.ndarray:
        return of, value.dtype, tuple(value.shape)
    if isinstance(value, Tensor):  # a subclass, whose shape may be symbolic
        return object()
    if isinstance(value, tuple | list):
        return of, len(value), *(kind(each, exact) for each in value[:ITEMS])
    if of is dict:
        return of, len(value), *((name, kind(each, exact)) for name, each in [*value.items()][:ITEMS])
    return (of, value) if exact and of in (bool, int, str) else of


def checked_once(fn: FunctionType, typechecker: Callable, exact: bool) -> Callable:
    """`fn` with its arguments and its result checked by jaxtyping, which takes 60 microseconds and more, unless it has
    checked arguments and a result of these kinds before. What jaxtyping needs is made at the first call."""
    results: dict[Any, set] = {}
    """The kinds of results that were checked, by the kinds of arguments."""
    given, made = threading.local(), []

    def inner(*args: Any, **kwargs: Any) -> Any:
        return given.result.pop() if getattr(given, "result", None) else fn(*args, **kwargs)

    def checked_call(args: tuple, kwargs: dict) -> Any:
        if not made:
            shell = FunctionType(_shell(inner).__code__, fn.__globals__, fn.__name__, None, _shell(inner).__closure__)
            made.append(JAXTYPED(update_wrapper(shell, fn), typechecker=typechecker))
        return made[0](*args, **kwargs)

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = kind(args, exact), kind(kwargs, exact)
        try:
            known = results.get(before)
        except TypeError:  # a key of a dictionary that cannot be hashed
            return checked_call(args, kwargs)
        if known is None:
            result = checked_call(args, kwargs)
            results[before] = {kind(result, exact)}
            return result
        result = fn(*args, **kwargs)
        if (after := kind(result, exact)) not in known:
            given.result = [result]
            try:
                checked_call(args, kwargs)
            finally:
                given.result = []
            known.add(after)
        return result

    return call


def _shell(inner: Callable) -> Callable:
    """What jaxtyping checks in the place of a function, with its signature: the function, or a result of it."""

    def shell(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    return shell


def checked(fn: Callable | None = None, *, typechecker: Callable) -> Callable:
    """In place of `jaxtyped`: for functions whose annotations have shapes or quotes `checked_once`, for others only the
    type checker."""
    if fn is None:
        return partial(checked, typechecker=typechecker)
    annotations = [repr(each) for each in getattr(fn, "__annotations__", {}).values()]
    special = any(re.search(r"jaxtyping|^'|[\[(,] ?'", each) for each in annotations)
    if isinstance(fn, FunctionType) and not special:
        return typechecker(fn)
    if not isinstance(fn, FunctionType) or any("{" in each for each in annotations):  # a size that is computed
        return JAXTYPED(fn, typechecker=typechecker)
    return checked_once(fn, typechecker, exact=any(re.search("Literal|ForwardRef|^'", each) for each in annotations))

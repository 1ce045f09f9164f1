"""Shapes and types of arguments and results are checked in the calls of the package.

`jaxtyping.jaxtyped` alone would do, but it compiles two checks of every function when it is imported, and checks
arguments twice in every call: two fifths of the time of all tests. Here one is compiled, at the first call, and a call
whose arguments and result have the types, shapes and number formats of a call before it is not checked again: a check
sees nothing else of them."""

import inspect
import re
import sys
import threading
from collections.abc import Callable, Hashable
from functools import partial, wraps
from types import CodeType, FunctionType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import jaxtyping
import numpy as np
from beartype.door import is_bearable

jaxtyped = jaxtyping.jaxtyped
_sizes = jaxtyped("context")
"""Within it a letter of a shape stands for one size."""
_running = threading.local()
"""`function`: what is called between the check of the arguments and that of the result."""


def install() -> None:
    """Check what is imported from now on."""
    jaxtyping.jaxtyped = checked
    jaxtyping.install_import_hook("vision_attn", "beartype.beartype")


def checked(fn: Callable | None = None, *, typechecker: Callable) -> Any:
    """A function whose calls `typechecker` checks; in place of `jaxtyped`, by which the import hook wraps functions."""
    if fn is None:
        return partial(checked, typechecker=typechecker)
    if sys.version_info < (3, 11) and isinstance(fn, FunctionType):
        fn.__annotations__ = without_names(fn.__annotations__)
    annotations = getattr(fn, "__annotations__", {})
    named_sizes = any("{" in repr(annotation) for annotation in annotations.values())  # sizes that arguments give
    if not isinstance(fn, FunctionType) or inspect.isgeneratorfunction(fn) or named_sizes:
        return jaxtyped(fn, typechecker=typechecker)
    if not annotations:
        return fn
    code = fn.__code__
    first = int(code.co_argcount > 0 and code.co_varnames[0] not in annotations)  # no check sees `self`
    check: Check | None = None
    seen: dict[tuple[Hashable, ...], set[Hashable]] = {}

    @wraps(fn)
    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal check, seen
        try:
            if options:
                given = (*map(kind, arguments[first:]), *options, *map(kind, options.values()))
            else:
                given = (*map(kind, arguments[first:]),)
            found = seen.get(given)
        except TypeError:  # of sizes that are symbols, while a graph is traced
            given = found = None
        if found is None:
            if check is None:
                check = _check_of(fn, typechecker)
                seen = check.seen
            result = check.run(fn, arguments, options)
            if given is not None and not check.of_values:
                seen.setdefault(given, set()).add(kind(result))
            return result
        result = fn(*arguments, **options)
        if (returned := kind(result)) not in found:
            check.run(lambda *_, **__: result, arguments, options)
            found.add(returned)
        return result

    return call


class Check:
    """The check of all functions that have one code, such as those that a function defines in each of its calls."""

    def __init__(self, fn: FunctionType, typechecker: Callable) -> None:
        self.seen: dict[tuple[Hashable, ...], set[Hashable]] = {}
        """Kinds of arguments, and of the results that they had."""
        self.made, self.of_values, self.hints = None, True, None

        @wraps(fn)
        def running(*arguments: Any, **options: Any) -> Any:
            return _running.function(*arguments, **options)

        try:
            hints = get_type_hints(fn, include_extras=True)  # of names in quotes, what they name
        except NameError:  # imported for type checkers alone
            self.make = lambda: jaxtyped(running, typechecker=typechecker)
            return
        fn.__annotations__ = running.__annotations__ = hints
        self.make = lambda: typechecker(running)
        code, said = fn.__code__, repr(hints)
        self.of_values = "Literal" in said
        if not _OF_THE_FUNCTION.search(said) and not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
            self.names = code.co_varnames[: code.co_argcount]
            self.hints = {name: hint for name, hint in hints.items() if hint not in (Any, object)}

    def run(self, function: Callable, arguments: tuple, options: dict[str, Any]) -> Any:
        """Call a function, and check the arguments and the result."""
        if self.hints is not None:
            with _sizes:
                given = dict(zip(self.names, arguments, strict=False)) | options
                if all(fits(value, self.hints[name]) for name, value in given.items() if name in self.hints):
                    result = function(*arguments, **options)
                    if "return" not in self.hints or fits(result, self.hints["return"]):
                        return result
                    function = lambda *_, **__: result  # noqa: E731
        self.made = self.made or self.make()  # which takes a millisecond or two, and says what does not fit
        before, _running.function = getattr(_running, "function", None), function
        try:
            with _sizes:
                return self.made(*arguments, **options)
        finally:
            _running.function = before


_OF_THE_FUNCTION = re.compile("Self|NoReturn|Never|TypeGuard|TypeIs")
"""Hints that mean something at a function alone."""


def without_names(hints: dict[str, Any]) -> dict[str, Any]:
    """Check nothing where a hint holds a name in quotes: Python 3.10 leaves that of list["Name"] as it is."""

    def named(hint: Any) -> bool:
        return isinstance(hint, str) or (get_origin(hint) is not Literal and any(map(named, get_args(hint))))

    return {name: hint if isinstance(hint, str) or not named(hint) else Any for name, hint in hints.items()}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has a type. (Unlike a function's check, that of a hint is compiled once for all functions.)"""
    if issubclass(type(hint), type) and type(hint).__module__ != "typing":  # no protocol and no TypedDict
        return isinstance(value, hint)
    if get_origin(hint) in (Union, UnionType):
        return any(fits(value, one) for one in hint.__args__)
    return is_bearable(value, hint)


_checks: dict[tuple[CodeType | str, ...], Check] = {}


def _check_of(fn: FunctionType, typechecker: Callable) -> Check:
    key = (fn.__code__, *map(repr, fn.__annotations__.values()))
    if key not in _checks:
        _checks[key] = Check(fn, typechecker)
    return _checks[key]


def kind(value: Any) -> Hashable:
    """What a check can see of a value: its type, of an array the shape and the number format, and of what holds others
    the kinds of these; of a list those of the first and the last."""
    of = value.__class__
    try:
        how = _kinds[of]
    except KeyError:
        arrays = np.ndarray, *([sys.modules["torch"].Tensor] if "torch" in sys.modules else [])
        how = _kinds[of] = _of_array if issubclass(of, arrays) else _of_tuple if issubclass(of, tuple) else None
    return of if how is None else how(value)


def _of_array(value: Any) -> Hashable:
    return value.__class__, value.dtype, value.shape


def _of_tuple(value: tuple) -> Hashable:
    return (value.__class__, *map(kind, value)) if len(value) < 20 else _of_list(value)


def _of_list(value: Any) -> Hashable:
    return (value.__class__, kind(value[0]), kind(value[-1])) if value else (value.__class__,)


def _of_dict(value: dict) -> Hashable:
    return (value.__class__, *map(kind, next(iter(value.items())))) if value else (value.__class__,)


_kinds: dict[type, Any] = {list: _of_list, dict: _of_dict}
"""How values of a type are described; None: by their type."""

"""Interpret the annotations of parameters: which values of a config they accept."""

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from torch.optim.lr_scheduler import LRScheduler

from vision_attn.configuration.schedules import LENGTHS, takes_steps_by_name

MISSING = inspect.Parameter.empty
UNTYPED = (MISSING, Any)
UNSET = object()
"""The default of a parameter that is left out unless a config sets it."""

PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_PLAIN: dict[Any, str] = {
    type(None): "null", bool: "true or false", int: "an int", float: "a float", str: "text", Path: "text",
}  # fmt: skip


class Expected(NamedTuple):
    """A parameter that expects an object: its class, and how many arguments the receiver supplies."""

    type_: type
    given: int
    factory: bool

    def parameters(self, constructor: Any) -> dict[str, inspect.Parameter]:
        """Return the parameters that a config may set. The number of steps of a schedule is one of them, but may be
        left out: see `schedules`."""
        if self.type_ is not LRScheduler or not takes_steps_by_name(constructor):
            return parameters_of(constructor, self.given)
        parameters = parameters_of(constructor, self.given - 1)
        lengths = {name: parameters[name].replace(default=UNSET) for name in LENGTHS if name in parameters}
        return parameters | lengths


def object_of(type_: Any) -> Expected | None:
    """Return the kind of object that a parameter of this type takes, if a config can describe it by a class path; else
    None."""
    if get_origin(type_) is Callable or type_ is Callable:
        given, made = get_args(type_) or (..., object)
        made = object if made is Any else made
        return Expected(made, 0 if given is ... else len(given), True) if inspect.isclass(made) else None
    other = not inspect.isclass(type_) or get_origin(type_) is not None or type_ in (*_PLAIN, *UNTYPED)
    return None if other or type_.__module__ == "builtins" else Expected(type_, 0, False)


def parameters_of(constructor: Any, given: int) -> dict[str, inspect.Parameter]:
    """Return the parameters that a config may set: the named ones, except the leading ones that the receiver supplies.

    If the constructor takes `**kwargs`, they include those of the base classes. Since the class may pass these itself,
    they have no default here.
    """
    supplied: dict[str, inspect.Parameter] = {}
    for type_ in inspect.getmro(constructor) if inspect.isclass(constructor) else (constructor,):
        if type_ is not constructor and "__init__" not in vars(type_):
            continue
        parameters = list(_signature(type_).parameters.values())
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        named = [parameter for parameter in parameters if parameter.kind in kinds]
        positional = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in named)
        for parameter in named[min(given, positional) :]:
            supplied.setdefault(parameter.name, parameter if type_ is constructor else parameter.replace(default=UNSET))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return supplied


def _signature(constructor: Any) -> inspect.Signature:
    """Return the signature, with annotations evaluated where they can be."""
    try:
        return inspect.signature(constructor, eval_str=True)
    except NameError:
        return inspect.signature(constructor)
    except (TypeError, ValueError):
        return inspect.Signature()


def types_of(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type itself."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return (type(None) if annotation is None else annotation,)
    return tuple(type_ for member in get_args(annotation) for type_ in types_of(member))


def untyped(types_: Sequence[Any]) -> bool:
    """Return whether an annotation does not tell the type: there is none, or its text cannot be evaluated."""
    return any(type_ in UNTYPED or isinstance(type_, str) for type_ in types_)


def takes_text(type_: Any) -> bool:
    return type_ in (str, Path) or get_origin(type_) is Literal


def may_be_path(text: str, types_: Sequence[Any]) -> bool:
    """Return whether text may be a class path: none of the types takes text, and the text is no number."""
    plain_types = [type_ for type_ in types_ if type_ in (bool, int, float)]
    return not any(map(takes_text, types_)) and (not plain_types or PATH.fullmatch(text) is not None)


def is_mapping(type_: Any) -> bool:
    return get_origin(type_) in (dict, Mapping) or type_ in (dict, Mapping)


def items_of(type_: Any, count: int) -> Sequence[Any] | None:
    """Return the types of the `count` items of a list; None if `type_` takes no list of this length."""
    if type_ in (list, tuple):
        return [MISSING] * count
    if get_origin(type_) not in (list, tuple, Sequence, Iterable):
        return None
    arguments = get_args(type_)
    if get_origin(type_) is tuple and ... not in arguments:
        return arguments if len(arguments) == count else None
    return [arguments[0]] * count


def single(value: Any, type_: Any) -> Any:
    """Return a single value as `type_`; MISSING if it has another type."""
    if get_origin(type_) is Literal:
        return value if any(type(value) is type(choice) and value == choice for choice in get_args(type_)) else MISSING
    if type_ in (str, Path):
        return value if isinstance(value, str) else MISSING
    if type_ in (int, float) and isinstance(value, str) and _NUMBER.fullmatch(value):
        whole = re.fullmatch(r"[+-]?[0-9]{1,4000}", value)  # Python converts no more than 4,300 digits
        value = int(value) if whole else float(value)
    if type_ is float and type(value) is int and value.bit_length() < 1024:  # or it would be too large for a float
        return float(value)
    return value if type_ in (bool, int, float) and type(value) is type_ else MISSING


def can_be_spelled(value: Any) -> bool:
    """Return whether a config can spell a default."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and can_be_spelled(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(can_be_spelled, value))
    return value is None or type(value) in (bool, int, float, str)


def word_for(type_: Any) -> str:
    """Return the words for a type in a message."""
    if get_origin(type_) is Literal:
        return f"one of {', '.join(map(repr, get_args(type_)))}"
    if get_origin(type_) is tuple and ... not in get_args(type_):
        return f"a list of {len(get_args(type_))}"
    if get_origin(type_) in (list, tuple, Sequence, Iterable):
        return "a list"
    return "keys and values" if is_mapping(type_) else _PLAIN.get(type_, str(type_))

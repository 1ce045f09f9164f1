"""What the annotation of a parameter says about the values that a config may give it."""

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

    kind: type
    given: int
    factory: bool

    def parameters(self, constructor: Any) -> dict[str, inspect.Parameter]:
        """The parameters that a config may set. The number of steps of a schedule is one of them, but may be left out:
        see `schedules`."""
        if self.kind is not LRScheduler or not takes_steps_by_name(constructor):
            return parameters_of(constructor, self.given)
        found = parameters_of(constructor, self.given - 1)
        return {name: one.replace(default=UNSET) if name in LENGTHS else one for name, one in found.items()}


def object_of(kind: Any) -> Expected | None:
    """The object that a type expects, if a config can describe it by a class path; else None."""
    if get_origin(kind) is Callable or kind is Callable:
        given, made = get_args(kind) or (..., object)
        made = object if made is Any else made
        return Expected(made, 0 if given is ... else len(given), True) if inspect.isclass(made) else None
    other = not inspect.isclass(kind) or get_origin(kind) is not None or kind in (*_PLAIN, *UNTYPED)
    return None if other or kind.__module__ == "builtins" else Expected(kind, 0, False)


def parameters_of(constructor: Any, given: int) -> dict[str, inspect.Parameter]:
    """The parameters that a config may set: the named ones, except the leading ones that the receiver supplies.

    With `**kwargs`, those of the base classes too; since the class may pass these itself, they have no default here.
    """
    found: dict[str, inspect.Parameter] = {}
    for kind in inspect.getmro(constructor) if inspect.isclass(constructor) else (constructor,):
        if kind is not constructor and "__init__" not in vars(kind):
            continue
        parameters = list(_signature(kind).parameters.values())
        named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        positional = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in named)
        for one in named[min(given, positional) :]:
            found.setdefault(one.name, one if kind is constructor else one.replace(default=UNSET))
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    return found


def _signature(constructor: Any) -> inspect.Signature:
    """The signature, with annotations evaluated where they can be."""
    try:
        return inspect.signature(constructor, eval_str=True)
    except NameError:
        return inspect.signature(constructor)
    except (TypeError, ValueError):
        return inspect.Signature()


def kinds_of(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return (type(None) if annotation is None else annotation,)
    return tuple(kind for each in get_args(annotation) for kind in kinds_of(each))


def untyped(kinds: Sequence[Any]) -> bool:
    """Whether an annotation does not tell the type: there is none, or its text cannot be evaluated."""
    return any(kind in UNTYPED or isinstance(kind, str) for kind in kinds)


def takes_text(kind: Any) -> bool:
    return kind in (str, Path) or get_origin(kind) is Literal


def may_be_path(text: str, kinds: Sequence[Any]) -> bool:
    """Whether text names a class where an object is expected: no type takes text, and a number is none."""
    plain_kinds = [kind for kind in kinds if kind in (bool, int, float)]
    return not any(map(takes_text, kinds)) and (not plain_kinds or PATH.fullmatch(text) is not None)


def is_mapping(kind: Any) -> bool:
    return get_origin(kind) in (dict, Mapping) or kind in (dict, Mapping)


def items_of(kind: Any, count: int) -> Sequence[Any] | None:
    """The types of the `count` items of a list; None if `kind` takes no list of this length."""
    if kind in (list, tuple):
        return [MISSING] * count
    if get_origin(kind) not in (list, tuple, Sequence, Iterable):
        return None
    arguments = get_args(kind)
    if get_origin(kind) is tuple and ... not in arguments:
        return arguments if len(arguments) == count else None
    return [arguments[0]] * count


def single(value: Any, kind: Any) -> Any:
    """A single value as `kind`; MISSING if it is none."""
    if get_origin(kind) is Literal:
        return value if any(type(value) is type(one) and value == one for one in get_args(kind)) else MISSING
    if kind in (str, Path):
        return value if isinstance(value, str) else MISSING
    if kind in (int, float) and isinstance(value, str) and _NUMBER.fullmatch(value):
        whole = re.fullmatch(r"[+-]?[0-9]{1,4000}", value)  # Python converts no more than 4,300 digits
        value = int(value) if whole else float(value)
    if kind is float and type(value) is int and value.bit_length() < 1024:  # or it would be too large for a float
        return float(value)
    return value if kind in (bool, int, float) and type(value) is kind else MISSING


def can_be_spelled(value: Any) -> bool:
    """Whether a config can spell a default."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and can_be_spelled(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(can_be_spelled, value))
    return value is None or type(value) in (bool, int, float, str)


def word_for(kind: Any) -> str:
    """A type in a message."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    if get_origin(kind) is tuple and ... not in get_args(kind):
        return f"a list of {len(get_args(kind))}"
    if get_origin(kind) in (list, tuple, Sequence, Iterable):
        return "a list"
    return "keys and values" if is_mapping(kind) else _PLAIN.get(kind, str(kind))

"""Parts: what a config describes, and how the objects are made of it."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vision_attn.system.console import reason_of
from vision_attn.system.errors import UserError
from vision_attn.system.own_code import place_of


@dataclass
class Part:
    """An object that a config describes: what makes it, and the arguments, defaults included."""

    class_path: str
    """Empty for a dataclass of settings, which a config does not name."""
    constructor: Callable
    arguments: dict[str, Any]
    factory: bool = False
    """Whether the receiver makes the object, and adds the first arguments."""
    key: str = field(default="", compare=False)
    """Where the config describes it, for messages."""


class Factory(partial):
    """What the receiver makes an object with. Its `key` is where the config describes the object."""

    key: str

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        with arguments_told(self.key, self.func):
            return super().__call__(*arguments, **named)


def built(value: Any) -> Any:
    """The object, or the factory, that a part describes; also in lists and mappings. Raises UserError naming the key
    of a part whose class refuses its arguments."""
    if isinstance(value, Part):
        arguments = built(value.arguments)
        if value.factory:
            factory = Factory(value.constructor, **arguments)
            factory.key = value.key
            return factory
        with arguments_told(value.key, value.constructor):
            return value.constructor(**arguments)
    if isinstance(value, dict):
        return {key: built(each) for key, each in value.items()}
    return type(value)(map(built, value)) if isinstance(value, list | tuple) else value


def plain(value: Any) -> Any:
    """A part as a config file spells it out."""
    if isinstance(value, Part):
        arguments = plain(value.arguments)
        named = {"class_path": value.class_path} if value.class_path else arguments
        return named | {"init_args": arguments} if value.class_path and arguments else named
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def parts_of(value: Any) -> Iterator[Part]:
    """All parts in a value."""
    if isinstance(value, Part):
        yield value
        value = value.arguments
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from parts_of(each)


@contextmanager
def arguments_told(key: str, constructor: Callable) -> Iterator[None]:
    """Within, a ValueError of `constructor` is a UserError that names the key, for which it was given its arguments: of
    the user's class, of a library's, or of a layer of torch in one of ours. One that our own code raises is a bug."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        ours = _package(getattr(constructor, "__module__", "")) == _package(__name__)
        if ours and _package(_raised_in(error)) != "torch":
            raise
        told, (frame, owner) = reason_of(error), place_of(error)
        if owner == "theirs":  # it may be a bug there
            told += f" (ValueError at {Path(frame.filename).name}:{frame.lineno}; --debug shows where it came from)"
        raise UserError(f"{key}: {told}" if key else told) from error


def _raised_in(error: BaseException) -> str:
    """The name of the module that raised an error."""
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "")


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]

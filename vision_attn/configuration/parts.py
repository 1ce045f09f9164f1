"""`PartConfig`, the description of an object in a config, and `built`, which makes the object."""

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
class PartConfig:
    """The config of an object: its constructor, and the arguments, defaults included."""

    class_path: str
    """Empty for a dataclass of settings, which a config does not name."""
    constructor: Callable
    arguments: dict[str, Any]
    factory: bool = False
    """Whether the receiver creates the object, with further first arguments."""
    key: str = field(default="", compare=False)
    """The key of the config that describes the object, for messages."""


class Factory(partial):
    """A function with which the receiver creates an object. `key` is the key of the config that describes the
    object."""

    key: str

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        with arguments_told(self.key, self.func):
            return super().__call__(*arguments, **named)


def built(value: Any) -> Any:
    """Create the objects, or factories, that `PartConfig`s describe, also in lists and mappings. Raises UserError
    naming the key of an object whose class refuses its arguments."""
    if isinstance(value, PartConfig):
        arguments = built(value.arguments)
        if value.factory:
            factory = Factory(value.constructor, **arguments)
            factory.key = value.key
            return factory
        with arguments_told(value.key, value.constructor):
            return value.constructor(**arguments)
    if isinstance(value, dict):
        return {key: built(item) for key, item in value.items()}
    return type(value)(map(built, value)) if isinstance(value, list | tuple) else value


def plain(value: Any) -> Any:
    """Return a `PartConfig` as a config file spells it out."""
    if isinstance(value, PartConfig):
        arguments = plain(value.arguments)
        named = {"class_path": value.class_path} if value.class_path else arguments
        return named | {"init_args": arguments} if value.class_path and arguments else named
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def parts_of(value: Any) -> Iterator[PartConfig]:
    """Yield every `PartConfig` in a value."""
    if isinstance(value, PartConfig):
        yield value
        value = value.arguments
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from parts_of(item)


@contextmanager
def arguments_told(key: str, constructor: Callable) -> Iterator[None]:
    """Context manager: convert a ValueError of `constructor` to a UserError naming the key of its arguments. Applies to
    classes of the user and of libraries, and to layers of torch in our classes. A ValueError that our own code raises
    is a bug."""
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
    """Return the name of the module that raised an error."""
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "")


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]

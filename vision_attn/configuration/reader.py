"""`ConfigReader`: reads the values of a config by the signatures of the classes that receive them.

A value is read by the first row of this table that fits the value and the annotation of its parameter. The order is a
rule of security: if a parameter takes text, no text names a class, and a mapping names a class only if the parameter
expects an object. Every name of a class is checked by `trust` before anything is imported.

| Value | The parameter takes | Read as |
|---|---|---|
| null | None, or None is its default | None |
| mapping | an object, or a callable that returns one | `class_path` and `init_args`: a `PartConfig` |
| mapping | a mapping | a mapping, each value by the type of values |
| list | a list, a tuple, a sequence | a list or tuple, each item by its type |
| text, a number, true, false | these | itself; a number may be written as text (YAML 1.1 reads 1e-3 as text) |
| text | an object, or a callable that returns one, and no text | the class path of a `PartConfig` |
| anything | no annotation, in code that is trusted | itself |
| anything else | | refused |
"""

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from vision_attn.configuration.annotations import (
    MISSING,
    PATH,
    Expected,
    can_be_spelled,
    is_mapping,
    items_of,
    may_be_path,
    object_of,
    single,
    types_of,
    untyped,
    word_for,
)
from vision_attn.configuration.options import Option, value_of
from vision_attn.configuration.parts import PartConfig
from vision_attn.configuration.trust import Names, Untrusted, Wrong, fitting, short
from vision_attn.system.console import suggest
from vision_attn.system.errors import UserError

CLASSES = 50
"""The largest number of classes that a config may name."""


class UnknownKey(Wrong):
    """Raised for a key that no parameter has."""


@contextmanager
def located(where: Path, options: Iterable[Option]) -> Iterator[None]:
    """Context manager: prefix the message of an error with the file, unless it concerns an option."""
    try:
        yield
    except Wrong as error:
        keys = [".".join(option.path) for option in options]
        by_option = any(error.key == key or error.key.startswith(f"{key}.") for key in keys)
        if isinstance(error, Untrusted):
            raise UserError(f"{'one of the options' if by_option else where} {error}") from error
        if by_option:
            raise
        raise UserError(f"{where}: {error}") from error


class ConfigReader:
    """Reads the values of one config. All methods raise `Wrong`, with the key, and `trust.Untrusted`."""

    def __init__(self, names: Names) -> None:
        self.names, self.classes = names, 0

    def all(
        self, parameters: Mapping[str, inspect.Parameter], written: Any, key: str, options: Sequence[Option],
        *, trusted: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the values of all parameters: as written, changed by `options`, or the default if a config can spell
        it."""
        if not isinstance(written, dict):
            raise Wrong(key, f"expected keys and values, got {short(written)!r}")
        changed: dict[str, list[Option]] = {}
        for (name, *below), text in options:
            changed.setdefault(name, []).append(Option(tuple(below), text))
        for name in (*written, *changed):
            if name not in parameters:
                rest = () if name in written else changed[name][0].path
                whole = _join(key, ".".join((name, *rest)))
                raise UnknownKey(whole, f"there is no such key{suggest(short(name), parameters)}")
        values = {}
        for name, parameter in parameters.items():
            if name in written or name in changed:
                values[name] = self.value(
                    written.get(name, MISSING), parameter.annotation, _join(key, name), changed.get(name, ()),
                    default=parameter.default, trusted=trusted,
                )  # fmt: skip
            elif parameter.default is MISSING:
                raise Wrong(_join(key, name), "missing but required")
            elif (default := self.default(parameter, _join(key, name))) is not MISSING:
                values[name] = default
        return values

    def value(
        self, value: Any, annotation: Any, key: str, options: Sequence[Option] = (), *,
        default: Any = MISSING, trusted: bool = False,
    ) -> Any:  # fmt: skip
        """Read one value, by the table above.

        options: set the value, or values below it.
        """
        types_, before = types_of(annotation), value
        below = [option for option in options if option.path]
        if len(below) < len(options):
            text = next(option.text for option in reversed(options) if not option.path)
            value = value_of(text, types_, key)
        expected = next(filter(None, map(object_of, types_)), None)
        elements = next((get_args(type_) for type_ in types_ if is_mapping(type_)), None)
        if below and value in (MISSING, None):
            if expected and inspect.isclass(default) and default is not MISSING:
                return self.part(default, {}, expected, key, below)
            value = {} if elements is not None or expected and is_dataclass(expected.type_) else value
        if value is MISSING:
            raise Wrong(key, f"this config has none: give its class first, --{key}=...")
        if value is None and (default is None or type(None) in types_ or trusted and untyped(types_)):
            return None
        if expected and (isinstance(value, dict) or isinstance(value, str) and may_be_path(value, types_)):
            return self.named(value, expected, key, below, before)
        if isinstance(value, dict) and elements is not None:
            return self.mapping(value, (*elements, MISSING, MISSING)[1], key, below, trusted)
        if below:
            raise UnknownKey(_join(key, below[0].path[0]), "there is no such key")
        if isinstance(value, list | tuple):
            for type_ in types_:
                if (items := items_of(type_, len(value))) is not None:
                    read = [self.value(element, item, f"{key}.{number}", trusted=trusted)
                            for number, (element, item) in enumerate(zip(value, items, strict=True))]  # fmt: skip
                    return tuple(read) if tuple in (type_, get_origin(type_)) else read
        if untyped(types_):
            if trusted or value == default and not isinstance(value, list | dict):
                return value
            raise Wrong(key, "a run folder may not set this")
        if value is None:
            raise Wrong(key, "null is no value for it; leave it out for the default")
        for type_ in types_:
            if (read := single(value, type_)) is not MISSING:
                self.names.check_number(read, key)
                return read
        if words := [word_for(type_) for type_ in types_ if not object_of(type_)]:
            raise Wrong(key, f"expected {' or '.join(words)}, got {short(value)!r}")
        raise _no_path(key, value, expected)

    def mapping(self, value: dict, element: Any, key: str, options: Sequence[Option], trusted: bool) -> dict:
        """Read a mapping. An option `--KEY.NAME=null` removes an entry."""
        names = dict.fromkeys([*value, *(option.path[0] for option in options)])
        values = {}
        for name in names:
            below = [Option(option.path[1:], option.text) for option in options if option.path[0] == name]
            removed = below and below[-1] == ((), "null") and type(None) not in types_of(element)
            if not removed:
                where = _join(key, short(name))
                values[name] = self.value(value.get(name, MISSING), element, where, below, trusted=trusted)
        return values

    def named(self, value: Any, expected: Expected, key: str, options: Sequence[Option], before: Any) -> PartConfig:
        """Return the config of an object whose class `value` names.

        before: the value before an option named another class. Arguments that the new class has as well are kept.
        """
        written = value if isinstance(value, dict) else {"class_path": value}
        if is_dataclass(expected.type_) and not expected.factory and "class_path" not in written:
            return self.part(expected.type_, written, expected, key, options)
        path, arguments = written.get("class_path"), written.get("init_args")
        if not isinstance(path, str) or not PATH.fullmatch(path):
            raise _no_path(key, path, expected, before)
        self.classes += 1
        if self.classes > CLASSES:
            raise Wrong(key, f"the config names more than {CLASSES} classes")
        constructor = self.names.find(path, expected.type_, key)
        if extra := written.keys() - {"class_path", "init_args"}:
            raise Wrong(_join(key, short(min(extra))), "there is no such key here: write it under init_args")
        if isinstance(value, str) and isinstance(before, dict) and isinstance(before.get("init_args"), dict):
            known = expected.parameters(constructor)
            arguments = {name: argument for name, argument in before["init_args"].items() if name in known}
        if not isinstance(arguments, dict | None):
            raise Wrong(f"{key}.init_args", f"expected keys and values, got {short(arguments)!r}")
        return self.part(constructor, arguments or {}, expected, key, options, path)

    def part(
        self,
        constructor: Any,
        written: Any,
        expected: Expected,
        key: str,
        options: Sequence[Option],
        path: str = "",
    ) -> PartConfig:
        """Return the config of an object that `constructor` makes of the written arguments and of `options`."""
        if not path and not is_dataclass(constructor):
            path = f"{constructor.__module__}.{constructor.__qualname__}"
        parameters, trusted = expected.parameters(constructor), self.names.trusts(constructor)
        arguments = self.all(parameters, written, key, options, trusted=trusted)
        return PartConfig(path, constructor, arguments, expected.factory, key)

    def default(self, parameter: inspect.Parameter, key: str) -> Any:
        """Return the default of a parameter, if a config can spell it; otherwise MISSING."""
        default, types_ = parameter.default, types_of(parameter.annotation)
        expected = next(filter(None, map(object_of, types_)), None)
        if inspect.isclass(default) and expected:
            findable = vars(sys.modules.get(default.__module__)).get(default.__name__) is default
            return self.part(default, {}, expected, key, ()) if findable else MISSING
        as_typed = (read for type_ in types_ if (read := single(default, type_)) is not MISSING)  # 0 as a float
        return next(as_typed, default) if can_be_spelled(default) else MISSING


def _no_path(key: str, value: Any, expected: Expected | None, before: Any = None) -> Wrong:
    """Return the error for a value that names no class, with the path of a class that was probably meant, was there
    before, or would fit."""
    known = fitting(expected.type_) if expected else {}
    if meant := next((path for name, path in known.items() if str(value).casefold() == name.casefold()), None):
        return Wrong(key, f"expected a class path, got {short(value)!r}; did you mean {meant}?")
    there = before.get("class_path") if isinstance(before, dict) else before
    if not isinstance(there, str) or not PATH.fullmatch(there):
        there = next(iter(known.values()), None)
    return Wrong(key, f"expected a class path{f' such as {there}' if there else ''}, got {short(value)!r}")


def _join(key: str, name: str) -> str:
    return f"{key}.{short(name)}" if key else short(name)

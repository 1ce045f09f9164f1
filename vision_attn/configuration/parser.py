"""Parsing of YAML configs and command lines by jsonargparse, according to the signature of `experiment`.

jsonargparse imports what a config names; `allow_only` restricts what it may import.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from jsonargparse import ArgumentParser, Namespace, _stubs_resolver, set_parsing_settings

from vision_attn.configuration.schema import experiment
from vision_attn.configuration.trust import within
from vision_attn.system.mistakes import one_line, suggest

FORMAT = 3
"""The version of run folders that this code writes. It reads all versions up to it (`migrate`)."""

_allowed: set[str] = set()

if _stubs_resolver.typeshed_client_support:
    # If a signature lacks types, jsonargparse searches for stubs. To find their location it would start Python in the
    # current folder, whose `import json` would import a json.py from there.
    _places = _stubs_resolver.tc.get_search_context(search_path=[Path(place) for place in sys.path if place])
    _stubs_resolver.stubs_resolver = _stubs_resolver.StubsResolver(search_context=_places)


def make_parser(skip: Iterable[str] = ()) -> ArgumentParser:
    """Create a parser of the parameters of `experiment`, without those in `skip`."""
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--format", type=int, default=FORMAT)
    parser.add_function_arguments(experiment, fail_untyped=False, skip=set(skip))
    return parser


def parse(
    parser: ArgumentParser, arguments: Sequence[str], content: dict, *, where: Path, overrides: Sequence[str]
) -> Namespace:
    """Parse `arguments` into a config with all defaults.

    content: the config as plain values, for suggestions. where, overrides: the file and the arguments, to name the
        source of an error.

    Raises a one-line ValueError that names the key.
    """
    try:
        config = parser.parse_args(list(arguments))
    except Exception as error:  # mostly ArgumentError, but unusual values can raise other errors
        _raise_if_mistyped(error)
        said = one_line(message(error), partial(_accepted, content))
        cause, reason = error, _misplaced(content) or _located(said, content, overrides)
    else:
        cause, reason = None, _null(config.as_dict())
    if not reason:
        return config
    key = reason.split(":")[0].split(".")[-1]
    given = (override.partition("=")[0].split(".")[-1].removeprefix("--") for override in overrides)
    prefix = "" if key in given else f"{where}: "
    raise ValueError(f"{prefix}{reason}") from cause


def _raise_if_mistyped(error: BaseException | None) -> None:
    """Raise a ValueError with the place in a module that a config names, if Python could not parse it."""
    while error:
        if isinstance(error, SyntaxError):
            raise ValueError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
        error = error.__cause__ or error.__context__


def _nested(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict]]:
    """Every mapping of a config, with its path as messages name it: without `init_args`."""
    if isinstance(content, dict):
        yield path, content
        for key, value in content.items():
            yield from _nested(value, path if key == "init_args" else (*path, key))


def _misplaced(content: dict) -> str:
    """What is wrong with a class whose arguments are written beside its `class_path`; empty if there is none."""
    for path, mapping in _nested(content):
        if "class_path" in mapping and (beside := mapping.keys() - {"class_path", "init_args", "dict_kwargs"}):
            return f"{'.'.join(path)}: write {', '.join(sorted(beside))} under init_args, beside class_path"
    return ""


def _null(config: dict) -> str:
    """What is wrong with a null in the place of a number, say, which the parser lets pass in the arguments of some
    classes; empty if there is none."""
    for path, mapping in _nested(config):
        parameters = _parameters(mapping["class_path"]) if "class_path" in mapping else {}
        for key, value in (mapping.get("init_args") or {}).items() if parameters else ():
            if value is None and key in parameters and not _may_be_none(parameters[key]):
                return f"{'.'.join((*path, key))}: null is no value for it; leave it out for the default"
    return ""


def _may_be_none(parameter: inspect.Parameter) -> bool:
    """Whether None is a value of a parameter, or its annotation does not tell."""
    kinds = (parameter.annotation, *get_args(parameter.annotation))
    untold = isinstance(parameter.annotation, str) or parameter.annotation in (parameter.empty, Any)
    return untold or parameter.default is None or any(kind in (None, type(None)) for kind in kinds)


def _located(reason: str, content: dict, overrides: Sequence[str]) -> str:
    """`reason` with the whole path of an unknown key: the parser leaves out the names of parts in a mapping, such as
    the criteria of a task."""
    if "NestedArg(" in reason:
        key = reason.partition(":")[0]
        return f"{key}: an option cannot take a part away: leave it out in a copy of the config"
    found = re.match(r"([\w.]+): there is no such key", reason)
    *above, key = found[1].split(".") if found else [""]
    for option in overrides if above else ():
        (*part, last), inside = option.partition("=")[0].removeprefix("--").split("."), ".".join(above)
        if last == key and len(part) > len(above) and part[: len(above)] == above:
            part = ".".join(part)
            return f"{inside} of this config has no {part[len(inside) + 1 :]}: give its class first, --{part}=..."
    places = [path for path, mapping in _nested(content) if key in mapping and [*path[: len(above)]] == above]
    if not above or len(places) != 1 or len(places[0]) == len(above):
        return reason
    (place,) = places
    return f"{'.'.join((*place, key))}: there is no such key{suggest(key, _accepted(content, [*place]))}"


def message(error: BaseException | None) -> str:
    """Return the multi-line message of an error of the parser."""
    return getattr(error, "message", None) or str(error)


def names(constructor: Any) -> list[str]:
    """Return the names of the parameters of a function or class."""
    return list(inspect.signature(constructor).parameters)


def _accepted(content: dict, path: list[str]) -> list[str]:
    """Return the keys below `path`: parameters of `experiment`, of one of its dataclasses, or of the class named there.

    Only modules that the parser has imported already are searched.
    """
    if not path:
        return names(experiment)
    kind = inspect.signature(experiment).parameters[path[0]].annotation if path[0] in names(experiment) else None
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    node: Any = content
    for key in path:
        node = node.get("init_args", node).get(key) if isinstance(node, dict) else None
    written = str(node.get("class_path", "") if isinstance(node, dict) else node)
    found = _parameters(written)
    # Ours have what a config sets as keywords, after what the package gives them, such as the sizes of a model.
    own = [name for name, parameter in found.items() if parameter.kind is parameter.KEYWORD_ONLY]
    if own and not written.startswith("torch"):
        return own
    return [name for name in found if name not in ("args", "kwargs")]


def _parameters(path: str) -> dict[str, inspect.Parameter]:
    """The parameters of a class that the parser has imported already; none of others."""
    module, _, name = path.rpartition(".")
    with suppress(KeyError, ValueError, TypeError):
        return dict(inspect.signature(vars(sys.modules[module])[name]).parameters)
    return {}


def packages_of(node: Any) -> set[str]:
    """Return the top-level packages of all dotted paths in a config or in overrides."""
    if isinstance(node, dict):
        return set().union(*map(packages_of, node.values()))
    if isinstance(node, list):
        return set().union(*map(packages_of, node))
    path = str(node).split("=")[-1]
    return {path.split(".")[0]} if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", path) else set()


def allow_only(packages: Iterable[str]) -> None:
    """Allow configs read from now on to import only from `packages`. jsonargparse has one such list per process.

    The most specific entry decides, so all entries of earlier calls are allowed or denied again.
    """
    packages = set(packages) - {"jsonargparse"}
    for package in packages:
        if not all(part.isidentifier() for part in package.split(".")):
            raise ValueError(f"{package!r} is not a package name")
    _allowed.update(packages)
    allowed = {entry for entry in _allowed if within(entry, packages)}
    set_parsing_settings(
        import_path_denylist=["*", *sorted(_allowed - allowed)],
        import_path_allowlist=sorted(allowed),
        instantiate_subclass_spec_in_any=False,
    )

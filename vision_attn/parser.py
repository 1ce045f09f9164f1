"""The command line and YAML of a config, parsed by jsonargparse after the signature of `fit`.

jsonargparse imports what a config names: here it is told what it may import.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace, _stubs_resolver, set_parsing_settings

from vision_attn.engine.loop import fit
from vision_attn.mistakes import one_line
from vision_attn.trust import within

FORMAT = 2
"""The version of run folders that this code writes. It reads all versions up to it (`migrate`)."""

_allowed: set[str] = set()

if _stubs_resolver.typeshed_client_support:
    # Where a signature lacks types, jsonargparse looks for stubs. To learn where, it would start a Python in the
    # current folder, whose `import json` imports a json.py that lies there.
    _places = _stubs_resolver.tc.get_search_context(search_path=[Path(place) for place in sys.path if place])
    _stubs_resolver.stubs_resolver = _stubs_resolver.StubsResolver(search_context=_places)


def make_parser(skip: Iterable[str] = ()) -> ArgumentParser:
    """A parser of the parameters of `fit`, without those in `skip`."""
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--format", type=int, default=FORMAT)
    parser.add_function_arguments(fit, fail_untyped=False, skip=set(skip))
    return parser


def parse(
    parser: ArgumentParser, arguments: Sequence[str], content: dict, *, where: Path, overrides: Sequence[str]
) -> Namespace:
    """The config that `arguments` give, with every default.

    content: the same as plain values, for hints. where: the file, and overrides: the arguments, that may be to blame.
    Raises ValueError of one line that names the key.
    """
    try:
        return parser.parse_args(list(arguments))
    except Exception as error:  # mostly ArgumentError; a strange value can make the parser fail in other ways
        reason = one_line(message(error), lambda path: _accepted(content, path))
        key = reason.split(":")[0].split(".")[-1]
        place = "" if any(key in override for override in overrides) else f"{where}: "
        raise ValueError(f"{place}{reason}") from error


def message(error: BaseException | None) -> str:
    """What the parser says of a mistake, in many lines."""
    return getattr(error, "message", None) or str(error)


def names(constructor: Any) -> list[str]:
    """The parameters of a function or class."""
    return list(inspect.signature(constructor).parameters)


def _accepted(content: dict, path: list[str]) -> list[str]:
    """The keys that exist below `path`: arguments of `fit`, of one of its dataclasses, or of the class named there.

    Looks into modules that the parser has imported already, and imports none for a hint.
    """
    if not path:
        return names(fit)
    kind = inspect.signature(fit).parameters[path[0]].annotation if path[0] in names(fit) else None
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    node: Any = content
    for key in path:
        node = node.get("init_args", node).get(key) if isinstance(node, dict) else None
    module, _, name = str(node.get("class_path", "") if isinstance(node, dict) else node).rpartition(".")
    try:
        found = vars(sys.modules[module])[name]
        return [name for name in names(found) if name not in ("args", "kwargs")]
    except (KeyError, ValueError, TypeError):
        return []  # Only a hint is lost.


def packages_of(node: Any) -> set[str]:
    """The first parts of all dotted paths in a config, or in overrides."""
    if isinstance(node, dict):
        return set().union(*map(packages_of, node.values()))
    if isinstance(node, list):
        return set().union(*map(packages_of, node))
    path = str(node).split("=")[-1]
    return {path.split(".")[0]} if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", path) else set()


def allow_only(packages: Iterable[str]) -> None:
    """Configs read from here on may import from `packages` alone; jsonargparse holds one such list per process.

    Its most specific entry decides, so that those of earlier calls are allowed or denied again one by one.
    """
    packages = set(packages) - {"jsonargparse"}
    for package in packages:
        if not all(part.isidentifier() for part in package.split(".")):
            raise ValueError(f"{package!r} is no name of a package")
    _allowed.update(packages)
    allowed = {entry for entry in _allowed if within(entry, packages)}
    set_parsing_settings(
        import_path_denylist=["*", *sorted(_allowed - allowed)],
        import_path_allowlist=sorted(allowed),
        instantiate_subclass_spec_in_any=False,
    )

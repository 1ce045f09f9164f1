"""Read untrusted YAML files safely, with limits on size, nesting, aliases and time. `flat` returns the settings of a
config by dotted keys."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

from vision_attn.system.errors import UserError

BYTES = 2**18
"""The largest file, in bytes. The configs of this project have 2 KiB."""

NODES = 10_000
"""The largest number of keys and values, with aliases expanded. Parsing them takes about a second."""

DEPTH = 100
"""The deepest nesting of lists and mappings."""

CHARACTERS = 4096
"""The longest key or value; below the 4,300 digits that Python converts to an int."""


def read_yaml(path: Path) -> Any:
    """Read a YAML file in UTF-8: mappings with string keys, lists and single values.

    Raises UserError naming the file, and the line if known, if it cannot be read, is not YAML, or exceeds a bound of
    this module.
    """
    return parse_yaml(_text(path), path)


def parse_yaml(text: str, where: Path | str) -> Any:
    """Parse a text as `read_yaml` does.

    where: the source of the text in messages.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            _check(node, {})
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except _Excess as error:
        raise UserError(f"{where}, line {error.line}: {error}") from None
    except RecursionError:
        raise UserError(f"{where} is nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}{line} is not valid YAML: {_short(getattr(error, 'problem', error))}") from error
    except Exception as error:  # PyYAML raises various errors for values that do not fit their tag, such as `!!int x`
        raise UserError(f"{where} is not valid YAML: a value does not fit its tag ({_short(error)})") from error


def flat(node: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the settings of a nested config by their dotted keys, without class_path and init_args."""
    if not isinstance(node, dict):
        return {".".join(path): node}
    leaves: dict[str, Any] = {}
    for key, value in node.items():
        leaves |= flat(value, path if key in ("init_args", "class_path") else (*path, str(key)))
    return leaves


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(BYTES + 1)
        if len(content) > BYTES:
            raise UserError(f"{path} is not a config: it has more than {BYTES // 1024} KiB")
        return content.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a config: {error}") from error


def _short(reason: object) -> str:
    words = " ".join(str(reason).split())
    return words if len(words) <= 200 else f"{words[:200]} ..."


class _Excess(Exception):
    """Raised for a node that exceeds a bound or is not allowed."""

    def __init__(self, node: Any, said: str) -> None:
        super().__init__(said)
        self.line = node.start_mark.line + 1


class _Loader(yaml.SafeLoader):
    """A loader that stops at the first node past a bound, so that a large file takes little time."""

    nodes = depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.nodes += 1
        self.depth += 1
        if self.nodes > NODES or self.depth > DEPTH:
            raise _excess(self.peek_event(), self.nodes, self.depth)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Size(NamedTuple):
    nodes: int
    characters: int
    depth: int


def _check(node: Any, sizes: dict[int, _Size | None]) -> _Size:
    """Return the size of a node with all aliases expanded. Raises `_Excess`. An alias follows its anchor, so recursion
    is at most `DEPTH`.

    sizes: the sizes computed so far, by the id of the node; None for nodes in progress.
    """
    if id(node) in sizes:
        if (size := sizes[id(node)]) is None:
            raise _Excess(node, "contains itself")
        return size
    sizes[id(node)] = None
    children, own = [], 0
    if isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
        keys = set[str]()
        for key, _ in node.value:
            _check_key(key)
            if key.value in keys:  # PyYAML would keep the last
                raise _Excess(key, f"the key {_short(key.value)} occurs twice")
            keys.add(key.value)
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    elif node is not None:
        _check_value(node)
        own = len(node.value)
    below = [_check(child, sizes) for child in children]
    size = _Size(
        1 + sum(child.nodes for child in below),
        own + sum(child.characters for child in below),
        1 + max((child.depth for child in below), default=0),
    )
    if size.nodes > NODES or size.depth > DEPTH or size.characters > BYTES:
        raise _excess(node, size.nodes, size.depth)
    sizes[id(node)] = size
    return size


def _check_key(node: Any) -> None:
    """Raise `_Excess` unless a key is a string or `<<`, which merges another mapping."""
    if not isinstance(node, yaml.ScalarNode):
        raise _Excess(node, "a key must be text")
    if node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
        raise _Excess(node, f"a key must be text, not {_short(node.value)}")


def _check_value(node: yaml.ScalarNode) -> None:
    if len(node.value) > CHARACTERS:
        raise _Excess(node, f"a value has more than {CHARACTERS:,} characters")
    if any("\ud800" <= character <= "\udfff" for character in node.value):
        raise _Excess(node, "a value contains a lone surrogate")


def _excess(node: Any, nodes: int, depth: int) -> _Excess:
    if depth > DEPTH:
        return _Excess(node, f"is nested more than {DEPTH} levels deep")
    if nodes > NODES:
        return _Excess(node, f"has more than {NODES:,} keys and values, with aliases expanded")
    return _Excess(node, f"has more than {BYTES:,} characters, with aliases expanded")

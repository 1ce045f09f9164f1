"""One-line versions of jsonargparse's error messages: the key, what is wrong, and a suggestion.

Its messages nest one block per level of the config, each quoting the whole level. Here the levels become one dotted
path, and only the innermost cause is kept.
"""

import ast
import difflib
import re
import sys
from collections.abc import Callable, Iterable

# Messages quote untrusted files, so each of these expressions must run in linear time: none begins with a repetition
# that a search could restart at every character.
_LEVEL = re.compile(
    r"""(?: Parser\ key\ "(?P<key>[^"]+)":
          | Type\ .*?\ expects\ a\ function\ or\ a\ callable\ class:
          | Problem\ with\ given\ class_path\ '[^']*':
        )\s*""",
    re.VERBOSE,
)
_UNION = re.compile(r"Does not validate against any of the Union subtypes\s+Subtypes: [^\n]*\n *Errors: *\n")
_UNKNOWN = [
    re.compile(r"Option '([^']+)' is not accepted"),
    re.compile(r"Group '([\w.]+)' does not accept option '([^']+)'"),
    re.compile(r"unrecognized arguments: --([^\s=]+)"),
]
_TYPE = re.compile(r"Expected |Does not validate")
_VALUE = re.compile(r"\bGot value: (.*?)(?:\. Got value: |$)", re.DOTALL)
_GIVEN = re.compile(r"^ *Given value: (.*?)(?:\. Got value: |$)", re.MULTILINE)
_FORBIDDEN = re.compile(r"Importing '([^']+)' is not allowed")
_PLAIN = {"NoneType": "null", "int": "an int", "float": "a float", "bool": "true or false", "str": "text"}

LONGEST = 200
"""The largest number of characters of a quoted value."""

Accepted = Callable[[list[str]], Iterable[str]]
"""A function that returns the known keys below a path."""


def one_line(message: str, accepted: Accepted) -> str:
    """Reduce a nested message to one line such as `task.model.hidden_size: expected an int, got 'q'`."""
    path, cause = _descend(message)
    for pattern in _UNKNOWN:
        if unknown := pattern.match(cause):
            *path, key = [*path, *".".join(filter(None, unknown.groups())).split(".")]
            return f"{'.'.join([*path, key])}: there is no such key{suggest(key, accepted(path))}"
    if missing := re.match(r"the following arguments are required: ([\w., ]+)", cause):
        names = [".".join([*path, name.strip(". ")]) for name in missing[1].split(". ")[0].split(",")]
        return f"{', '.join(names)}: missing but required"
    return f"{'.'.join(path)}: {_said(cause)}" if path else _said(cause)


def forbidden(message: str) -> str | None:
    """Return the path that the parser refused to import, if that is the cause of `message`."""
    found = _FORBIDDEN.match(_descend(message)[1])
    return found[1] if found else None


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a suggestion such as `; did you mean hidden_size?`, or the whole list if no name is similar."""
    known = sorted(known)
    close = [name for name in known if name.startswith(word)][:3] or difflib.get_close_matches(word, known, n=3)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; choose from: {', '.join(known)}" if len(known) in range(1, 40) else ""


def _descend(text: str) -> tuple[list[str], str]:
    """Return the dotted path to the innermost message, and that message."""
    path: list[str] = []
    while True:
        text = text.strip()
        if level := _LEVEL.match(text):
            path += level["key"].split(".") if level["key"] else []
            text = text[level.end() :]
            continue
        union = _UNION.match(text)
        branches = re.split(r"\n *- ", "\n" + text[union.end() :])[1:] if union else []
        deeper = [branch for branch in branches if _LEVEL.match(branch)]
        raised = [branch for branch in branches if not _TYPE.match(branch)]  # an error in the user's own code
        if not deeper:
            return path, raised[0].partition("\n")[0] if raised else text
        text = deeper[0]


def _said(cause: str) -> str:
    if re.match(r"Expected a |Does not validate", cause):
        types = list(dict.fromkeys(re.findall(r"Expected an? (.+?)(?:\. Got value|\n|$)", cause)))
        value = _GIVEN.search(cause) or _VALUE.search(cause)
        if types and value:
            kinds = [_plain(kind) for kind in types if "dot import path" not in kind]
            if kinds:
                return f"expected {' or '.join(kinds)}, got {_literal(value[1])}"
    if found := re.match(r"module '([^']+)' has no attribute '([^']+)'", cause):
        module = sys.modules.get(found[1])
        classes = [name for name, value in vars(module).items() if isinstance(value, type)] if module else []
        return f"there is no {found[2]} in {found[1]}{suggest(found[2], classes)}"
    if found := re.match(r"Expected a dot import path string: (\S+)", cause):
        return f"expected a class path such as torch.optim.AdamW, got {found[1].rstrip('.')!r}"
    if found := re.match(r"Expected '([^']+)' to be .*?<class '([^']+)'>", cause):
        return f"{found[1]} is not a subclass of {found[2].split('.')[-1]}"
    if found := re.match(r"Import path (\S+) does not correspond to a subclass of (\w+)", cause):
        return f"{found[1]} is not a subclass of {found[2]}"
    if found := re.match(r"No module named '([A-Za-z_]\w*)'", cause):
        return f"No module named {found[1]!r}; if it is your own, name its folder in PYTHONPATH"
    if found := _FORBIDDEN.match(cause):
        return f"{found[1]} may not be imported here"
    return _short(" ".join(re.split(r",? but got \{|\.? Got value: ", cause)[0].split()).rstrip(". "))


def _plain(kind: str) -> str:
    name = re.sub(r"^<(?:class|enum) '(?:.*\.)?(\w+)'>$", r"\1", kind.strip()).removeprefix("typing.")
    if name.startswith("Literal["):
        return f"one of {name[len('Literal[') : -1]}"
    return _PLAIN.get(name, name)


def _literal(value: str) -> str:
    value = " ".join(value.split())
    if len(value) > LONGEST:
        return repr(_short(value))
    try:
        return repr(ast.literal_eval(value))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return repr(value)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."

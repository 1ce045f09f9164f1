"""Read the captions in a field of an annotation file (a text, a list, or a list written as text), and find records that
are marked as not to be used."""

import json
import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from vision_attn.system.errors import UserError
from vision_attn.system.files import brief

SAID = ("raw", "caption", "text", "sentence")
"""The keys of the text in an object that is a caption."""
TRUE = ("true", "1", "1.0", "yes", "t", "y")
MARKS: dict[str, tuple[str, ...]] = {
    "is_rejected": TRUE,  # VizWiz-Captions
    "is_precanned": TRUE,  # VizWiz-Captions: the worker chose the sentence for photographs that show nothing
    "foil": TRUE,  # FOIL-COCO: one word is wrong on purpose
    "ignore": TRUE,  # COCO
    "was_cancelled": TRUE,  # Label Studio
    "answer": ("reject", "ignore"),  # Prodigy
    "assignmentstatus": ("rejected",),  # Mechanical Turk
}
"""The fields by which data sets and annotation tools mark a caption that is not to be used, and the values that mark
it, as text in lower case."""
TOKEN = re.compile(
    r"""\s*(?:
        (?P<type>(?:(?:np|numpy)\.)?(?:str_|bytes_|array)(?=\()|,\s*dtype=[^,()\[\]]*(?=\))) |
        (?P<open>[\[({]) | (?P<close>[\])}]) | (?P<mark>[,:]) |
        (?P<text>[uUbB]?(?:'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")) |
        (?P<nothing>(?:None|nan|NaN|null|<NA>)(?!\w)) |
        (?P<other>True(?!\w)|False(?!\w)|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    )""",
    re.VERBOSE | re.DOTALL,
)
"""A part of a list as Python or NumPy writes it. Each alternative takes time that is linear in its length."""
JSON_OF = {"(": "[", ")": "]", "True": "true", "False": "false"}
CLOSING = {"[": "]", "(": ")", "{": "}"}
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5}|U0010[0-9a-fA-F]{4}|[nrt\\'\"])")
log = logging.getLogger(__name__)


class Marks:
    """Finds the records of a file that are marked as not to be used, and counts them."""

    def __init__(self, path: Path | str) -> None:
        self.path, self.count = path, 0
        self.names: dict[str, None] = {}

    def on(self, record: Any) -> bool:
        """Return whether a record has one of `MARKS`."""
        if not isinstance(record, dict):
            return False
        names = [name for key, name in marks_in(tuple(record)) if _is_set(name, record[key])]
        self.names |= dict.fromkeys(names)
        self.count += bool(names)
        return bool(names)

    def told(self) -> None:
        """Log how many records were marked, if any."""
        if self.count:
            log.warning(
                "%s: captions that are marked as not to be used (%s) and left out: %d; to keep them, remove the mark",
                self.path, ", ".join(self.names), self.count,
            )  # fmt: skip


@lru_cache(maxsize=1000)
def marks_in(keys: tuple[Any, ...]) -> tuple[tuple[Any, str], ...]:
    """Return the keys that are in `MARKS`, ignoring case, each with its name there."""
    named = ((key, re.sub(r"[\s-]+", "_", key.strip().lower())) for key in keys if isinstance(key, str))
    return tuple((key, name) for key, name in named if name in MARKS)


def _is_set(name: str, value: Any) -> bool:
    return isinstance(value, bool | int | float | str) and str(value).strip().lower() in MARKS[name]


def texts(where: str, value: Any, marks: Marks | None = None) -> list[str]:
    """Read the captions in a field: a text, a list of texts or of objects with a text, or such a list written as text,
    in JSON or as Python and NumPy print it. Marked objects and items without a value are left out.

    where: the place of the field, for messages.

    Raises UserError if the field holds something else.
    """
    if isinstance(value, str):
        listed = list_in(value)
        value = [value] if listed is None else listed
    captions = []
    for text in flat(value) if isinstance(value, list) else [value]:
        if marks and marks.on(text):
            continue
        said = next((text[key] for key in SAID if key in text), text) if isinstance(text, dict) else text
        if not isinstance(said, str):
            raise UserError(f"{where}: caption must be text, not {brief(said)}")
        captions.append(said)
    return captions


def list_in(text: str) -> list[Any] | None:
    """Parse a list of texts, or of objects with a text, written as text: in JSON, or as Python or NumPy prints it. None
    if the text is no such list. Nothing is evaluated."""
    text = text.strip()
    if not text.startswith(("[", "(", "array(")) or text[-1] not in "])":
        return None
    for read in (json.loads, lambda text: json.loads(_as_json(text))):
        try:
            value = read(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list) and all(map(_is_caption, items := flat(value))):
            return items
    return None


def _is_caption(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, Mapping) and any(isinstance(item.get(key), str) for key in SAID))


def flat(value: list[Any]) -> list[Any]:
    """Flatten a list of lists, without items that have no value."""
    items, left = [], [iter(value)]
    while left:
        for item in left[-1]:
            if isinstance(item, list):
                left.append(iter(item))
                break
            if item is not None:
                items.append(item)
        else:
            left.pop()
    return items


def _as_json(text: str) -> str:
    """Convert a list as Python or NumPy prints it to JSON. NumPy prints no commas between texts; a tuple has at least
    one. Raises UserError if the text is no list."""
    tokens: list[str] = []
    brackets: list[str] = []
    position, ended, commas = 0, False, 0
    while position < len(text):
        token = TOKEN.match(text, position)
        if token is None:
            raise UserError("not a list")
        position, token_type = token.end(), token.lastgroup or ""
        written = token[token_type].lstrip()
        if token_type == "type":
            continue
        if token_type == "mark":
            commas += len(brackets) == 1
        elif token_type == "close":
            if tokens[-1:] == [","]:
                tokens.pop()
            if not brackets or CLOSING[brackets.pop()] != written:
                raise UserError("not a list")
        elif ended:
            if brackets[-1:] != ["["]:
                raise UserError("not a list")
            tokens.append(",")
        if token_type == "open":
            brackets.append(written)
        ended = token_type not in ("open", "mark")
        tokens.append(_token(token_type, written))
    if text[0] == "(" and not commas:  # a text in parentheses, which is no tuple
        raise UserError("not a list")
    return "".join(tokens)


def _token(token_type: str, written: str) -> str:
    if token_type == "text":
        return json.dumps(_unquoted(written))
    if token_type == "nothing":
        return "null"
    return JSON_OF.get(written, written)


def _unquoted(literal: str) -> str:
    """Return the value of a string literal of Python."""
    is_bytes, literal = literal[0] in "bB", literal.lstrip("uUbB")
    text = ESCAPE.sub(_character, literal[1:-1])
    if is_bytes:
        return text.encode("latin-1", "replace").decode("utf-8", "replace")
    return text


def _character(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code[1:], 16)) if code[0] in "xuU" else {"n": "\n", "r": "\r", "t": "\t"}.get(code, code)

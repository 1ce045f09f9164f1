"""Values of a config on the command line: `--task.model.hidden_size=64`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.configuration.annotations import MISSING, is_mapping, items_of, single, takes_text
from vision_attn.configuration.trust import short
from vision_attn.system.bounded_yaml import parse_yaml
from vision_attn.system.errors import UserError


class Option(NamedTuple):
    """A value of the command line: `--task.model.hidden_size=64`."""

    path: tuple[str, ...]
    text: str


def parse_options(words: Sequence[str]) -> list[Option]:
    """Parse options `--KEY=VALUE`. Raises UserError for a word that is no option."""
    options = []
    for word in words:
        key, given, text = word.partition("=")
        if not re.fullmatch(r"--\w[\w-]*(\.[^.\s]+)*", key):
            raise UserError(f"{short(key)} is not an option: give --KEY=VALUE")
        if not given:
            raise UserError(f"{key}: its value is missing: give {key}=VALUE")
        path = tuple(name for name in key[2:].split(".") if name not in ("init_args", "class_path"))
        if not path:
            raise UserError(f"{key} is not an option: name the key of a config before it")
        options.append(Option(path, text))
    return options


def value_of(text: str, types_: Sequence[Any], key: str) -> Any:
    """Return the value of an option, written as YAML. It is text if the parameter takes text and YAML gives no other
    value that the parameter takes."""
    if not text and Path in types_:
        raise UserError(f"--{key} is empty: name a file or a folder")
    textual = any(map(takes_text, types_))
    try:
        value = parse_yaml(text, f"--{key}")
    except UserError:
        if textual:
            return text
        raise
    if isinstance(value, str):
        return text
    others = [type_ for type_ in types_ if type_ not in (str, Path)]
    fits = (
        isinstance(value, dict) and any(map(is_mapping, others))
        or isinstance(value, list) and any(items_of(type_, len(value)) is not None for type_ in others)
        or value is None and type(None) in others
        or any(single(value, type_) is not MISSING for type_ in others)
    )  # fmt: skip
    return text if not fits and (textual or isinstance(value, bool | int | float)) else value

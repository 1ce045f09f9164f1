"""List the keys of a config that can be overridden, with their values and what they mean.

Prints --KEY=VALUE, as `train` and `prepare` take it, a line for each key of CONFIG, defaults included; behind a #, the
first sentence of its description. With overrides, of the config that they give: --task.model=CLASS lists the keys of
that class.
"""

import argparse
import ast
import inspect
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from vision_attn.commands._hints import read_config
from vision_attn.console import say

NAMED = re.compile(r"(?:^[ \t]*|(?<=[.;] ))(`?\w+`?(?:, `?\w+`?)*)(?: \([^)]*\))?:[ \t]+(?=\S)", re.MULTILINE)
"""The beginning of a description, of a line or sentence: "size: ", "`size`, `width`: " or "lr (float, optional): "."""

ABBREVIATED = r"(?<!\bal)(?<!\beq)(?<!\be\.g)(?<!\.)"
"""Not behind these, a full stop ends a sentence."""

GENERAL = {
    "batch_size": "images in a batch",
    "dropout": "the probability with which each number is set to 0 in training",
    "hidden_size": "the size of the hidden state",
    "word_size": "the size of a word's embedding",
    "attention_size": "the size of the space in which states and annotation vectors are compared",
    "num_glimpses": "glimpses of an image, or of each character",
    "num_steps": "time steps",
    "normalise": "whether each downsampled image is divided by its largest intensity",
    "num_layers": "the number of layers",
    "num_heads": "the number of heads of each attention",
    "feedforward_size": "the size of the hidden layer between two attentions",
    "filters": "the channels of each convolution",
    "val_images": "images for validation",
    "test_images": "images for the test",
}
"""What names mean everywhere, where a docstring does not repeat it."""


class Setting(NamedTuple):
    """A key of a config as it is written on the command line."""

    key: str
    value: Any
    text: str
    """The first sentence of its description; of the class, if the value is one. Empty where there is none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn keys`."""
    parser.add_argument(
        "config", metavar="CONFIG", help="a file such as configs/sat_soft_scenes.yaml, or the name of an included one"
    )
    parser.set_defaults(overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """Print the keys. Raises ValueError as `train` does."""
    import yaml

    from vision_attn.config import dump
    from vision_attn.engine.run import Run

    content = yaml.safe_load(dump(read_config(arguments)))
    content.pop("format", None)
    described = {"run": descriptions(Run)}
    for key, value, text in settings(content, described):
        written = value if isinstance(value, str) else json.dumps(value)
        say(f"--{key}={shlex.quote(written)}" + f"  # {text}" * bool(text))
    return 0


def settings(node: Any, described: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Yield the keys of a config; a class is the value of its key. `described`: the descriptions of the keys below."""
    text = described.get(path[-1], "") if path else ""
    if not isinstance(node, dict) or not node:
        yield Setting(".".join(path), node, text if isinstance(text, str) else "")
        return
    if "class_path" in node:
        found = imported(node["class_path"])
        yield Setting(".".join(path), node["class_path"], first_sentence(inspect.getdoc(found) or ""))
        for key, value in (node.get("init_args") or {}).items():
            yield from settings(value, descriptions(found), (*path, key))
        return
    for key, value in node.items():
        yield from settings(value, text if isinstance(text, dict) else described, (*path, str(key)))


def imported(class_path: str) -> Any:
    """The class or function that a config names, which reading it has imported; None if it cannot be found."""
    module, _, name = class_path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def descriptions(constructor: Any) -> dict[str, str]:
    """The first sentence of the description of each parameter, from the docstrings of a class or function and, of a
    dataclass, from those of its fields."""
    kinds = inspect.getmro(constructor)[:-1] if inspect.isclass(constructor) else [constructor]
    found: dict[str, str] = {}
    for kind in reversed(kinds):
        documented = [kind.__doc__, kind.__init__.__doc__] if inspect.isclass(kind) else [kind.__doc__]
        for text in filter(None, documented):
            found |= in_docstring(inspect.cleandoc(text))
        if is_dataclass(kind):
            found |= of_fields(kind)
    prose = sentences(inspect.getdoc(constructor) or "")

    def description(name: str) -> str:
        if name in found and not found[name].startswith("as for"):
            return found[name]
        mentioned = next((plain(sentence) for sentence in prose if f"`{name}`" in sentence), "")
        return GENERAL.get(name) or found.get(name) or mentioned

    try:
        return {name: description(name) for name in inspect.signature(constructor).parameters}
    except (TypeError, ValueError):  # nothing that can be called, or nothing that says how
        return {}


def in_docstring(text: str) -> dict[str, str]:
    """The first sentence of each description "name: text" of a docstring; it ends at an empty line or at the next."""
    found: dict[str, str] = {}
    for paragraph in text.split("\n\n"):
        starts = list(NAMED.finditer(paragraph))
        ends = [*(start.start() for start in starts[1:]), len(paragraph)]
        for start, end in zip(starts, ends, strict=False):
            found |= dict.fromkeys(re.findall(r"\w+", start[1]), first_sentence(paragraph[start.end() : end]))
    return found


def of_fields(kind: type) -> dict[str, str]:
    """The first sentence of the docstring below each field of a dataclass."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
    except (OSError, SyntaxError):  # an installation without sources
        return {}
    return {
        field.target.id: first_sentence(inspect.cleandoc(below.value.value))
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(below, ast.Expr)
        and isinstance(getattr(below.value, "value", None), str)
    }


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line, without backquotes."""
    return plain(sentences(text)[0])


def sentences(text: str) -> list[str]:
    """The sentences of a docstring, each on one line; a list is one sentence for each item."""
    lines = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return [sentence for line in lines for sentence in re.split(rf"{ABBREVIATED}[.;] ", line)]


def plain(sentence: str) -> str:
    """A sentence without markup and full stop."""
    ended = sentence if sentence.endswith("..") else sentence.rstrip(".;")
    return ended.replace("`_", "").replace("`", "")

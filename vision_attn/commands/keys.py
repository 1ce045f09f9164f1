"""List the keys of a config that can be overridden, with their values and what they mean.

Prints --KEY=VALUE, as `train` and `prepare` take it, a line for each key of CONFIG, defaults included; behind a #, what
it means. With overrides, of the config that they give: --task.model=CLASS lists the keys of that class.
"""

import argparse
import ast
import inspect
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin

from vision_attn.commands._hints import add_config, read_config
from vision_attn.system.console import say

NAMED = re.compile(r"(?:^[ \t]*|(?<=[.;] ))(`?\w+`?(?:, `?\w+`?)*)(?: \([^)]*\))?:[ \t]+(?=\S)", re.MULTILINE)
"""The beginning of a description, of a line or sentence: "size: ", "`size`, `width`: " or "lr (float, optional): "."""

ABBREVIATED = r"(?<!\bal)(?<!\beq)(?<!\be\.g)(?<!\.)"
"""Not behind these, a full stop ends a sentence."""

LONGEST = 200
"""Characters of a description, as far as it consists of several sentences."""

GENERAL = {
    "folder": "where the four files of MNIST are",
    "download": "whether to download what is missing",
    "batch_size": "images in a batch; auto: as many as fit into memory, up to 512",
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn keys`."""
    add_config(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the keys. Raises UserError as `train` does."""
    from vision_attn.configuration.run_settings import Run

    described = {"run": descriptions(Run)}
    for key, value, text in settings(read_config(arguments).content(), described):
        written = value if isinstance(value, str) else json.dumps(value)
        say(f"--{key}={shlex.quote(written)}" + f"  # {text}" * bool(text))
    return 0


def settings(node: Any, described: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any, str]]:
    """Yield the keys of a config as on the command line, with their values and descriptions: of a class, which is the
    value of its key, the first sentence. `described`: the descriptions of the keys below."""
    text = described.get(path[-1], "") if path else ""
    if not isinstance(node, dict) or not node:
        yield ".".join(path), node, text if isinstance(text, str) else ""
        return
    if "class_path" in node:
        module, _, name = node["class_path"].rpartition(".")  # imported when the config was read
        found = getattr(sys.modules.get(module), name, None)
        yield ".".join(path), node["class_path"], plain(sentences(inspect.getdoc(found) or "")[0])
        below = descriptions(found)
        for key, value in (node.get("init_args") or {}).items():
            yield from settings(value, below, (*path, key))
        return
    for key, value in node.items():
        yield from settings(value, text if isinstance(text, dict) else described, (*path, str(key)))


def descriptions(constructor: Any) -> dict[str, str]:
    """The description of each parameter, from the docstrings of a class or function and, of a dataclass, from those of
    its fields; with its choices, where it has some."""
    try:
        parameters = inspect.signature(constructor).parameters
    except (TypeError, ValueError):  # nothing that can be called, or nothing that says how
        return {}
    kinds = inspect.getmro(constructor)[:-1] if inspect.isclass(constructor) else [constructor]
    found: dict[str, str] = {}
    for kind in reversed(kinds):
        documented = [kind.__doc__, kind.__init__.__doc__] if inspect.isclass(kind) else [kind.__doc__]
        for text in filter(None, documented):
            found |= in_docstring(inspect.cleandoc(text), parameters)
        if is_dataclass(kind):
            found |= of_fields(kind)
    prose = sentences(inspect.getdoc(constructor) or "")

    def description(name: str) -> str:
        own = found.get(name, "")
        if elsewhere := re.match(r"as for (\w+)", own):
            other = getattr(sys.modules[constructor.__module__], elsewhere[1], None)
            own = GENERAL.get(name) or descriptions(other).get(name) or own
        mentioned = next((plain(sentence) for sentence in prose if f"`{name}`" in sentence), "")
        return own or GENERAL.get(name) or mentioned

    return {name: with_choices(description(name), each.annotation) for name, each in parameters.items()}


def with_choices(text: str, annotation: Any) -> str:
    """A description with the values that a parameter may have, if these are few and not all are mentioned."""
    from vision_attn.configuration.annotations import types_of

    literals = [kind for kind in types_of(annotation) if get_origin(kind) is Literal]
    values = dict.fromkeys(str(value) for kind in literals for value in get_args(kind))
    return text if all(value in text for value in values) else f"{text} ({' or '.join(values)})".strip()


def in_docstring(text: str, known: Iterable[str]) -> dict[str, str]:
    """Each description "name: text" of a docstring; it ends at an empty line or at the next."""
    found: dict[str, str] = {}
    for paragraph in text.split("\n\n"):
        starts = [start for start in NAMED.finditer(paragraph) if set(re.findall(r"\w+", start[1])) & set(known)]
        ends = [*(start.start() for start in starts[1:]), len(paragraph)]
        for start, end in zip(starts, ends, strict=False):
            found |= dict.fromkeys(re.findall(r"\w+", start[1]), shortened(paragraph[start.end() : end]))
    return found


def of_fields(kind: type) -> dict[str, str]:
    """The docstring below each field of a dataclass."""
    try:
        (defined,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        body = defined.body if isinstance(defined, ast.ClassDef) else []
    except (OSError, SyntaxError):  # a class of an interactive session
        return {}
    return {
        field.target.id: shortened(inspect.cleandoc(below.value.value))
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def shortened(text: str) -> str:
    """The first sentences of a description, of `LONGEST` characters together unless the first one is longer."""
    first, *others = sentences(text)
    for sentence in others:
        if len(first) + len(sentence) > LONGEST:
            break
        first += (". " if sentence[:1].isupper() else "; ") + sentence
    return plain(first)


def sentences(text: str) -> list[str]:
    """The sentences of a docstring, each on one line; a list is one sentence for each item."""
    lines = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return [sentence for line in lines for sentence in re.split(rf"{ABBREVIATED}[.;] ", line)]


def plain(sentence: str) -> str:
    """A sentence without markup and full stop."""
    ended = sentence if sentence.endswith("..") else sentence.rstrip(".;")
    return ended.replace("`_", "").replace("`", "")

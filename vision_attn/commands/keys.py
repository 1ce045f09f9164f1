"""List the keys of a config that can be overridden, with their values and what they mean.

Prints a line for each key of CONFIG, defaults included: --KEY=VALUE, as `train` and `prepare` take it, and its meaning
after a #. Overrides change the config first: --task.model=CLASS lists the keys of that class.
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
"""Matches the beginning of a description at the start of a line or sentence: "size: ", "`size`, `width`: " or "lr
(float, optional): "."""

ABBREVIATED = r"(?<!\bal)(?<!\beq)(?<!\be\.g)(?<!\.)"
"""A full stop ends a sentence unless it follows one of these."""

LONGEST = 200
"""The largest number of characters of a description with several sentences."""

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
"""Descriptions of names that mean the same everywhere, for docstrings that do not repeat them."""


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
    """Yield the keys of a config as on the command line, with their values and descriptions. A class, which is the
    value of its key, is described by its first sentence. described: the descriptions of the keys below."""
    text = described.get(path[-1], "") if path else ""
    if not isinstance(node, dict) or not node:
        yield ".".join(path), node, text if isinstance(text, str) else ""
        return
    if "class_path" in node:
        module, _, name = node["class_path"].rpartition(".")  # imported when the config was read
        constant = getattr(sys.modules.get(module), name, None)
        yield ".".join(path), node["class_path"], plain(sentences(inspect.getdoc(constant) or "")[0])
        below = descriptions(constant)
        for key, value in (node.get("init_args") or {}).items():
            yield from settings(value, below, (*path, key))
        return
    for key, value in node.items():
        yield from settings(value, text if isinstance(text, dict) else described, (*path, str(key)))


def descriptions(constructor: Any) -> dict[str, str]:
    """Return the description of each parameter, from the docstrings of a class or function and of a dataclass's fields,
    with the choices of parameters that have some."""
    try:
        parameters = inspect.signature(constructor).parameters
    except (TypeError, ValueError):  # nothing that can be called, or nothing that says how
        return {}
    kinds = inspect.getmro(constructor)[:-1] if inspect.isclass(constructor) else [constructor]
    descriptions_of: dict[str, str] = {}
    for cls in reversed(kinds):
        documented = [cls.__doc__, cls.__init__.__doc__] if inspect.isclass(cls) else [cls.__doc__]
        for text in filter(None, documented):
            descriptions_of |= in_docstring(inspect.cleandoc(text), parameters)
        if is_dataclass(cls):
            descriptions_of |= of_fields(cls)
    prose = sentences(inspect.getdoc(constructor) or "")

    def description(name: str) -> str:
        own = descriptions_of.get(name, "")
        if elsewhere := re.match(r"as for (\w+)", own):
            other = getattr(sys.modules[constructor.__module__], elsewhere[1], None)
            own = GENERAL.get(name) or descriptions(other).get(name) or own
        mentioned = next((plain(sentence) for sentence in prose if f"`{name}`" in sentence), "")
        return own or GENERAL.get(name) or mentioned

    return {name: with_choices(description(name), parameter.annotation) for name, parameter in parameters.items()}


def with_choices(text: str, annotation: Any) -> str:
    """Add the values that a parameter may have to its description, if these are few and not all mentioned."""
    from vision_attn.configuration.annotations import types_of

    literals = [annotated for annotated in types_of(annotation) if get_origin(annotated) is Literal]
    values = dict.fromkeys(str(value) for literal in literals for value in get_args(literal))
    return text if all(value in text for value in values) else f"{text} ({' or '.join(values)})".strip()


def in_docstring(text: str, known: Iterable[str]) -> dict[str, str]:
    """Return each description "name: text" of a docstring; it ends at an empty line or at the next."""
    described: dict[str, str] = {}
    for paragraph in text.split("\n\n"):
        starts = [start for start in NAMED.finditer(paragraph) if set(re.findall(r"\w+", start[1])) & set(known)]
        ends = [*(start.start() for start in starts[1:]), len(paragraph)]
        for start, end in zip(starts, ends, strict=False):
            described |= dict.fromkeys(re.findall(r"\w+", start[1]), shortened(paragraph[start.end() : end]))
    return described


def of_fields(cls: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass."""
    try:
        (defined,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
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
    """Return the first sentences of a description, up to `LONGEST` characters, or the first one if it is longer."""
    first, *others = sentences(text)
    for sentence in others:
        if len(first) + len(sentence) > LONGEST:
            break
        first += (". " if sentence[:1].isupper() else "; ") + sentence
    return plain(first)


def sentences(text: str) -> list[str]:
    """Split a docstring into sentences, each on one line; each item of a list is a sentence."""
    lines = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return [sentence for line in lines for sentence in re.split(rf"{ABBREVIATED}[.;] ", line)]


def plain(sentence: str) -> str:
    """Remove markup and the full stop from a sentence."""
    ended = sentence if sentence.endswith("..") else sentence.rstrip(".;")
    return ended.replace("`_", "").replace("`", "")

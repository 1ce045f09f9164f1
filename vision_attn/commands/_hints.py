"""Read a config from the command line; for an unknown file or key, suggest a similar one."""

import argparse
import difflib
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision_attn.system.errors import UserError
from vision_attn.system.files import ours, shipped

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.configuration.reader import UnknownKey

HELD = "\0"
"""A character that no command line contains."""


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG, and any option for its keys."""
    text = "a file such as configs/sat_soft_scenes.yaml, or the name of an included one"
    parser.add_argument("config", metavar="CONFIG", help=text)
    parser.set_defaults(overrides=[])


def read_config(arguments: argparse.Namespace) -> Any:
    """Read the config from `arguments.config` and `arguments.overrides`.

    Raises UserError for an error in either, and suggests a file or a key.
    """
    from vision_attn.configuration.config import read
    from vision_attn.configuration.reader import UnknownKey

    path = config_file(arguments.config)
    options_only(arguments.overrides)
    try:
        return read(path, arguments.overrides)
    except UnknownKey as error:  # of an option
        raise UserError(meant(error, read(path).content())) from error


def options_only(overrides: Sequence[str]) -> None:
    """Raise UserError unless all overrides are options, as `joined` left them."""
    for word in overrides:
        if not word.startswith("--"):
            hint = f": did you mean --{word}?" if "=" in word else ""
            if os.path.lexists(word):
                hint = f": for the file of this name, write ./{word}"
            raise UserError(f"{word} is not an option{hint}")


def config_file(name: str | Path) -> Path:
    """Return the path of the config file `name`, which may also be the name of a config that comes with the project,
    such as `sat_soft_scenes` or `configs/sat_soft_scenes.yaml`.

    Raises UserError with suggestions if it does not exist.
    """
    path = Path(name)
    if not str(name):
        raise UserError("the name of the config is empty: give a file such as configs/sat_soft_scenes.yaml")
    if os.path.isdir(path):  # Path.is_dir raises for names that are too long
        inside = path / "config.yaml"
        hint = f"its config is {inside}" if inside.is_file() else "give a file such as configs/sat_soft_scenes.yaml"
        raise UserError(f"{path} is a folder, not a config: {hint}")
    named = Path("configs", f"{path.stem if path.suffix == '.yaml' else path}.yaml")
    for place in (path, shipped(path), *([shipped(named)] if path.parent == Path() else [])):
        if os.path.exists(place):
            return shown(place)
    folders = dict.fromkeys([path.parent, Path("configs"), Path("runs") / path.name, shown(ours() / "configs")])
    files = [file for folder in folders if os.path.isdir(folder) for file in sorted(folder.glob("*.yaml"))]
    close = _similar(path.stem, files)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    if not hint and path.name == str(name) and not path.suffix:
        hint = f"; the included configs are in {shown(ours() / 'configs')}"
    raise UserError(f"{path} does not exist{hint}")


def shown(path: Path) -> Path:
    """Return `path`, relative if it lies below the working directory."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _similar(stem: str, files: Sequence[Path]) -> list[str]:
    """Return the files called `stem`, or else at most three with similar names."""
    named = dict[str, str]()
    for file in files:
        known = Path("configs", file.name) if file.is_relative_to(ours()) else file  # a wheel's own path is long
        named.setdefault(file.parent.name if file.stem == "config" else file.stem, str(known))
    names = [stem] if stem in named else difflib.get_close_matches(stem, named, n=2, cutoff=0.75)
    return [named[name] for name in names or [name for name in named if name.startswith(stem)][:3]]


def meant(error: "UnknownKey", config: Mapping[str, Any], options: Iterable[str] = ()) -> str:
    """Return the message of `error`, with the keys of `config` that end in the same or a similar name.

    For example, `--run.epochs` is suggested for `--epochs`. `options` are those of the verb. The message is unchanged
    if no key is similar, or if the key begins correctly and the message has a suggestion already.
    """
    from vision_attn.system.bounded_yaml import flat

    key, message = error.key, str(error)
    if key.split(".")[0] in config and "did you mean" in message:
        return message
    places = {option.replace("-", "_"): [option.replace("_", "-")] for option in options}
    for path in flat(config):
        places.setdefault(path.rpartition(".")[2], []).append(path)
    name = key.rpartition(".")[2].replace("-", "_")
    similar = partial(difflib.get_close_matches, name, places)
    names = [name] if name in places else similar(n=2, cutoff=0.75) or similar(n=1, cutoff=0.65)
    close = [f"--{path}" for name in names for path in sorted(places[name], key=lambda path: path.count("."))[:3]]
    if f"--{key}" in close:  # an option of other verbs
        return f"--{key} is no option of this command"
    return f"--{key}: there is no such key; did you mean {' or '.join(close)}?" if close else message


def joined(words: Sequence[str], known: Container[str]) -> list[str]:
    """Join each option with the word after it, as --KEY=VALUE, unless it is one of the `known` options of a verb.

    The parser does not know that options of a config take a value. In `--run.epochs 3 CONFIG` it would take `3` for
    CONFIG.
    """
    parts: list[str] = []
    for word in words:
        before = parts[-1] if parts else ""
        alone = before.startswith("--") and len(before) > 2 and "=" not in before and before not in known
        if alone and not word.startswith("--"):
            parts[-1] = f"{before}={word}"
        else:
            parts.append(word)
    return parts


def spaces_held(words: Sequence[str], known: Container[str]) -> list[str]:
    """Replace the spaces in options of a config, such as --data.sources=[{name: mine, ...}], by `HELD`. argparse takes
    a word with a space for a name, such as that of a run.

    known: the options of the verb.
    """
    end = words.index("--") if "--" in words else len(words)

    def held(word: str) -> str:
        key, equals, _ = word.partition("=")
        return word.replace(" ", HELD) if key.startswith("--") and equals and key not in known else word

    return [*map(held, words[:end]), *words[end:]]

"""What a mistake on the command line probably meant: another config file, or a key further down in the config."""

import argparse
import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import vision_attn


def read_config(arguments: argparse.Namespace) -> Any:
    """The config that `arguments.config` and `arguments.overrides` describe.

    Raises ValueError for a mistake in either, with the file or the key that was probably meant.
    """
    import yaml

    from vision_attn.config import dump, read

    path = config_file(arguments.config)
    options_only(arguments.overrides)
    try:
        return read(path, arguments.overrides)
    except ValueError as error:
        if not unknown_key(str(error)) or not arguments.overrides:
            raise
        raise ValueError(meant(str(error), yaml.safe_load(dump(read(path))))) from error


def options_only(overrides: Sequence[str]) -> None:
    """Raise ValueError for a word among the overrides that is neither an option, --KEY=VALUE, nor the value of one."""
    for before, word in pairwise(["", *overrides]):
        value = before.startswith("--") and "=" not in before
        if not word.startswith("--") and not value:
            hint = f": did you mean --{word}?" if "=" in word else ""
            if os.path.lexists(word):
                hint = f": for the file of this name, write ./{word}"
            raise ValueError(f"{word} is no option{hint}")


def config_file(name: str | Path) -> Path:
    """The config file called `name`. Raises ValueError with the file that was probably meant where there is none."""
    path = Path(name)
    if os.path.isdir(path):  # Path.is_dir raises for names that are too long
        inside = path / "config.yaml"
        hint = f"its config is {inside}" if inside.is_file() else "give a file such as configs/sat_soft_scenes.yaml"
        raise ValueError(f"{path} is a folder, not a config: {hint}")
    if os.path.exists(path):
        return path
    checkout = Path(vision_attn.__file__).parent.parent
    folders = dict.fromkeys([path.parent, Path("configs"), Path("runs") / path.name, shown(checkout / "configs")])
    files = [file for folder in folders if os.path.isdir(folder) for file in sorted(folder.glob("*.yaml"))]
    close = _unlike(path.stem, files)
    raise ValueError(f"{path} does not exist" + (f"; did you mean {' or '.join(close)}?" if close else ""))


def shown(path: Path) -> Path:
    """`path` as one would type it here: relative where it lies below the working folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _unlike(stem: str, files: Sequence[Path]) -> list[str]:
    """The files called `stem`, else at most three whose names come close."""
    named = {}
    for file in files:
        named.setdefault(file.parent.name if file.stem == "config" else file.stem, str(file))
    names = [stem] if stem in named else difflib.get_close_matches(stem, named, n=2, cutoff=0.75)
    return [named[name] for name in names or [name for name in named if name.startswith(stem)][:3]]


def unknown_key(message: str) -> str | None:
    """The key that `message` calls unknown; None for a message about something else."""
    found = re.match(r"(?:--)?([\w.]+): there is no such key", message)
    return found[1] if found else None


def meant(message: str, config: Mapping[str, Any], options: Iterable[str] = ()) -> str:
    """`message`, that a key does not exist, with the keys of `config` that end in the same name, or in one like it.

    `--epochs=3` was probably `--run.epochs=3`. `options`: the verb's own. Unchanged where nothing comes close, or where
    the key has the right beginning: then the message already knows better.
    """
    key = unknown_key(message)
    if key is None or (key.split(".")[0] in config and "did you mean" in message):
        return message
    places = {option.replace("_", "-"): [option.replace("_", "-")] for option in options}
    for path in dotted(config):
        places.setdefault(path.rpartition(".")[2], []).append(path)
    name = key.rpartition(".")[2]
    names = [name] if name in places else difflib.get_close_matches(name, places, n=2, cutoff=0.75)
    close = [f"--{path}" for each in names for path in sorted(places[each], key=lambda path: path.count("."))[:3]]
    return f"--{key}: there is no such key; did you mean {' or '.join(close)}?" if close else message


def dotted(config: Any, path: tuple[str, ...] = ()) -> Iterable[str]:
    """The keys of a config as they are written on the command line, without class_path and init_args."""
    for key, value in config.items() if isinstance(config, Mapping) else ():
        below = path if key == "init_args" else (*path, str(key))
        if key not in ("init_args", "class_path"):
            yield ".".join(below)
        yield from dotted(value, below)

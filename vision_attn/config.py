"""From a YAML file to the arguments of `fit`, and from a run folder back to the task it trained.

The signature of `fit`, and below it the constructors that the file names, are the schema: nothing is declared twice.
"""

import inspect
import os
import re
from argparse import ArgumentError
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentParser, Namespace, set_parsing_settings

from vision_attn.engine import checkpoint
from vision_attn.engine.folders import claim as lock
from vision_attn.engine.loop import fit
from vision_attn.engine.weights import load_weights
from vision_attn.files import replacing
from vision_attn.mistakes import one_line
from vision_attn.task import Source, Task

FORMAT = 1
"""The version of run folders that this code writes and reads."""

HARMLESS = ("vision_attn", "torch.nn", "torch.optim", "torchvision")
"""What the config of a run folder may name. The rest of torch is left out: torch.hub, say, runs code from elsewhere."""

FREE = ("run.folder", "run.log_every", "run.save_every", "run.show", "run.device", "run.wandb")
"""Keys that may change when a run goes on: they do not change its weights."""

_allowed: set[str] = set()


def read(path: str | Path, overrides: Sequence[str] = ()) -> Namespace:
    """The config in the YAML file `path`, with overrides such as "--task.model.hidden_size=256", checked and complete.

    `run.folder` is `runs/NAME` unless given. Raises ValueError naming the key that is wrong.
    """
    path = Path(path)
    content = load(path)
    _allow_only({*HARMLESS, *_packages(content), *_packages(list(overrides))})
    arguments = [f"--run.folder={Path('runs') / path.stem}", f"--config={path}", *overrides]
    return _parse(_parser(), arguments, content, where=path, overrides=overrides)


def build(config: Namespace) -> dict[str, Any]:
    """The arguments of `fit`. Seeds torch first, so that whatever is drawn in constructors follows from run.seed."""
    torch.manual_seed(config.run.seed)
    parts = _parser().instantiate(config)
    return {name: parts[name] for name in inspect.signature(fit).parameters}


def claim(config: Namespace) -> Path:
    """Write the resolved config into its run folder, and return the folder.

    Raises ValueError when the folder holds a run that was trained with other settings, or is being trained.
    """
    folder = Path(config.run.folder)
    if os.environ.get("RANK", "0") == "0":  # of the processes of torchrun, one writes
        with lock(folder):
            _keep_to(folder, yaml.safe_load(dump(config)))
            with replacing(folder / "config.yaml") as temporary:
                temporary.write_text(dump(config), encoding="utf-8")
    return folder


def dump(config: Namespace) -> str:
    """The resolved config as YAML, with every default spelled out."""
    shown = config.clone()
    shown.pop("config", None)
    head = "# Written by vision-attn: the whole config of this run, defaults included.\n"
    return head + _parser().dump(shown, skip_unset=False)


def load(path: Path) -> dict[str, Any]:
    """A config file as plain values. Raises ValueError for a missing file, bad YAML, or another version's format."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a config: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{line} is not valid YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no config: it must hold keys such as {', '.join(_names(fit))}")
    version = content.get("format", FORMAT)
    if version != FORMAT:
        raise ValueError(
            f"{path} has format {version}, this version of vision_attn reads format {FORMAT}: "
            "use the version that wrote it, or train again"
        )
    unknown = [key for key in content if key not in (*_names(fit), "format")]
    if unknown:
        reason = one_line(f"Option '{unknown[0]}' is not accepted", lambda _: _names(fit))
        raise ValueError(f"{path}: {reason}")
    return content


def open_run(
    folder: str | Path, *, trust: Sequence[str] = (), overrides: Sequence[str] = ()
) -> tuple[Task, Source, dict[str, Any]]:
    """The task with its best weights, its source, and the config, from a run folder or from a copy of its `best/`.

    Overrides such as "--data.images=FOLDER" say where the data lies now. A run folder may come from anyone: weights
    are safetensors, and its config may name nothing but parts of vision_attn, torch and torchvision. Packages that
    `trust` names may be imported too, which runs their code. Raises ValueError saying what is missing or wrong.
    """
    best = find_best(Path(folder))
    written = best / "config.yaml"
    content = load(written)
    _allow_only({*HARMLESS, *trust})
    parser = _parser(skip={"optimizer", "schedule", "run"})
    given = [f"--{key}={yaml.safe_dump(content[key])}" for key in ("task", "data") if key in content]
    try:
        config = _parse(parser, [*given, *overrides], content, where=written, overrides=overrides)
    except ValueError as error:
        foreign = re.search(r"(\S+) may not be imported", str(error))
        if not foreign:
            raise
        raise ValueError(
            f"{written} names {foreign[1]}, which is code from elsewhere: if you trust it, "
            f"add --trust {foreign[1].split('.')[0]}"
        ) from error
    parts = parser.instantiate(config)
    parts.data.restore(best)
    task = parts.task(parts.data)
    load_weights(task, best)
    return task.eval(), parts.data, {**content, **yaml.safe_load(parser.dump(config, skip_unset=False))}


def find_best(folder: Path) -> Path:
    """The folder with the weights: `folder`/best of a run, or `folder` itself. Raises ValueError for neither."""
    for place in (folder / "best", folder):
        if (place / "model.safetensors").is_file() and (place / "config.yaml").is_file():
            return place
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give the folder of a run, such as runs/demo")
    if (folder / "last").exists():
        raise ValueError(f"{folder} has no best/ yet: the run must reach its first validation")
    raise ValueError(f"{folder} is no run: neither it nor its best/ holds model.safetensors and config.yaml")


def _keep_to(folder: Path, new: dict) -> None:
    """Refuse a config under which the run in `folder`, if it has begun, would be another."""
    written = folder / "config.yaml"
    if not written.exists() or not checkpoint.begun(folder):
        return
    free = FREE if new.get("schedule") else (*FREE, "run.epochs")
    different = [said for key, said in _differences(load(written), new).items() if key not in free]
    if different:
        shown = ", ".join(different[:6]) + (f" and {len(different) - 6} more" if len(different) > 6 else "")
        raise ValueError(
            f"{folder} holds a run with other settings ({shown}): "
            "set them back, give another --run.folder, or delete that folder"
        )


def _parser(skip: Iterable[str] = ()) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--format", type=int, default=FORMAT)
    parser.add_function_arguments(fit, fail_untyped=False, skip=set(skip))
    return parser


def _parse(
    parser: ArgumentParser, arguments: Sequence[str], content: dict, *, where: Path, overrides: Sequence[str]
) -> Namespace:
    try:
        return parser.parse_args(list(arguments))
    except (ArgumentError, ValueError, TypeError) as error:
        reason = one_line(getattr(error, "message", None) or str(error), lambda path: _accepted(content, path))
        key = reason.split(":")[0].split(".")[-1]
        place = "" if any(key in override for override in overrides) else f"{where}: "
        raise ValueError(f"{place}{reason}") from error


def _names(constructor: Any) -> list[str]:
    return list(inspect.signature(constructor).parameters)


def _accepted(content: dict, path: list[str]) -> list[str]:
    """The keys that exist below `path`: arguments of `fit`, of one of its dataclasses, or of the class named there."""
    if not path:
        return _names(fit)
    kind = inspect.signature(fit).parameters[path[0]].annotation if path[0] in _names(fit) else None
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    node: Any = content
    for key in path:
        node = node.get("init_args", node).get(key) if isinstance(node, dict) else None
    module, _, name = (node.get("class_path", "") if isinstance(node, dict) else str(node)).rpartition(".")
    try:
        return [name for name in _names(getattr(import_module(module), name)) if name not in ("args", "kwargs")]
    except (ImportError, AttributeError, ValueError, TypeError):
        return []  # Only a hint is lost.


def _packages(node: Any) -> set[str]:
    """The first parts of all dotted paths in a config, or in overrides."""
    if isinstance(node, dict):
        return set().union(*map(_packages, node.values()))
    if isinstance(node, list):
        return set().union(*map(_packages, node))
    path = str(node).split("=")[-1]
    return {path.split(".")[0]} if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", path) else set()


def _allow_only(packages: Iterable[str]) -> None:
    """Configs read from here on may import from `packages` alone; jsonargparse holds one such list per process."""
    packages = set(packages) - {"jsonargparse"}
    for package in packages:
        if not all(part.isidentifier() for part in package.split(".")):
            raise ValueError(f"{package!r} is no name of a package")
    set_parsing_settings(
        import_path_denylist=["*", *sorted(_allowed - packages)],
        import_path_allowlist=sorted(packages),
        instantiate_subclass_spec_in_any=False,
    )
    _allowed.update(packages)


def _flat(node: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(node, dict):
        return {".".join(path): node}
    leaves: dict[str, Any] = {}
    for key, value in node.items():
        leaves |= _flat(value, path if key in ("init_args", "class_path") else (*path, str(key)))
    return leaves


def _differences(old: dict, new: dict) -> dict[str, str]:
    """Keys whose values differ, with both values."""
    before, after = _flat(old), _flat(new)
    return {
        key: f"{key} was {before.get(key)}, is {after.get(key)}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    }

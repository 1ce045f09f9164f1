"""From a YAML file to the arguments of training.

The signature of `experiment`, and below it the constructors that the file names, are the schema: nothing is declared
twice.
"""

import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import Namespace

from vision_attn.configuration import trust as trusted
from vision_attn.configuration.moves import moved, moved_override
from vision_attn.configuration.parser import FORMAT, allow_only, make_parser, names, packages_of, parse
from vision_attn.configuration.schema import experiment
from vision_attn.system.bounded_yaml import read_yaml
from vision_attn.system.files import scratch, shipped
from vision_attn.system.mistakes import suggest

OURS = ("vision_attn", "torch.nn", "torch.optim", "torchvision")
"""Packages whose classes a user's own config may name without `--trust`. For run folders see `trust`."""


HEAD = "# Written by vision-attn: the whole config of this run, defaults included.\n"


def read(path: str | Path, overrides: Sequence[str] = ()) -> Namespace:
    """The config in the YAML file `path`, with overrides such as "--task.model.hidden_size=256", checked and complete.

    `run.folder` is `runs/NAME` unless given. Of `task`, what is not written in the file is that of the run which
    `run.start_from` names, if the file names no class there. Raises ValueError naming the key that is wrong.
    """
    path, overrides = Path(path), [moved_override(override) for override in overrides]
    written = read_yaml(path)
    content = _with_task(_current(written, where=path), overrides, where=path)
    allow_only({*OURS, *packages_of(content), *packages_of(list(overrides))})
    with nullcontext(path) if content == written else _rewritten(path.name, content) as file:
        arguments = [f"--run.folder={Path('runs') / path.stem}", f"--config={file}", *overrides]
        config = parse(make_parser(), arguments, content, where=path, overrides=overrides)
    config.config = None
    return config


def _with_task(content: dict[str, Any], overrides: Sequence[str], *, where: Path) -> dict[str, Any]:
    """Complete a config whose `task` names no class by the task of the run that it starts from."""
    run, task = content.get("run"), content.get("task") or {}
    start = run.get("start_from") if isinstance(run, dict) else None
    for word, following in zip(overrides, [*overrides[1:], ""], strict=False):  # without overrides there is one more
        key, given, value = word.partition("=")
        if key == "--run.start_from":
            start = value if given else following
    if not isinstance(start, str) or not isinstance(task, dict) or "class_path" in task:
        return content
    written = find_best(shipped(start)) / "config.yaml"
    try:
        theirs = trusted.checked(
            load(written).get("task"), inspect.signature(experiment).parameters["task"].annotation, "task"
        )
    except trusted.Untrusted as error:
        raise ValueError(f"{written} names classes of another package: copy its task into {where}") from error
    if not isinstance(theirs, dict):
        raise ValueError(f"{written} has no task")
    options = task.get("init_args", {})
    return content | {"task": theirs | {"init_args": theirs.get("init_args", {}) | options}}


def build(config: Namespace) -> dict[str, Any]:
    """The arguments of training. Seeds torch first, so that what constructors sample follows from run.seed."""
    torch.manual_seed(config.run.seed)
    parts = make_parser().instantiate(config)
    return {name: parts[name] for name in inspect.signature(experiment).parameters}


def dump(config: Namespace) -> str:
    """The resolved config as YAML, with every default spelled out."""
    shown = config.clone()
    shown.pop("config", None)
    return HEAD + make_parser().dump(shown, skip_unset=False)


def load(path: Path) -> dict[str, Any]:
    """A config file as plain values. Raises ValueError as `read_yaml` does, and for another version's format."""
    return _current(read_yaml(path), where=path)


def _current(written: Any, *, where: Path) -> dict[str, Any]:
    """What a config file says, in the words of this version. See `load` for what is refused."""
    content = moved(written, where=where)
    if not isinstance(content, dict):
        raise ValueError(f"{where} is no config: it must hold keys such as {', '.join(names(experiment))}")
    version = content.get("format", FORMAT)
    if version not in range(1, FORMAT + 1):
        raise ValueError(
            f"{where} has format {str(version)[:40]}, this version of vision_attn reads formats up to {FORMAT}: "
            "use the version that wrote it, or train again"
        )
    unknown = [key for key in content if key not in (*names(experiment), "format")]
    if unknown:
        raise ValueError(f"{where}: {unknown[0][:80]}: there is no such key{suggest(unknown[0], names(experiment))}")
    return content


@contextmanager
def _rewritten(name: str, content: dict[str, Any]) -> Iterator[Path]:
    """A temporary file called `name` with a config that was converted from an earlier version."""
    with scratch("config") as folder:
        (folder / name).write_text(yaml.safe_dump(content), encoding="utf-8")
        yield folder / name


def find_best(folder: Path) -> Path:
    """The folder with the weights: `folder`/best of a run, or `folder` itself. Raises ValueError for neither."""
    for candidate in (folder / "best", folder):
        if (candidate / "model.safetensors").is_file() and (candidate / "config.yaml").is_file():
            return candidate
    if not folder.is_dir():
        what = "is not a folder" if os.path.lexists(folder) else "does not exist"
        raise ValueError(f"{folder} {what}: give the folder of a run, such as weights/photographs")
    if (folder / "last").exists():
        raise ValueError(f"{folder} has no best/ yet: the run must reach its first validation")
    raise ValueError(f"{folder} is no run: neither it nor its best/ holds model.safetensors and config.yaml")

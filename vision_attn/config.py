"""From a YAML file to the arguments of `fit`, and from a run folder back to the task it trained.

The signature of `fit`, and below it the constructors that the file names, are the schema: nothing is declared twice.
"""

import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentParser, Namespace

from vision_attn import trust as trusted
from vision_attn.bounded_yaml import flat, read_yaml
from vision_attn.engine import checkpoint
from vision_attn.engine.folders import claim as lock
from vision_attn.engine.guard import keep_to
from vision_attn.engine.loop import fit
from vision_attn.engine.weights import check_weights, load_weights
from vision_attn.files import replacing, scratch, shipped
from vision_attn.layers.meta import on_meta
from vision_attn.migrate import migrated
from vision_attn.mistakes import forbidden, suggest
from vision_attn.parser import FORMAT, allow_only, make_parser, message, names, packages_of, parse
from vision_attn.task import Source, Task

OURS = ("vision_attn", "torch.nn", "torch.optim", "torchvision")
"""What the user's own config may name without saying where it comes from. For run folders see `trust`."""

OPENED = ("task", "data")
"""The keys that are built again when a run folder is opened."""

HEAD = "# Written by vision-attn: the whole config of this run, defaults included.\n"

FREE = (
    "run.folder",
    "run.log_every",
    "run.save_every",
    "run.show",
    "run.device",
    "run.wandb",
    "run.compile",
    "run.capture",
)
"""Keys that may change when a run goes on: they do not change its weights beyond rounding."""


def read(path: str | Path, overrides: Sequence[str] = ()) -> Namespace:
    """The config in the YAML file `path`, with overrides such as "--task.model.hidden_size=256", checked and complete.

    `run.folder` is `runs/NAME` unless given. Of `task`, what is not written in the file is that of the run which
    `run.start_from` names, if the file names no class there. Raises ValueError naming the key that is wrong.
    """
    path = Path(path)
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
            load(written).get("task"), inspect.signature(fit).parameters["task"].annotation, "task"
        )
    except trusted.Untrusted as error:
        raise ValueError(f"{written} names classes of another package: copy its task into {where}") from error
    if not isinstance(theirs, dict):
        raise ValueError(f"{written} has no task")
    options = task.get("init_args", {})
    return content | {"task": theirs | {"init_args": theirs.get("init_args", {}) | options}}


def build(config: Namespace) -> dict[str, Any]:
    """The arguments of `fit`. Seeds torch first, so that whatever is drawn in constructors follows from run.seed."""
    torch.manual_seed(config.run.seed)
    parts = make_parser().instantiate(config)
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


@contextmanager
def training(config: Namespace) -> Iterator[Path]:
    """Claim the run folder, and keep other training commands out of it within this context.

    `fit` locks the folder too, but later: without this, another command could replace the config in between.
    """
    first = os.environ.get("RANK", "0") == "0"
    with lock(Path(config.run.folder), ".command") if first else nullcontext():
        yield claim(config)


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
    content = migrated(written)
    if not isinstance(content, dict):
        raise ValueError(f"{where} is no config: it must hold keys such as {', '.join(names(fit))}")
    version = content.get("format", FORMAT)
    if version not in range(1, FORMAT + 1):
        raise ValueError(
            f"{where} has format {str(version)[:40]}, this version of vision_attn reads formats up to {FORMAT}: "
            "use the version that wrote it, or train again"
        )
    unknown = [key for key in content if key not in (*names(fit), "format")]
    if unknown:
        raise ValueError(f"{where}: {unknown[0][:80]}: there is no such key{suggest(unknown[0], names(fit))}")
    return content


@contextmanager
def _rewritten(name: str, content: dict[str, Any]) -> Iterator[Path]:
    """A temporary file called `name` with a config that was converted from an earlier version."""
    with scratch("config") as folder:
        (folder / name).write_text(yaml.safe_dump(content), encoding="utf-8")
        yield folder / name


def open_run(
    folder: str | Path, *, trust: str | Sequence[str] = (), overrides: Sequence[str] = ()
) -> tuple[Task, Source, dict[str, Any]]:
    """The task with its best weights, its source, and the config, from a run folder or from a copy of its `best/`.

    Overrides such as "--data.images=FOLDER" say where the data lies now. A run folder may come from anyone: weights
    are safetensors, its config may name only the classes that `trust.checked` permits, nothing is downloaded or cached
    elsewhere for it (`trust.confined`), and no model is built that is larger than its weights. Packages that `trust`
    names may be imported too, which runs their code. Raises ValueError saying what is missing or wrong.
    """
    best, trust = find_best(Path(folder)), trusted.as_packages(trust)
    written = best / "config.yaml"
    content = load(written)
    parts = _checked(content, trust, where=written)
    _check_seed(content, where=written)
    allow_only({*trusted.MODULES, "torch.nn", *trust})
    parser = make_parser(skip=set(names(fit)) - set(OPENED))
    config = _parse_run(parser, parts, overrides, where=written)
    resolved = yaml.safe_load(parser.dump(config, skip_unset=False))
    _checked(resolved, trust, where="the options" if overrides else written)  # the parser makes numbers of text
    with _as_mistakes(written):
        source = None
        if not trust:  # Code from elsewhere need not work without memory.
            with on_meta():
                task, source = _built(parser, config, best)
            check_weights(task, best)
        task, source = _built(parser, config, best, source)
        load_weights(task, best)
    return task.eval(), source, {**content, **resolved}


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


def _keep_to(folder: Path, new: dict) -> None:
    """Refuse a config under which the run in `folder`, if it has begun, would be another."""
    written = folder / "config.yaml"
    if not written.exists() or not checkpoint.begun(folder):
        return
    old = load(written)
    free = FREE if new.get("schedule") else (*FREE, "run.epochs")
    if "auto" in (_precision(old), _precision(new)):  # `fit` compares what it stands for.
        free += ("run.precision",)
    keep_to(folder, old, new, free=(*free, *_defaults(new, old, name=written.name)))


def _defaults(new: dict, old: dict, *, name: str) -> list[str]:
    """The keys of `new` that have their default and that `old`, from a version without them, lacks."""
    after = flat(new)
    if missing := after.keys() - flat(old):
        with suppress(ValueError), _rewritten(name, _within(new, old)) as file:
            default = flat(yaml.safe_load(dump(read(file))))
            return [key for key in missing if key in default and default[key] == after[key]]
    return []


def _within(new: dict, old: dict) -> dict:
    """The part of a nested config whose keys `old` has too."""
    return {
        key: _within(value, old[key]) if isinstance(value, dict) and isinstance(old[key], dict) else value
        for key, value in new.items()
        if key in old
    }


def _precision(content: dict[str, Any]) -> Any:
    run = content.get("run")
    return run.get("precision") if isinstance(run, dict) else None


def _checked(content: dict, trust: Sequence[str], *, where: Path | str) -> dict[str, Any]:
    """The keys that are built again, with nothing in them but what a run folder may name."""
    expected = inspect.signature(fit).parameters
    present = [key for key in OPENED if content.get(key) is not None]
    try:
        return {key: trusted.checked(content[key], expected[key].annotation, key, trust=trust) for key in present}
    except trusted.Untrusted as error:
        raise ValueError(f"{where} {error}") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _check_seed(content: dict, *, where: Path) -> None:
    run = content.get("run", {})
    if not isinstance(run, dict) or type(run.get("seed", 0)) is not int or not -(2**63) <= run.get("seed", 0) < 2**63:
        raise ValueError(f"{where}: run.seed must be a whole number of 64 bits")


def _parse_run(parser: ArgumentParser, parts: dict, overrides: Sequence[str], *, where: Path) -> Namespace:
    """The config of a run folder with the user's overrides, complete."""
    for override in overrides:
        key = override.lstrip("-").partition("=")[0]
        if key.partition(".")[0] in set(names(fit)) - set(OPENED):
            raise ValueError(f"{key}: only keys of {' and '.join(OPENED)} can be overridden when a run is opened")
    if isinstance(parts.get("data"), dict):
        parts = parts | {"data": trusted.confined(parts["data"])}
    given = [f"--{key}={yaml.safe_dump(value)}" for key, value in parts.items()]
    try:
        return parse(parser, [*given, *overrides], parts, where=where, overrides=overrides)
    except ValueError as error:
        if path := forbidden(message(error.__cause__)):
            raise ValueError(f"one of the options {trusted.Untrusted(path)}") from error
        raise


@contextmanager
def _as_mistakes(where: Path) -> Iterator[None]:
    """Within, an error of a constructor is a mistake in the config, which may hold any number anywhere."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(f"{where} describes a model that cannot be built ({reason})") from error


def _built(parser: ArgumentParser, config: Namespace, best: Path, source: Source | None = None) -> tuple[Task, Source]:
    """The task on torch's default device, without its weights, and its source with what it exported to `best`."""
    parts = parser.instantiate(config)
    if source is None:
        source = parts.data
        source.restore(best)
    return parts.task(source), source

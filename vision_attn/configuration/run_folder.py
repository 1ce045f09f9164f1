"""From a run folder, which may come from anyone, back to the task that was trained in it."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace

from vision_attn.configuration import trust as trusted
from vision_attn.configuration.config import find_best, load
from vision_attn.configuration.moves import moved_override
from vision_attn.configuration.parser import allow_only, make_parser, message, names, parse
from vision_attn.configuration.schema import experiment
from vision_attn.configuration.weights import check_weights, load_weights
from vision_attn.layers.meta import on_meta
from vision_attn.system.mistakes import forbidden
from vision_attn.task import Source, Task

OPENED = ("task", "data")
"""The keys that are built again when a run folder is opened."""


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
    parser = make_parser(skip=set(names(experiment)) - set(OPENED))
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


def _checked(content: dict, trust: Sequence[str], *, where: Path | str) -> dict[str, Any]:
    """The keys that are built again, with nothing in them but what a run folder may name."""
    expected = inspect.signature(experiment).parameters
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
    overrides = [moved_override(override) for override in overrides]
    for override in overrides:
        key = override.lstrip("-").partition("=")[0]
        if key.partition(".")[0] in set(names(experiment)) - set(OPENED):
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

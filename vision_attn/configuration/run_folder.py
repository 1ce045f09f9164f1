"""`open_run`: open an untrusted run folder, and build its task with its best weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vision_attn.configuration.config import load, options_of, parameters
from vision_attn.configuration.parts import PartConfig, built, plain
from vision_attn.configuration.reader import ConfigReader, located
from vision_attn.configuration.trust import RunFolder, as_packages, confined
from vision_attn.configuration.weights import check_weights, load_weights
from vision_attn.layers.meta import on_meta
from vision_attn.system.errors import UserError
from vision_attn.system.files import find_best
from vision_attn.task import Source, Task

OPENED = ("task", "data")
"""The keys of a config that are built when a run folder is opened."""


def open_run(
    folder: str | Path, *, trust: str | Sequence[str] = (), overrides: Sequence[str] = ()
) -> tuple[Task, Source, dict[str, Any]]:
    """Return the task with its best weights, its source, and the config, from a run folder or a copy of its `best/`.

    A run folder may come from anyone: weights are safetensors, its config may name only the classes that
    `trust.RunFolder` permits, nothing is downloaded or cached elsewhere for it (`trust.confined`), and no model is
    built that is larger than its weights. Raises UserError saying what is missing or wrong.

    trust: packages that may be imported, which runs their code.
    overrides: options such as "--data.images=FOLDER", the current place of the data.
    """
    best, trust = find_best(Path(folder)), as_packages(trust)
    written = best / "config.yaml"
    content = load(written)
    _check_seed(content, where=written)
    config = _read(content, trust, overrides, where=written)
    with _as_mistakes(written):
        source = None
        if not trust:  # Code from elsewhere need not work without memory.
            with on_meta():
                task, source = _built(config, best)
            check_weights(task, best)
        task, source = _built(config, best, source)
        load_weights(task, best)
    return task.eval(), source, {**content, **plain(config)}


def _check_seed(content: dict, *, where: Path) -> None:
    run = content.get("run", {})
    if not isinstance(run, dict) or type(run.get("seed", 0)) is not int or not -(2**63) <= run.get("seed", 0) < 2**63:
        raise UserError(f"{where}: run.seed must be a whole number of 64 bits")


def _read(content: dict, trust: Sequence[str], overrides: Sequence[str], *, where: Path) -> dict[str, PartConfig]:
    """Return the keys that are built again, with the user's overrides. Raises UserError for a name that a run folder
    may not use."""
    options = options_of(overrides)
    for option in options:
        if option.path[0] in parameters().keys() - set(OPENED):
            key = ".".join(option.path)
            raise UserError(f"{key}: only keys of {' and '.join(OPENED)} can be overridden when a run is opened")
    present = {key: content[key] for key in OPENED if content.get(key) is not None}
    if "data" in present:
        present["data"] = confined(present["data"])
    expected = {key: parameters()[key] for key in OPENED}
    names = RunFolder(trust)
    with located(where, options):
        return ConfigReader(names).all(expected, present, "", options)


@contextmanager
def _as_mistakes(where: Path) -> Iterator[None]:
    """Context manager: convert an error of a constructor to a UserError about the config, which may contain any number
    anywhere."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(f"{where} describes a model that cannot be built ({reason})") from error


def _built(config: dict[str, PartConfig], best: Path, source: Source | None = None) -> tuple[Task, Source]:
    """Build the task on torch's default device, without its weights, and its source, with its exports in `best`."""
    if source is None:
        source = built(config["data"])
        source.restore(best)
    return built(config["task"])(source), source

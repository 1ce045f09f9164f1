"""Claim the folder of a run before training: write its config, and keep other training commands out."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from vision_attn.configuration.automatic_batch import is_automatic, placed, size_in
from vision_attn.configuration.config import HEAD, Config, dump, read
from vision_attn.engine.run_folder import checkpoint
from vision_attn.engine.run_folder.folders import lock_folder, remove
from vision_attn.system.bounded_yaml import flat, read_yaml
from vision_attn.system.console import few
from vision_attn.system.errors import UserError
from vision_attn.system.files import contents, replacing

FREE = (
    "folder", "epochs", "log_every", "save_every", "show", "device", "wandb", "tensorboard", "fast", "compile",
    "capture", "threads",
)  # fmt: skip
"""Keys of `run` that may change when a run is resumed, because they change steps by rounding at most."""

BATCH, EVALUATION = "data.batch_size", "data.evaluation_batch_size"
"""Further keys that may change: the size of validation batches, and the size of training batches if `run.accumulate`
changes as well, so that a step has as many images as before."""


def keep_batch_size(config: Config) -> None:
    """Set the size of batches of a resumed run to the one that was found when it began."""
    folder = Path(config.run.folder)
    if is_automatic(config.data) and checkpoint.begun(folder) and (size := size_in(folder / "config.yaml")):
        config.data = placed(config.data, size)


def write_batch_size(folder: Path, size: int) -> None:
    """Write the size of batches that was found into the config of a run, if it has one."""
    path = folder / "config.yaml"
    if not path.is_file():
        return
    content = read_yaml(path)
    content["data"]["init_args"]["batch_size"] = size
    with replacing(path) as temporary:
        temporary.write_text(HEAD + yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def claim(config: Config) -> Path:
    """Write the resolved config into its run folder, and return the folder.

    Raises UserError if the folder contains a run that is being trained or was trained with other settings, or if it
    contains files of the same names that belong to no run.
    """
    folder = Path(config.run.folder)
    if os.environ.get("RANK", "0") == "0":  # of the processes of torchrun, one writes
        with lock_folder(folder):
            _check_free(folder)
            _keep_to(folder, config.content())
            with replacing(folder / "config.yaml") as temporary:
                temporary.write_text(dump(config), encoding="utf-8")
    return folder


@contextmanager
def training(config: Config) -> Iterator[Path]:
    """Context manager: claim the run folder, and keep other training commands out of it. If a start fails before
    anything is logged or saved, the files that it wrote are removed.

    `fit` locks the folder too, but later: without this, another command could replace the config in between.
    """
    folder = Path(config.run.folder)
    if os.environ.get("RANK", "0") != "0":
        yield claim(config)
        return
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        with lock_folder(folder, ".command"):
            there = set(folder.iterdir())
            try:
                yield claim(config)
            except BaseException:
                _forget_start(folder, there)
                raise
    except BaseException:
        for parent in missing:
            with suppress(OSError):  # It may hold more than this run.
                parent.rmdir()
        raise


def _forget_start(folder: Path, there: Collection[Path]) -> None:
    """Remove the files that a start writes before its first step, unless steps were made. Files in `there` are kept."""
    log = folder / "metrics.jsonl"
    if checkpoint.begun(folder) or (log.exists() and log.stat().st_size > 0):
        return
    for path in (folder / "config.yaml", folder / "start", log):
        if path not in there:
            remove(path)


def _check_free(folder: Path) -> None:
    """Raise UserError if training would replace files that belong to no run: a config that was not written by training,
    or a log or start/ without a config."""
    written = folder / "config.yaml"
    ours = written.is_file() and contents(written).startswith(HEAD.encode())
    for path in (written, folder / "metrics.jsonl", folder / "start"):
        if os.path.lexists(path) and not ours and not checkpoint.begun(folder):
            raise UserError(f"{path} is no run's, and training would replace it: name another --run.folder")


def _keep_to(folder: Path, new: dict) -> None:
    """Raise UserError for a config that would change the run in `folder`, if it has begun."""
    written = folder / "config.yaml"
    if not written.exists() or not checkpoint.begun(folder):
        return
    # With the defaults of keys that are newer than the run.
    old, free = read(written).content(), {f"run.{key}" for key in FREE} | {EVALUATION}
    if "auto" in (flat(content).get("run.precision") for content in (old, new)):  # `fit` compares what it stands for.
        free.add("run.precision")
    if images_of_a_step(old) == images_of_a_step(new) is not None:
        free |= {BATCH, "run.accumulate"}
    keep_to(folder, old, new, free=free)


def images_of_a_step(content: dict[str, Any]) -> int | None:
    """Return the number of images of an optimiser step; None if the size of batches cannot be chosen."""
    values = flat(content)
    size, number = values.get(BATCH), values.get("run.accumulate", 1)
    return size * number if isinstance(size, int) and isinstance(number, int) else None


def keep_to(folder: Path, old: dict[str, Any], new: dict[str, Any], *, free: Collection[str] = ()) -> None:
    """Raise UserError where `new` changes a setting with which the run in `folder` was started.

    Nested settings are compared by their dotted keys. Keys in `free` may change.
    """
    before, after = flat(old), flat(new)
    changed = [
        f"{key} was {before.get(key)}, is {after.get(key)}"
        for key in {**before, **after}
        if before.get(key) != after.get(key) and key not in free
    ]
    if changed:
        raise UserError(
            f"{folder} holds a run with other settings ({few(changed, 6)}): set them back, give another --run.folder "
            f"(--run.start_from={folder} begins with its weights), or delete that folder"
        )

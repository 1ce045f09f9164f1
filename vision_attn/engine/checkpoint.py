"""Folders that are whole at every moment: checkpoints, and the lock on a run."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from vision_attn.engine.weights import save_weights
from vision_attn.files import replacing


@dataclass
class Position:
    """How far a run has come, as last/position.json tells it."""

    plan: dict[str, Any]
    """The settings that a run must keep to go on exactly."""
    epoch: int = 0
    """Epochs that are complete, validation included."""
    batch: int = 0
    """Batches done in the epoch under way; all of them when only its validation is missing."""
    step: int = 0
    """Optimiser steps done."""
    best: float | None = None
    """The best validation metric so far."""
    since_best: int = 0
    """Validations since then."""
    logged: int = 0
    """Bytes of metrics.jsonl; whatever a killed run wrote after them is written again."""


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A new folder to write to, which takes the place of `path` once it is whole and on the disk.

    Names on the way: .part is being written, .new is whole, .old is the one before. A process killed at any moment
    leaves a whole folder under one of them, and `settle` finds it. Raises ValueError when writing fails.
    """
    settle(path)
    part = _beside(path, "part")
    part.mkdir(parents=True)
    try:
        yield part
        for file in [*part.rglob("*"), part]:
            _flush(file)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        reason = " ".join(str(error).split()) or type(error).__name__
        kept = "; what was saved before is still whole" if path.exists() else ""
        raise ValueError(f"{path} could not be written (is the disk full?): {reason}{kept}") from error
    part.rename(_beside(path, "new"))
    settle(path)


def settle(path: Path) -> None:
    """Finish or undo what a killed process left half done beside the folder `path`."""
    part, new, old = (_beside(path, name) for name in ("part", "new", "old"))
    if part.exists():
        shutil.rmtree(part)
    if new.exists() and path.exists():
        if old.exists():
            shutil.rmtree(old)
        path.rename(old)
    for whole in (new, old):
        if whole.exists() and not path.exists():
            whole.rename(path)
    if path.parent.exists():
        _flush(path.parent)
    if old.exists():
        shutil.rmtree(old)


def _beside(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.{name}")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Keep every other process out of a run folder; the system lets go when this one ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ValueError(f"{folder} is being trained by {holder}: wait for it, or choose another folder") from error
        # A worker of the data loader must not hold the lock after its parent was killed.
        os.register_at_fork(after_in_child=file.close)
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


def save(folder: Path, task: nn.Module, trainer: dict[str, Any], position: Position) -> None:
    """Write last/: the weights, everything else that training needs, and how far it has come."""
    with replacing_folder(folder / "last") as last:
        save_weights(task, last / "model.safetensors")
        with open(last / "trainer.pt", "wb") as file:  # A file of Python's: it tells why a write failed.
            torch.save(trainer, file)
        (last / "position.json").write_text(json.dumps(asdict(position)))


def move(folder: Path, position: Position) -> None:
    """Note in last/ how far the run has come since, where nothing but the position changed."""
    with replacing(folder / "last" / "position.json") as path:
        path.write_text(json.dumps(asdict(position)))


def find_position(folder: Path) -> Position | None:
    """How far the run in `folder` has come; None where it has no checkpoint."""
    settle(folder / "last")
    settle(folder / "best")
    path = folder / "last" / "position.json"
    if not path.exists():
        return None
    try:
        return Position(**json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a position that this version understands: use a new folder") from error


def load_trainer(folder: Path) -> dict[str, Any]:
    """What `save` was given as `trainer`, on the CPU."""
    return torch.load(folder / "last" / "trainer.pt", map_location="cpu", weights_only=True)

"""Checkpoints: what a run needs to go on exactly, how it is checked, and the one before it as a way back.

`last/` holds the weights, trainer.pt with everything else, and position.json, which says how far the run has come and
what size and checksum the other files have. `previous/` is the checkpoint before.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vision_attn.console import say
from vision_attn.engine import weights
from vision_attn.engine.folders import remove, replacing_folder, settle
from vision_attn.files import read_json, replacing, sha256

TRAINER = "trainer.pt"
POSITION = "position.json"


@dataclass
class Position:
    """How far a run has come, as position.json tells it."""

    plan: dict[str, Any]
    """The settings that a run must keep to go on exactly."""
    epoch: int = 0
    """Epochs that are complete, validation included."""
    batch: int = 0
    """Batches done in the epoch under way; all of them when only its validation is missing."""
    step: int = 0
    """Optimiser steps done."""
    best: float | None = None
    """The validation metric of the best weights so far; None where there are none, or where it is not a number."""
    best_nll: float | None = None
    """Their negative log-likelihood, which decides while the metric is practically 0; see `best.better`."""
    since_best: int = 0
    """Validations since then."""
    logged: int = 0
    """Bytes of metrics.jsonl; whatever a killed run wrote after them is written again."""
    done: bool | None = None
    """Whether all that the run promised is written: best/ and the pictures. None was written by an earlier version."""
    files: dict[str, list] = field(default_factory=dict)
    """Bytes and SHA-256 of each other file of the checkpoint; empty was written by an earlier version."""


def begun(folder: Path) -> bool:
    """Whether a run in `folder` has written anything that a run with other settings must not replace."""
    names = ("last", "last.new", "last.old", "previous", "best", "best.new", "best.old")
    return any((folder / name).exists() for name in names)


def save(folder: Path, task: nn.Module, trainer: dict[str, Any], position: Position) -> None:
    """Write last/: the weights, everything else that training needs, and how far it has come.

    The checkpoint that was there becomes previous/. Raises ValueError when writing fails; both are then as they were.
    """
    with replacing_folder(folder / "last", before=folder / "previous") as last:
        weights.save_weights(task, last / weights.NAME)
        with open(last / TRAINER, "wb") as file:  # A file of Python's: it tells why a write failed.
            torch.save(trainer, file)
        position.files = {
            name: [(last / name).stat().st_size, _sha256(last / name)] for name in (weights.NAME, TRAINER)
        }
        (last / POSITION).write_text(_dumped(position))


def move(folder: Path, position: Position) -> None:
    """Note in last/ how far the run has come since, where nothing but the position changed.

    Raises ValueError when writing fails; what was noted before is still there.
    """
    path = folder / "last" / POSITION
    try:
        with replacing(path) as temporary:
            temporary.write_text(_dumped(position))
    except OSError as error:
        raise ValueError(f"{path} could not be written: {error.strerror or error}; the same command goes on") from error


def peek(folder: Path) -> Position | None:
    """What last/position.json says, without a look at the other files; None where it is missing or damaged."""
    settle(folder / "last", before=folder / "previous")
    settle(folder / "best")
    try:
        return _read_position(folder / "last" / POSITION)
    except ValueError:
        return None


def find(folder: Path) -> Position | None:
    """How far the run in `folder` has come, once last/ is known to be whole; None where there is no checkpoint.

    Where last/ is damaged, or metrics.jsonl lacks lines that it counts, previous/ takes its place if it can, and a line
    says so. Raises ValueError where no whole checkpoint is left.
    """
    last, previous, log = folder / "last", folder / "previous", folder / "metrics.jsonl"
    if not last.exists() and not previous.exists():
        if (folder / "best").exists():
            raise ValueError(
                f"{last} is missing: training anew would replace the weights in {folder / 'best'}; "
                "choose a new run.folder, or delete this one"
            )
        return None
    position, trouble = _checked(last)
    if position and not (trouble := _lacking(log, position)):
        return position
    before, more = _checked(previous)
    if before and (position is None or not _lacking(log, before)):
        say(f"{trouble}: the run goes on from the previous checkpoint, at epoch {before.epoch + 1}, step {before.step}")
        remove(last)
        previous.rename(last)
        position = before
    if position is None:
        raise ValueError(
            f"{trouble}; {more}; no whole checkpoint is left: restore one from a copy of the folder, or begin again in "
            "a new run.folder (run.start_from takes the weights of best/)"
        )
    if lacking := _lacking(log, position):
        say(f"{lacking}: those lines are lost, and the run goes on")
        position.logged = _whole_lines(log, position.logged)
    return position


def load_trainer(folder: Path) -> dict[str, Any]:
    """What `save` was given as `trainer`, on the CPU. Raises ValueError naming the file when it is damaged."""
    path = folder / TRAINER
    try:
        trainer = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # Damage makes it raise nearly anything, with advice that would let the file run code.
        raise ValueError(f"{path} is damaged: torch cannot read it ({type(error).__name__})") from error
    if not isinstance(trainer, dict) or not {"step", "log", "random"} <= trainer.keys():
        raise ValueError(f"{path} is damaged: it does not hold the state of a run")
    return trainer


def _checked(folder: Path) -> tuple[Position | None, str]:
    """The position of a checkpoint that is whole, or None and what is wrong with which file."""
    try:
        if not folder.exists():
            raise ValueError(f"{folder} is missing")
        position = _read_position(folder / POSITION)
        for name, (size, checksum) in position.files.items():
            _compare(folder / name, size, checksum)
        if not position.files:  # of an earlier version: what can be read is whole
            weights.read_shapes(folder / weights.NAME)
            load_trainer(folder)
    except ValueError as error:
        return None, str(error)
    return position, ""


def _compare(path: Path, size: int, checksum: str) -> None:
    """Raise ValueError unless a file is as it was written."""
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    if path.stat().st_size != size:
        raise ValueError(f"{path} is damaged: it has {path.stat().st_size} of {size} bytes")
    if _sha256(path) != checksum:
        raise ValueError(f"{path} is damaged: its checksum is not the one that was written")


def _read_position(path: Path) -> Position:
    """Raises ValueError when the file is missing or damaged, or holds values of wrong types."""
    content = read_json(path)
    wrong = f"{path} is damaged, or of another version"
    if not isinstance(content, dict):
        raise ValueError(f"{wrong}: it must hold one object")
    written = content.pop("sha256", None)
    if written is not None and written != _digest(content):
        raise ValueError(f"{wrong}: its checksum is not the one that was written")
    unknown = [name for name in content if name not in _KINDS]
    bad = [name for name, fits in _KINDS.items() if name in content and not fits(content[name])]
    if unknown or bad or "plan" not in content:
        raise ValueError(f"{wrong}: its {(unknown or bad or ['plan'])[0]} is not as it should be")
    return Position(**content)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _number(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def _files(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    pairs = all(isinstance(pair, list) and len(pair) == 2 and _count(pair[0]) for pair in value.values())
    return pairs and set(value) in (set(), {weights.NAME, TRAINER})


_KINDS = dict.fromkeys((one.name for one in fields(Position)), _count) | {
    "plan": lambda value: isinstance(value, dict),
    "best": _number,
    "best_nll": _number,
    "done": lambda value: value is None or isinstance(value, bool),
    "files": _files,
}
"""Whether a value can be that of each field."""


def _dumped(position: Position) -> str:
    content = asdict(position)
    return json.dumps(content | {"sha256": _digest(content)})


def _digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error


def _lacking(log: Path, position: Position) -> str:
    """What a log lacks of what a checkpoint counts; nothing where it holds all of it."""
    lost = position.logged - _whole_lines(log, position.logged)
    return f"{log} lacks {lost} of the {position.logged} bytes that the checkpoint counts" if lost else ""


def _whole_lines(log: Path, most: int) -> int:
    """The bytes of the whole lines among the first `most` bytes of a log."""
    if not log.is_file():
        return 0
    with open(log, "rb") as file:
        return file.read(min(most, log.stat().st_size)).rfind(b"\n") + 1

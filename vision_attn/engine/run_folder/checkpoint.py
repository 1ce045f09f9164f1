"""Checkpoints: all state needed to resume a run exactly. They are verified, and the previous one is the fallback.

`last/` holds the weights, trainer.pt with all other state, and position.json with the progress of the run and the sizes
and checksums of the other files. `previous/` is the checkpoint before it.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vision_attn.configuration import weights
from vision_attn.engine.run_folder.folders import remove, replacing_folder, settle, unsettled
from vision_attn.system.console import say
from vision_attn.system.errors import UserError
from vision_attn.system.files import digest, read_json, replacing, sha256, way_on

TRAINER = "trainer.pt"
POSITION = "position.json"


@dataclass
class Position:
    """The progress of a run, as stored in position.json."""

    plan: dict[str, Any]
    """The settings that must not change for the run to resume exactly."""
    epoch: int = 0
    """Completed epochs, including their validation."""
    batch: int = 0
    """Batches done in the current epoch; all of them if only its validation is missing."""
    step: int = 0
    """Optimiser steps done."""
    best: float | None = None
    """The metric of the best weights so far; None if there are none, or if it is NaN and their nll is known."""
    best_nll: float | None = None
    """The nll of the best weights so far, which is compared while the metric is practically 0; see `best.better`."""
    since_best: int = 0
    """Validations since the best one."""
    logged: int = 0
    """The number of bytes of metrics.jsonl. Later lines of a killed run are cut off and written again."""
    done: bool = False
    """Whether the final outputs, best/ and the pictures, are written."""
    files: dict[str, list] = field(default_factory=dict)
    """Bytes and SHA-256 of each other file of the checkpoint."""
    chosen: dict[str, Any] = field(default_factory=dict)
    """The precision, whether steps are compiled and captured, and on a CPU the number of threads once it is chosen. All
    but the precision may change when a run is resumed."""


def begun(folder: Path) -> bool:
    """Return whether `folder` contains weights that a run with other settings must not replace."""
    names = ("last", "previous", "best")
    return any((folder / name).exists() for name in names) or any(unsettled(folder / name) for name in ("last", "best"))


def save(folder: Path, task: nn.Module, trainer: dict[str, Any], position: Position) -> None:
    """Write last/: the weights, all other training state, and the position. The old checkpoint becomes previous/.
    Raises UserError if writing fails; both are then unchanged.
    """
    with replacing_folder(folder / "last", before=folder / "previous") as last:
        weights.save_weights(task, last / weights.NAME)
        with open(last / TRAINER, "wb") as file:  # Unlike torch's own file, it reports why a write failed.
            torch.save(trainer, file)
        position.files = {name: [(last / name).stat().st_size, sha256(last / name)] for name in (weights.NAME, TRAINER)}
        (last / POSITION).write_text(_dumped(position))


def update_position(folder: Path, position: Position) -> None:
    """Update the position in last/, if nothing else has changed since the checkpoint.

    Raises UserError if writing fails; the stored position is then unchanged.
    """
    path = folder / "last" / POSITION
    try:
        with replacing(path) as temporary:
            temporary.write_text(_dumped(position))
    except OSError as error:
        again = way_on(error, "run the same command again to resume")
        raise UserError(f"{path} could not be written: {error.strerror or error}{again}") from error


def peek(folder: Path) -> Position | None:
    """Read last/position.json without checking the other files; None if it is missing or damaged."""
    settle(folder / "last", before=folder / "previous")
    settle(folder / "best")
    try:
        return _read_position(folder / "last" / POSITION)
    except UserError:
        return None


def find(folder: Path) -> Position | None:
    """Verify the checkpoint in `folder` and return its position; None if there is no checkpoint.

    If last/ is damaged, previous/ replaces it, and a logged line says so. Raises UserError if no intact checkpoint is
    left.
    """
    last, previous = folder / "last", folder / "previous"
    if not last.exists() and not previous.exists():
        if (folder / "best").exists():
            raise UserError(
                f"{last} is missing: training from scratch would replace the weights in {folder / 'best'}; "
                "choose a new run.folder, or delete this one"
            )
        return None
    position, trouble = _intact_position(last)
    if position is not None:
        return position
    before, more = _intact_position(previous)
    if before is None:
        raise UserError(
            f"{trouble}; {more}; no intact checkpoint is left: restore one from a backup of the folder, or start again "
            "in a new run.folder (run.start_from can load the weights of best/)"
        )
    say(f"{trouble}: resuming from the previous checkpoint, at epoch {before.epoch + 1}, step {before.step}")
    remove(last)
    previous.rename(last)
    return before


def load_trainer(folder: Path) -> dict[str, Any]:
    """Load the `trainer` state that `save` wrote, on the CPU. Raises UserError naming the file if it is damaged."""
    path = folder / TRAINER
    try:
        trainer = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # A damaged file can raise any error; torch's message suggests weights_only=False.
        raise UserError(f"{path} is damaged: torch cannot read it ({type(error).__name__})") from error
    if not isinstance(trainer, dict) or not {"step", "log", "random"} <= trainer.keys():
        raise UserError(f"{path} is damaged: it does not hold the state of a run")
    return trainer


def _intact_position(folder: Path) -> tuple[Position | None, str]:
    """Return the position of an intact checkpoint and ""; for a damaged one, None and a message naming the file and its
    problem."""
    try:
        if not folder.exists():
            raise UserError(f"{folder} is missing")
        position = _read_position(folder / POSITION)
        for name, (size, checksum) in position.files.items():
            path = folder / name
            if not path.is_file():
                raise UserError(f"{path} is missing")
            if path.stat().st_size != size:
                raise UserError(f"{path} is damaged: it has {path.stat().st_size} of {size} bytes")
            if sha256(path) != checksum:
                raise UserError(f"{path} is damaged: its checksum does not match")
    except OSError as error:
        return None, f"{error.filename} cannot be read: {error.strerror}"
    except UserError as error:
        return None, str(error)
    return position, ""


def _read_position(path: Path) -> Position:
    """Read position.json. Raises UserError if it is missing or damaged, or holds values of wrong types."""
    content = read_json(path)
    wrong = f"{path} is damaged"
    if not isinstance(content, dict):
        raise UserError(f"{wrong}: it must hold a JSON object")
    if content.pop("sha256", None) != digest(content):
        raise UserError(f"{wrong}: its checksum does not match")
    unknown = [name for name in content if name not in _CHECKS]
    bad = [name for name, fits in _CHECKS.items() if name not in content or not fits(content[name])]
    if unknown or bad:
        raise UserError(f"{wrong}: its field {(unknown or bad)[0]} is not valid")
    return Position(**content)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _number(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def _files(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    pairs = all(isinstance(pair, list) and len(pair) == 2 and _count(pair[0]) for pair in value.values())
    return pairs and set(value) == {weights.NAME, TRAINER}


_CHECKS = dict.fromkeys((position_field.name for position_field in fields(Position)), _count) | {
    "plan": lambda value: isinstance(value, dict),
    "chosen": lambda value: isinstance(value, dict),
    "best": _number,
    "best_nll": _number,
    "done": lambda value: isinstance(value, bool),
    "files": _files,
}
"""For each field of `Position`, a function that returns whether a value is valid."""


def _dumped(position: Position) -> str:
    content = asdict(position)
    return json.dumps(content | {"sha256": digest(content)})

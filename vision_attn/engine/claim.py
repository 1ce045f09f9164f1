"""The folder of a run is claimed before training: its config is written, and other commands are kept out."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from vision_attn.configuration.config import Config, dump, load
from vision_attn.engine import checkpoint
from vision_attn.engine.folders import lock_folder
from vision_attn.engine.guard import keep_to
from vision_attn.system.files import replacing

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


def claim(config: Config) -> Path:
    """Write the resolved config into its run folder, and return the folder.

    Raises ValueError when the folder holds a run that was trained with other settings, or is being trained.
    """
    folder = Path(config.run.folder)
    if os.environ.get("RANK", "0") == "0":  # of the processes of torchrun, one writes
        with lock_folder(folder):
            _keep_to(folder, config.content())
            with replacing(folder / "config.yaml") as temporary:
                temporary.write_text(dump(config), encoding="utf-8")
    return folder


@contextmanager
def training(config: Config) -> Iterator[Path]:
    """Claim the run folder, and keep other training commands out of it within this context.

    `experiment` locks the folder too, but later: without this, another command could replace the config in between.
    """
    first = os.environ.get("RANK", "0") == "0"
    with lock_folder(Path(config.run.folder), ".command") if first else nullcontext():
        yield claim(config)


def _keep_to(folder: Path, new: dict) -> None:
    """Refuse a config under which the run in `folder`, if it has begun, would be another."""
    written = folder / "config.yaml"
    if not written.exists() or not checkpoint.begun(folder):
        return
    old = load(written)
    free = FREE if new.get("schedule") else (*FREE, "run.epochs")
    if "auto" in (_precision(old), _precision(new)):  # `experiment` compares what it stands for.
        free += ("run.precision",)
    keep_to(folder, old, new, free=free)


def _precision(content: dict[str, Any]) -> Any:
    run = content.get("run")
    return run.get("precision") if isinstance(run, dict) else None

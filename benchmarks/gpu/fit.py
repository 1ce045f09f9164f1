"""`python -m benchmarks.gpu.fit ASKED RESULT`: trains a config for as many epochs as fit into a time, and evaluates it.

ASKED is `Asked` as a JSON list; the numbers are written to RESULT. A run that has begun in the folder is resumed, with
the epochs that were chosen then.
"""

import json
import math
import os
import shutil
import signal
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.commands import main as command
from vision_attn.configuration.config import load, read
from vision_attn.engine import checkpoint
from vision_attn.system.files import read_json, replacing

CONFIGS = Path("configs")
STOPPED = 143
"""Exit status of training that SIGTERM has stopped."""
EVALUATION = 0.15
"""The share of the time that is kept for the evaluation."""


class Asked(NamedTuple):
    """What to train."""

    config: str
    folder: str
    overrides: Sequence[str]
    seconds: float
    most_steps: int | None
    """At most as many steps; None for at most the epochs of the config."""


class Epoch(NamedTuple):
    """What two epochs of a trial took."""

    seconds: float
    """One epoch with its validation and checkpoint."""
    rate: float
    """Items per second while training."""
    steps: int
    start: float
    """Seconds before the first epoch, and to compile and capture."""


def fit(asked: Asked) -> dict[str, Any]:
    """Train and evaluate. Raises RuntimeError if one of them failed."""
    began = time.monotonic()
    folder, path = Path(asked.folder), str(CONFIGS / f"{asked.config}.yaml")
    device = next((each for each in asked.overrides if each.startswith("--run.device=")), "--run.device=auto")
    recipe = read(path, asked.overrides).run
    end = began + asked.seconds * (1 - EVALUATION)
    found: dict[str, Any] = {"metric": recipe.metric, "recipe": recipe.epochs}
    if checkpoint.begun(folder):
        before = load(folder / "config.yaml")["run"]
        epochs, warmup = before["epochs"], before["warmup"]
    else:
        epoch = trial(asked, path, began + asked.seconds / 2)
        most = recipe.epochs if asked.most_steps is None else math.ceil(asked.most_steps / epoch.steps)
        epochs = max(1, min(most, int((end - time.monotonic() - epoch.start) / epoch.seconds)))
        warmup = min(recipe.warmup, epochs * epoch.steps // 10)
        found["trial"] = epoch._asdict()
    line = [path, *asked.overrides, f"--run.epochs={epochs}", f"--run.warmup={warmup}"]
    found |= {"command": f"python train.py {' '.join(line)}", "epochs": epochs}
    train([*line, f"--run.folder={folder}"], end)

    evaluated = folder / "evaluated"
    command(["eval", str(folder), f"--out={evaluated}", device.replace("--run.", "--")])
    lines = log(folder)
    return found | {
        "test": read_json(evaluated / "metrics_test.json"),
        "best": read_json(folder / "best" / "metrics_val.json"),
        "done": lines[-1]["epoch"],
        "steps": lines[-1]["step"],
        "trained_seconds": lines[-1]["seconds"],
        "rate": statistics.median(line["items_per_second"] for line in lines),
        "chosen": read_json(folder / "last" / "position.json").get("chosen"),
    }


def trial(asked: Asked, path: str, until: float) -> Epoch:
    """Train two epochs in a folder that is removed again."""
    folder = Path(f"{asked.folder}-trial")
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    options = ["--run.epochs=2", "--run.validate_every=1", "--run.warmup=0", "--run.show=0", f"--run.folder={folder}"]
    if train([path, *asked.overrides, *options], until):
        raise RuntimeError("two epochs take longer than half of the time")
    spent = time.monotonic() - began
    lines = log(folder)
    first, second = (max(line["seconds"] for line in lines if line["epoch"] == number) for number in (1, 2))
    rate = statistics.median(line["items_per_second"] for line in lines if line["epoch"] == 2)
    shutil.rmtree(folder)
    return Epoch(second - first, rate, lines[-1]["step"] // 2, max(0.0, spent - 2 * (second - first)))


def train(line: list[str], until: float) -> bool:
    """`vision-attn train`, stopped at `until`, when it saves what it has. Returns whether it was stopped.

    Raises RuntimeError if it failed.
    """
    timer = threading.Timer(max(0.0, until - time.monotonic()), os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        status = command(["train", *line])
    except SystemExit as stop:
        status = stop.code
    finally:
        timer.cancel()
    if status not in (0, STOPPED):
        raise RuntimeError(f"training ended with status {status}: see the log")
    return status == STOPPED


def log(folder: Path) -> list[dict[str, Any]]:
    """The lines of training in a run's log."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "loss" in line]


def main(asked: str, result: str) -> int:
    """Write the numbers, or the error."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # before training itself listens to it
    try:
        found = fit(Asked(*json.loads(asked)))
    except (RuntimeError, ValueError, OSError) as error:
        found = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    with replacing(result) as temporary:
        temporary.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return int("error" in found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

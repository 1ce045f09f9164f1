"""Selection of the best weights of a run, and the folder best/ that holds them."""

import json
import math
import shutil
from pathlib import Path
from types import NoneType
from typing import Literal

from torch import nn

from vision_attn.configuration.weights import check_weights, save_weights
from vision_attn.engine.run_folder.checkpoint import Position
from vision_attn.engine.run_folder.folders import replacing_folder
from vision_attn.metrics import METRICS
from vision_attn.system.console import say
from vision_attn.system.errors import UserError
from vision_attn.system.files import finite, read_json
from vision_attn.task import Source, Task

KEY = "validated.json"
"""The name of the file in best/ with the key of its metrics, a checksum of everything on which they depend."""
ZERO = 1e-3
"""A metric of captions closer to 0 than this counts as 0: without any match, the smoothing of BLEU-4 gives 1e-8. It
does not apply to the user's own metrics."""


def better(metrics: dict[str, float], position: Position, *, metric: str, mode: Literal["max", "min"]) -> bool:
    """Return whether weights with these metrics are better than the best so far; if so, update `position`.

    A metric of captions that is practically 0, or NaN, does not discriminate: such weights are compared by `nll` (lower
    is better) if validation computes it. Any larger value of the metric is better.
    """
    value = float(metrics[metric])
    name, _, source = metric.partition("_")  # CIDEr_mine is of one source alone
    nll = float(metrics.get(f"nll_{source}" if source else "nll", math.nan))
    nll = nll if mode == "max" and name in METRICS else math.nan
    first = position.best is None and position.best_nll is None
    if mode == "min":
        won = first or position.best is None or value < position.best
    else:
        rank, before = _rank(value, nll), _rank(position.best, position.best_nll)
        won = first or rank > before
        if rank[0] == BY_NLL and before[0] <= BY_NLL and position.best_nll is None:
            low = "no number" if math.isnan(value) else f"practically 0 ({value:.2g})"
            say(f"{metric} is {low}: until it reaches {ZERO}, the weights with the lowest nll are kept as the best")
    if won:
        unknown = math.isnan(value) and math.isnan(nll)  # such weights are the worst, but there are some
        worst = math.inf if mode == "min" else -math.inf
        position.best, position.best_nll = worst if unknown else _none_if_nan(value), _none_if_nan(nll)
    position.since_best = 0 if won else position.since_best + 1
    return won


BY_NLL = 1


def _rank(value: float | None, nll: float | None) -> tuple[int, float]:
    """Return a sort key, larger is better: the kind of comparison, then the value to compare."""
    value, nll = math.nan if value is None else value, math.nan if nll is None else nll
    if value >= ZERO:
        return 2, value
    if not math.isnan(nll) and not value <= -ZERO:
        return BY_NLL, -nll
    return 0, -math.inf if math.isnan(value) else value


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


def save_best(
    folder: Path,
    task: nn.Module,
    data: Source,
    position: Position,
    metrics: dict[str, float],
    key: str | None = None,
) -> None:
    """Write best/ of the run in `folder`: everything needed to use the task with its current weights.

    key: the output of `known_metrics.validation_key`; None: it is not known.
    """
    with replacing_folder(folder / "best") as best:
        save_weights(task, best / "model.safetensors")
        data.export(best)
        if (folder / "config.yaml").exists():
            shutil.copyfile(folder / "config.yaml", best / "config.yaml")
        epoch = position.epoch + (position.batch > 0)
        text = json.dumps({"step": position.step, "epoch": epoch, **finite(metrics)}, indent=2)
        (best / "metrics_val.json").write_text(text + "\n")
        if key is not None:
            (best / KEY).write_text(json.dumps({"key": key}) + "\n")


def without_best(task: Task, folder: Path) -> str:
    """Return why best/ of the run in `folder` cannot be used; empty if it can."""
    try:
        check_weights(task, folder / "best")
    except UserError as error:
        return str(error)
    return ""


def best_metrics(folder: Path) -> dict[str, float]:
    """Read the validation metrics of best/ of the run in `folder`; invalid numbers are NaN. If they are lost, prints
    the reason and returns {}. Prints a line if training has improved nothing."""
    path = folder / "best" / "metrics_val.json"
    try:
        metrics = read_json(path)
        if not isinstance(metrics, dict) or not all(
            type(value) in (int, float, NoneType) for value in metrics.values()
        ):
            raise UserError(f"{path} is damaged: it must map names to numbers")
    except UserError as error:
        say(f"{error}; the metrics of the best weights are unknown")
        return {}
    if metrics.get("step") == 0:
        say(f"no trained weights were better than those that this run started from, which {folder / 'best'} holds")
    measured = metrics.keys() - {"step", "epoch"}
    return {name: math.nan if value is None else value for name, value in metrics.items() if name in measured}

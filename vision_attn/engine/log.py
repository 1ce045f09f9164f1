"""`Log`: the scalars of training and validation in metrics.jsonl and, if asked for, in W&B or TensorBoard."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from vision_attn.configuration.run_settings import Run
from vision_attn.engine.distributed import World
from vision_attn.engine.watching import Watchers
from vision_attn.system.console import say
from vision_attn.system.errors import UserError
from vision_attn.system.files import finite, way_on
from vision_attn.system.inputs import check_replaced


class Log:
    """Accumulates scalars on the device and copies them to the CPU only when a line is written.

    Each line of metrics.jsonl is one JSON object. Training lines hold `step`, `epoch`, the means of the task's scalars
    since the previous line, `gradient` (its norm before clipping), `learning_rate`, `items_per_second`, `waits` (the
    share of the time for which steps waited for data), `seconds` since training started or resumed and, on a CPU,
    `threads` once their number is chosen. Validation lines hold `step`, `epoch` and the metrics as `val/NAME`.
    """

    def __init__(self, folder: Path, world: World, run: Run, start: int, *, step: int = 0) -> None:
        """
        start: the number of bytes of metrics.jsonl to keep.
        step: the step from which the run continues.
        """
        self.world = world
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        """The number of steps with each scalar, since a task may return some scalars only in some steps."""
        self.items, self.waited = 0, 0.0
        self.started = self.since = time.monotonic()
        watched = replace(run, wandb=run.wandb and world.is_main, tensorboard=run.tensorboard and world.is_main)
        self.watchers = Watchers(folder, watched, step=step if start else None)
        self.file = _open(folder / "metrics.jsonl", start) if world.is_main else None

    def add(self, scalars: dict[str, Tensor], items: int, waited: float = 0.0) -> None:
        """Add the scalars of one step. The tensors are not kept, since the next step may overwrite them.

        items: the number of items of the step.
        waited: the seconds for which the step waited for data.
        """
        known = [name for name in scalars if name in self.sums]
        if known:  # all in three kernels
            before, more = (torch.stack([values[name] for name in known]) for values in (self.sums, scalars))
            self.sums |= dict(zip(known, (before + more).unbind(), strict=True))
        self.sums |= {name: value.clone() for name, value in scalars.items() if name not in self.sums}
        self.counts = {name: self.counts.get(name, 0) + (name in scalars) for name in self.sums}
        self.items += items
        self.waited += waited

    def train(self, *, step: int, epoch: int, learning_rate: float, threads: int | None = None) -> dict[str, float]:
        """Write the means since the last line, over all processes, and reset the sums."""
        sums = dict(zip(self.sums, torch.stack([*self.sums.values()]).cpu().double().tolist(), strict=True))
        means = _means(self.world.gather({name: (total, self.counts[name]) for name, total in sums.items()}))
        now = time.monotonic()
        taken = max(now - self.since, 1e-9)
        rate, waits = self.items * self.world.size / taken, min(1.0, self.waited / taken)
        times = {"items_per_second": round(rate, 1), "waits": round(waits, 3), "seconds": round(now - self.started, 2)}
        line = {**means, "learning_rate": learning_rate, **times, **({"threads": threads} if threads else {})}
        self._write({"step": step, "epoch": epoch, **line})
        self.sums, self.counts, self.items, self.waited, self.since = {}, {}, 0, 0.0, now
        return line

    def validation(self, metrics: dict[str, float], *, step: int, epoch: int) -> None:
        """Write the metrics of one validation."""
        self._write({"step": step, "epoch": epoch, **{f"val/{name}": value for name, value in metrics.items()}})
        self.since = time.monotonic()

    def _write(self, line: dict[str, Any]) -> None:
        if self.file:
            line = finite(line)
            with _writing(self.file.name):
                self.file.write(json.dumps(line).encode() + b"\n")
                self.file.flush()
        numbers = {name: value for name, value in line.items() if name != "step"}
        self.watchers.call("numbers", numbers, line["step"])

    def pictures(self, paths: Sequence[Path], *, step: int) -> None:
        """Send pictures and pages to the services that watch the run."""
        self.watchers.call("pictures", paths, step)

    def flushed(self) -> int:
        """Flush metrics.jsonl to disk and return its size in bytes. A checkpoint must not count unflushed lines."""
        if not self.file:
            return 0
        with _writing(self.file.name):
            os.fsync(self.file.fileno())
        return self.file.tell()

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of this process since the last line, on the CPU."""
        return {"sums": {name: value.cpu() for name, value in self.sums.items()}, "counts": self.counts}

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restore the sums of this process from those of all processes; if the number of processes has changed, use
        their means."""
        mine = [states[self.world.rank]] if len(states) == self.world.size else states
        for name in mine[0]["sums"]:
            self.sums[name] = sum(state["sums"][name] for state in mine).to(self.world.device) / len(mine)
        self.counts = mine[0]["counts"]

    def close(self) -> None:
        if self.file:
            with suppress(OSError):  # Every line was already flushed, and a failure of that was raised then.
                self.file.close()
        self.watchers.call("close")


def _open(path: Path, start: int) -> BinaryIO:
    """Open metrics.jsonl for appending, truncated to the `start` bytes that the checkpoint counts. If somebody has
    shortened the file, prints a line and continues."""
    check_replaced(path)
    with _writing(path):
        file = open(path, "ab")  # noqa: SIM115
        if file.tell() < start:
            say(f"{path} has fewer lines than the checkpoint counts: the others are lost; training continues")
        if file.tell() > start:
            file.truncate(start)
            file.seek(0, 2)
        return file


@contextmanager
def _writing(path: str | Path) -> Iterator[None]:
    """Context manager: convert an OSError to a UserError naming the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror or error}{way_on(error)}") from error


def _means(processes: Sequence[dict[str, tuple[float, int]]]) -> dict[str, float]:
    """Return the mean of each scalar, given its sum and its number of steps in each process. A scalar may be missing in
    some processes."""
    means = {}
    for name in dict.fromkeys(name for process in processes for name in process):
        totals, steps = zip(*(process[name] for process in processes if name in process), strict=True)
        means[name] = sum(totals) / sum(steps)
    return means

"""Measure the time of several runs, interleaved in one process, and the memory of each run in its own process."""

import importlib
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from benchmarks.shapes import QUICK, Shapes
from vision_attn.fast import accelerate
from vision_attn.system.console import progress, say
from vision_attn.system.machine import multiplies_bf16

Module = TypeVar("Module", bound=nn.Module)
MiB = 1024**2
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
WARM_UP = 3
"""The largest number of rounds until runs use the memory that they freed before. The plain ones map new pages for
seconds first."""


@cache
def precisions(device: str = "cpu") -> dict[str, torch.dtype]:
    """The precisions to measure: fp32, and bf16 unless this processor multiplies it many times more slowly."""
    slow = device == "cpu" and not multiplies_bf16()
    if slow:
        say("bf16 is not measured: it is many times slower on this processor")
    return {name: dtype for name, dtype in PRECISIONS.items() if not slow or name == "fp32"}


def accelerated(module: Module) -> Module:
    """The module as runs have it by default."""
    accelerate(module)
    return module


def seconds(runs: Mapping[str, Callable[[], object]], repeats: int, what: str) -> dict[str, float]:
    """Median seconds of each run. Runs are interleaved, so that a busy machine slows all of them equally. As many
    rounds, at most `WARM_UP`, come first and do not count."""
    warm_up = min(repeats, WARM_UP)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in progress(range(warm_up + repeats), what=what, unit="round"):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[warm_up:]) for name, times in taken.items()}


def several(run: Callable[[], object], times: int) -> Callable[[], None]:
    """A function that calls `run` `number` times."""

    def repeat() -> None:
        for _ in range(times):
            run()

    return repeat


def peak_memory(target: str, shapes: Shapes, *arguments: object) -> float:
    """Bytes by which `target` ("module:function"), called on `shapes` in a fresh process, raises its peak memory.

    The process calls it on tiny shapes first, so that memory which libraries allocate at first use does not count. With
    `quick` shapes, runs it once in this process and returns NaN.
    """
    if shapes.quick:
        _function(target)(shapes, *arguments)
        return math.nan
    command = [sys.executable, "-m", "benchmarks.measure", target, json.dumps([shapes, *arguments])]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment)
    if done.returncode:
        raise RuntimeError(f"{target} failed while its memory was measured:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def resident(peak: bool) -> int:
    """Bytes of memory in use by this process, now or at its peak so far.

    Linux keeps ru_maxrss across exec, so a child of a large parent would seem large from its start. On Linux the peak
    is therefore read from /proc, which starts at zero for every program.
    """
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return int(fields["VmHWM" if peak else "VmRSS"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table that is also readable on a terminal."""
    cells = [list(columns), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return f"\n**{title}**\n\n" + "\n".join(lines)


def spread(values: Sequence[float], factor: float = 1, decimals: int = 3) -> str:
    """The mean and, of several values, the standard deviation."""
    deviation = f" +- {factor * statistics.stdev(values):.{decimals}f}" if len(values) > 1 else ""
    return f"{factor * statistics.mean(values):.{decimals}f}{deviation}"


def _function(target: str) -> Callable[..., object]:
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)


def main() -> None:
    """Entry point of the process that `peak_memory` starts: print by how many bytes the run raises the peak above the
    memory used before."""
    run, (shapes, *arguments) = _function(sys.argv[1]), json.loads(sys.argv[2])
    run(QUICK, *arguments)
    before = resident(peak=False)
    run(Shapes(*shapes), *arguments)
    print(resident(peak=True) - before)


if __name__ == "__main__":
    main()

"""The block `speed`: every case of `gpu_cases` in its own process, so that a crash costs one case.

All processes build and compile at the same time; then they are timed one after the other, while nothing else runs.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import torch

from benchmarks.gpu import speeds as gpu
from benchmarks.gpu.block import ROOT, Options, Row
from benchmarks.gpu.cases import CASES

EAGER = 0.35
"""The share of the time after which cases that need no compiler must be built."""
COMPILED = 0.85
"""The share of the time after which compiled cases must be built."""


class Process:
    """A process that builds some cases, waits, and times them."""

    def __init__(self, options: Options, compiled: bool, names: Sequence[str]) -> None:
        self.names, self.done = names, False
        ways = ("compiled" if compiled else "eager", "quick" if options.quick else "full")
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
        if options.quick and options.device == "cpu":
            environment["TORCHDYNAMO_DISABLE"] = "1"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.speeds", options.device, *ways, *names],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> bool:
        """Wait until everything is built. Returns whether it is: not if the process has ended."""
        return any(line.startswith(gpu.READY) for line in self.process.stdout)

    def results(self) -> Iterator[tuple[str, dict]]:
        """Time, one after the other."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(gpu.RESULT):
                yield tuple(json.loads(line.removeprefix(gpu.RESULT)))
        self.done = True  # it has closed its output

    def end(self) -> int:
        """Let a process that has said everything end by itself, and kill it otherwise. Returns its exit status."""
        if self.done:
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(10)
        self.process.kill()
        return self.process.wait()


def speed(options: Options) -> Iterator[Row]:
    """One row for each case and way. First all that needs no compiler, which is soon built; then what is compiled."""
    began = time.monotonic()
    rates = gpu.machine_rates(options.device, quick=options.quick)
    torch.cuda.empty_cache()
    matrix, copy = f"{rates['matrix'] / 1e12:.4g} TFLOP/s", gpu.gigabytes(rates)
    yield Row("the machine", f"bf16 matrix product {matrix}, copy {copy}", rates)
    groups = [list(CASES)] if options.quick else [[name] for name in CASES]
    yield from wave(options, False, groups, rates, began + EAGER * options.seconds)
    if options.quick:  # compiling takes long even for small sizes
        groups = [["reader 100"]]
    yield from wave(options, True, groups, rates, began + COMPILED * options.seconds)


def wave(
    options: Options, compiled: bool, groups: Sequence[Sequence[str]], rates: dict[str, float], until: float
) -> Iterator[Row]:
    """Start a process for each group of cases; time, one by one, those that are ready when all are, or at `until`."""
    processes = [Process(options, compiled, names) for names in groups]
    try:
        with ThreadPoolExecutor(len(processes)) as pool:
            ready = [pool.submit(process.ready) for process in processes]
            wait(ready, timeout=max(0.0, until - time.monotonic()))
            late = [not each.done() for each in ready]
            for process, is_late in zip(processes, late, strict=True):
                if is_late:
                    process.end()
        for process, each, is_late in zip(processes, ready, late, strict=True):
            what = ", ".join(process.names) + ", compiled" * compiled
            if is_late:
                yield Row(what, f"not built after {options.seconds * (COMPILED if compiled else EAGER):.0f} s")
            elif not each.result():
                yield Row(what, f"failed: the process ended with {process.end()}")
            else:
                for name, numbers in process.results():
                    yield Row(name, said(numbers, rates), numbers)
                if status := process.end():
                    yield Row(what, f"failed: the process ended with {status} while it was timed")
    finally:
        for process in processes:
            process.end()


def said(numbers: dict, rates: dict[str, float]) -> str:
    """The numbers of a row in words."""
    rate, milliseconds, share, memory = gpu.cells(numbers, rates)
    return f"failed: {rate}" if "error" in numbers else f"{rate}/s, {milliseconds} ms, {share}, {memory} MiB"

"""`Profile`: how long steps wait for data, and a trace of some steps (`run.profile`)."""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from vision_attn.system.console import say
from vision_attn.system.files import replacing
from vision_attn.task import Batch

SKIPPED = 10
"""How many steps run before the traced ones: the first of each shape allocate, choose algorithms, and are captured."""
LISTED = 25
"""The number of operations that are listed, the slowest first."""
EVER = float("inf")


class Profile:
    """Sums the time for which steps wait for data, and times the parts of `steps` steps.

    The device is synchronised between the parts of these steps, so that the work of a part counts as its time. A
    captured step is one part. Writes `trace.json.gz` (for Perfetto or chrome://tracing), `operations.txt` and
    `parts.json` into `folder`.
    """

    def __init__(self, folder: Path, device: torch.device, steps: int, *, captured: bool = False) -> None:
        self.folder, self.device, self.steps, self.captured = folder, device, steps, captured
        self.waited = 0.0
        """Seconds of waiting for data since the last call of `lately`."""
        self.parts: dict[str, float] = {}
        """Seconds of each part of the traced steps."""
        self.validation: float | None = None
        """Seconds of the latest validation."""
        self.first = EVER
        self.taken = 0
        self._trace: profile | None = None

    def lately(self) -> float:
        """Return the seconds of waiting since the last call."""
        waited, self.waited = self.waited, 0.0
        return waited

    def begin(self, step: int) -> None:
        """Start tracing `SKIPPED` steps after this one, unless that is decided already."""
        if self.steps and self.first == EVER:
            self.first = step + SKIPPED

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Context manager of one step. The trace begins and ends here."""
        if not self.steps or number < self.first or self.taken == self.steps:
            yield
            return
        if self._trace is None:
            os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # or it says that there is no GPU
            self._trace = profile(activities=[ProfilerActivity.CPU, *_gpu(self.device)])
            self._trace.start()
        with self._timed("step"):
            yield
        self.taken += 1
        if self.taken == self.steps:
            self.end()

    def part(self, name: str) -> Any:
        """Context manager of a part of a step. Without a trace it costs nothing."""
        return self._timed(name) if self._trace is not None and not self.captured else nullcontext()

    def waiting(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches, and sum the time of waiting for them."""
        batches = iter(batches)
        while True:
            began = time.perf_counter()
            with self._timed("waiting") if self._trace is not None else nullcontext():
                batch = next(batches, None)
            self.waited += time.perf_counter() - began
            if batch is None:
                return
            yield batch

    def validated(self, seconds: float) -> None:
        self.validation = seconds
        if self.taken and self._trace is None:
            self._write()

    def end(self) -> None:
        """Write the trace, if there is one that is not written yet, and the table."""
        if self._trace is None:
            return
        self._trace.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.folder / "trace.json.gz") as temporary:
            written = temporary.with_name(f"{temporary.name}.json.gz")  # the ending decides on compression
            self._trace.export_chrome_trace(str(written))
            written.replace(temporary)
        order = "self_device_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        with replacing(self.folder / "operations.txt") as temporary:
            temporary.write_text(self._trace.key_averages().table(sort_by=order, row_limit=LISTED), encoding="utf-8")
        self._trace = None
        self._write()
        say(f"trace of {self.taken} steps in {self.folder}: {self.described()}")

    def described(self) -> str:
        """Describe in words a step and its parts, in milliseconds, and the latest validation, in seconds."""
        shares = ", ".join(f"{name} {ms:.1f} ({ms / self._per_step['step']:.0%})" for name, ms in self._parts_and_rest)
        validation = "" if self.validation is None else f"; validation {self.validation:.1f} s"
        return f"{self._per_step['step']:.1f} ms a step: {shares}{validation}"

    @property
    def _per_step(self) -> dict[str, float]:
        return {name: seconds / self.taken * 1000 for name, seconds in self.parts.items()}

    @property
    def _parts_and_rest(self) -> list[tuple[str, float]]:
        """The parts of a step in milliseconds; the last is the rest of the step."""
        parts = self._per_step
        whole = parts.pop("step")
        rest = "captured step" if self.captured else "rest"
        return [*parts.items(), (rest, max(0.0, whole - sum(parts.values())))]

    def _write(self) -> None:
        milliseconds = {"step": self._per_step["step"], **dict(self._parts_and_rest)}
        table = {"steps": self.taken, "device": str(self.device), "ms": milliseconds}
        with replacing(self.folder / "parts.json") as temporary:
            temporary.write_text(json.dumps({**table, "validation_s": self.validation}, indent=1) + "\n")

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        self._synchronise()
        began = time.perf_counter()
        with record_function(name):
            yield
            self._synchronise()
        self.parts[name] = self.parts.get(name, 0.0) + time.perf_counter() - began

    def _synchronise(self) -> None:
        if self.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(self.device)


def _gpu(device: torch.device) -> list[ProfilerActivity]:
    return [ProfilerActivity.CUDA] if device.type == "cuda" else []

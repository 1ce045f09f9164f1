"""Measure speed on a GPU in bf16: eager, compiled and captured, and the share of the machine's peak.

`python -m benchmarks gpu` measures all cases one after the other.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.cases import CASES, Work, Works
from benchmarks.measure import MiB, table
from benchmarks.shapes import Shapes

REPEATS = 3
SECONDS = 0.3
"""The seconds of one measurement, which repeats a short run."""
COLUMNS = ("", "per second", "ms", "share of what the machine can do", "peak memory, MiB")


def gpu(shapes: Shapes, repeats: int, device: str = "cuda") -> str:
    """The tables of the cases that are not compiled, and of those that are."""
    rates = machine_rates(device, quick=shapes.quick)
    rows = []
    for compiled in (False, True):
        for name in shapes.some(list(CASES)):
            for what, numbers in measure(CASES[name](name, shapes, device, compiled), device, repeats):
                rows.append((what, *cells(numbers, rates)))
    return table(f"Speed in bf16 on {title(device, rates)}", COLUMNS, rows)


def title(device: str, rates: dict[str, float]) -> str:
    """The machine, and its peak rates."""
    what = torch.cuda.get_device_name() if device == "cuda" else "a CPU"
    return f"{what}, which multiplies matrices at {rates['matrix'] / 1e12:.3g} TFLOP/s and copies {gigabytes(rates)}"


def gigabytes(rates: dict[str, float]) -> str:
    return f"{rates['copy'] / 1e9:.4g} GB/s"


def machine_rates(device: str, *, quick: bool = False) -> dict[str, float]:
    """Operations per second of a large bf16 matrix product, and bytes per second of a large copy (read and written)."""
    size, least = (64, 0.0) if quick else (8192, SECONDS)
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    source = torch.randn(1024 if quick else 2**29, device=device)
    into = torch.empty_like(source)
    return {
        "matrix": 2 * size**3 / seconds(lambda: a @ a, device, REPEATS, least),
        "copy": 2 * source.nbytes / seconds(lambda: into.copy_(source), device, REPEATS, least),
    }


def seconds(run: Callable[[], object], device: str, repeats: int, least: float = SECONDS) -> float:
    """Median seconds of one call, each time over as many calls as take `least` seconds."""

    def several(number: int) -> float:
        start = time.perf_counter()
        for _ in range(number):
            run()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    several(1)
    number = max(1, min(10_000, math.ceil(least / max(several(1), 1e-6))))
    return statistics.median(several(number) / number for _ in range(repeats))


def measure(works: Works, device: str, repeats: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Prepare and time one after the other. One that fails gives its error."""
    for what, prepare in works:
        work = attempt(prepare)
        yield what, work if isinstance(work, dict) else attempt(partial(timed, work, device, repeats))


def attempt(call: Callable[[], Any]) -> Any:
    """Return the numbers of `call`, or NaN and the error if it fails."""
    try:
        return call()
    except Exception as error:
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:200]}


def timed(work: Work, device: str, repeats: int) -> dict[str, Any]:
    """The numbers of one row."""
    spent = seconds(work.run, device, repeats, SECONDS if device == "cuda" else 0.0)
    return {
        "unit": work.unit,
        "rate": work.number / spent,
        "seconds": spent,
        "operations": work.operations,
        "moved": work.moved,
        "memory": None if math.isnan(work.memory) else work.memory,
    }


def cells(numbers: dict[str, Any], rates: dict[str, float]) -> tuple[str, str, str, str]:
    """Items per second, milliseconds, share and peak memory.

    The share is that of the machine's rate which allows less: the matrix rate for the nominal operations of the
    products, or the copy bandwidth for the bytes that must be moved at least.
    """
    if "error" in numbers:
        return numbers["error"], "", "", ""
    least = {rate: numbers[count] / rates[rate] for rate, count in (("matrix", "operations"), ("copy", "moved"))}
    limit = max(least, key=least.get)
    share = f"{least[limit] / numbers['seconds']:.1%} of the {limit} rate"
    memory = f"{numbers['memory'] / MiB:.0f}" if numbers["memory"] is not None else "-"
    return f"{numbers['rate']:,.0f} {numbers['unit']}", f"{1000 * numbers['seconds']:.3g}", share, memory

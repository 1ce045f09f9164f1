"""Draw a chart of error against the cost of an answer: `python -m benchmarks.tradeoff PICTURE NAME=FOLDER ..`, with
folders that `eval --out` wrote.

A model that takes glimpses is drawn as a line with a point for each number of glimpses, a model that sees the whole
image as a single point.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.charts import Axis, Chart, folders, save, short


class Curve(NamedTuple):
    """A model: the cost of each of its answers (pixels read, multiply-adds) and their error in percent."""

    name: str
    costs: list[tuple[float, float]]
    errors: list[float]


def read(name: str, folder: Path) -> Curve:
    """Read the numbers that `eval` wrote. An answer after t of T glimpses costs t / T of the last one."""
    metrics = json.loads((folder / "metrics_test.json").read_text())
    glimpses = folder / "glimpses_test.json"
    errors = json.loads(glimpses.read_text())["error"] if glimpses.exists() else [metrics["error"]]
    shares = [(glimpse + 1) / len(errors) for glimpse in range(len(errors))]
    return Curve(name, [(share * metrics["pixels"], share * metrics["multiply_adds"]) for share in shares], errors)


def tradeoff(curves: list[Curve]) -> list[Chart]:
    """Two charts: error by pixels read, and by multiply-adds."""
    error = Axis("error", "{:g}%".format)
    return [
        Chart(
            {
                curve.name: [(cost[axis], value) for cost, value in zip(curve.costs, curve.errors, strict=True)]
                for curve in curves
            },
            Axis(title, short),
            error,
        )
        for axis, title in enumerate(("pixels read", "multiply-adds"))
    ]


def main(picture: str, *named: str) -> None:
    curves = [read(name, folder) for name, folder in folders("tradeoff", named).items()]
    save(tradeoff(curves), picture)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Compare runs: their metrics, the keys in which their configs differ, and their curves.

Prints a line for each run: the keys that are not the same in all, the step of the best weights, and the metric that
selected them, on validation and, where `vision-attn eval` has measured it, on the test split. RUN may be the name of an
included run, such as weights/photographs. A folder that `eval` wrote for a model that was not trained here, or the name
of the model, transformers:NAME, is compared by its test metrics. Runs that differ in their seed alone are summed up by
the mean and the standard deviation.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from vision_attn.commands._files import add_figure_arguments, check_writable, figure_options, place
from vision_attn.commands._run_options import best_of, measured_in
from vision_attn.system.console import complain, say, unit_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import is_pretrained, read_json, shipped
from vision_attn.system.inputs import writes

SEED = "run.seed"
APART = {"run.folder"}
"""Keys in which runs differ anyway."""
NO_CURVES = {"step", "epoch", "seconds"}


class Compared(NamedTuple):
    """A run, as far as it is compared."""

    name: str
    config: dict[str, Any]
    """By keys as on the command line."""
    val: dict[str, Any]
    """Of the best weights, with their `step`."""
    test: dict[str, Any]
    lines: list[dict[str, Any]]
    """Those of metrics.jsonl."""
    position: dict[str, Any]
    """Where training stands: the epoch, and whether it is done."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn compare`."""
    parser.usage = "%(prog)s RUN [RUN ...] [options]"  # names of --metrics would take in what follows
    parser.add_argument("runs", nargs="+", type=place, metavar="RUN", help="the folder of a run")
    parser.add_argument(
        "--metrics", nargs="+", metavar="NAME", help="these instead of the one that selected the best weights"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each run, with all metrics")
    parser.add_argument("--out", type=place, metavar="FOLDER", help="write a page with the curves of all runs")
    add_figure_arguments(parser, "small charts of the curves of all runs")


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print the table. Raises UserError for what is no run."""
    if arguments.out:
        check_writable(arguments.out, "--out")
        writes(arguments.out / "index.html", "--out")
    figure = figure_options(arguments)
    runs = [compared(folder) for folder in arguments.runs]
    keys = different(runs)
    chosen = dict.fromkeys(str(one.config.get("run.metric")) for one in runs if one.config.keys() - {SEED})
    names = arguments.metrics or list(chosen)
    known = {name for one in runs for name in (*one.val, *one.test)}
    if unknown := [name for name in arguments.metrics or () if name not in known]:
        complain(f"no run has {', '.join(unknown)}")
    note = ""
    if arguments.out and (found := curves(runs)):  # before anything is printed, whose reader may leave
        from vision_attn.viz.curves import write_curves

        note = f"drawn: {write_curves(arguments.out / 'index.html', found, title='Curves of runs')}"
    elif arguments.out:
        note = "no page is written: these runs have no metrics.jsonl, so there are no curves"
    if arguments.figure:
        from vision_attn.viz.figures.charts import curves_figure
        from vision_attn.viz.figures.drawing import save
        from vision_attn.viz.figures.paper import Paper

        complain(f"drawn: {save(curves_figure(curves(runs), Paper(**figure)), arguments.figure)}")
    for line in records(runs, keys) if arguments.json else (*table(runs, keys, names), *summaries(runs, names)):
        say(line)
    if note:
        complain(note)
    return 0


def compared(folder: Path) -> Compared:
    """Read a run, also an included one by its name. What it does not have yet is empty."""
    from vision_attn.configuration.moves import moved
    from vision_attn.system.bounded_yaml import flat, read_yaml

    name, folder = str(folder), shipped(folder)
    config = folder / "config.yaml" if (folder / "config.yaml").is_file() else folder / "best" / "config.yaml"
    if is_pretrained(folder):
        measured = measured_in(str(folder))
        if not (measured / "metrics_test.json").is_file():
            raise UserError(f"{folder} is not measured yet, or not in {measured}: vision-attn eval {folder} ...")
        folder = measured
    if not config.is_file() and (test := _read(folder / "metrics_test.json")):  # of a model that was not trained here
        return Compared(str(test.get("run", name)), {SEED: test.get("seed")}, {}, test, [], {})
    if not config.is_file():
        raise UserError(f"{name} is no run: it holds neither config.yaml nor best/config.yaml")
    val, test = best_of(folder), _read(folder / "metrics_test.json")
    now = val.get("step")
    if test.get("step", now) != now:
        was = test["step"]
        complain(f"{name}: its test metrics are of step {was}, its weights of step {now}: vision-attn eval {name}")
        test = {}
    return Compared(
        name, flat(moved(read_yaml(config))), val, test, _lines(folder / "metrics.jsonl"),
        _read(folder / "last" / "position.json"),
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    content = read_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; one that a killed process left half written is left out."""
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict)]


def different(runs: Sequence[Compared]) -> list[str]:
    """The keys whose values are not the same in all runs."""
    keys = dict.fromkeys(key for one in runs for key in one.config if key not in APART)
    return [key for key in keys if any(one.config.get(key) != runs[0].config.get(key) for one in runs)]


def records(runs: Sequence[Compared], keys: Sequence[str]) -> Iterator[str]:
    """A JSON object for each run."""
    for one in runs:
        settings = {key: one.config.get(key) for key in keys}
        yield json.dumps({"run": one.name, "keys": settings, "val": one.val, "test": one.test})


def table(runs: Sequence[Compared], keys: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Lines with aligned columns."""
    head = ["run", *keys, "step", *(f"{split} {name}" for name in names for split in ("val", "test"))]
    rows = [
        [
            one.name, *(str(one.config.get(key, "-")) for key in keys), str(one.val.get("step", "-")),
            *(_number(part.get(name), name) for name in names for part in (one.val, one.test)),
        ]
        for one in runs
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def summaries(runs: Sequence[Compared], names: Sequence[str]) -> Iterator[str]:
    """A line for each group of runs that differ in nothing but their seed, and for each run that is not finished."""
    groups: dict[str, list[Compared]] = {}
    for one in runs:
        rest = {key: value for key, value in one.config.items() if key not in APART | {SEED}}
        groups.setdefault(json.dumps(rest, sort_keys=True, default=str), []).append(one)
    for group in groups.values():
        if len({one.config.get(SEED) for one in group}) < len(group):  # the same run twice, or of other code
            continue
        told = []
        for name, split in product(names, ("val", "test")):
            values = [value for one in group if _is_number(value := getattr(one, split).get(name))]
            if len(values) > 1:
                told.append(f"{split} {name} {mean(values):.4f} +- {stdev(values):.4f}{unit_of(name)}")
        if told:
            yield f"{len(group)} seeds, {group[0].name} and so on: {', '.join(told)}"
    for one in runs:
        if one.position.get("done") is False:
            yield f"{one.name} is not finished: epoch {one.position.get('epoch')} is done"


def curves(runs: Sequence[Compared]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """By the name of a number and of a run, what its log says of it."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for one in runs:
        for line in one.lines:
            for name, value in line.items():
                if name not in NO_CURVES and _is_number(value) and _is_number(line.get("step")):
                    found.setdefault(name, {}).setdefault(one.name, []).append((float(line["step"]), float(value)))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any, name: str) -> str:
    return f"{value:.4f}{unit_of(name)}" if _is_number(value) else "-"

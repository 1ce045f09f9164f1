"""Compare runs: their metrics, the keys in which their configs differ, and their curves.

Prints a table with a line for each run: the keys that differ, the step of the best weights, the metric that selected
them, on validation and, if `vision-attn eval` has measured it, on the test split, and further metrics of the test
split. Runs that differ only in their seed are followed by their mean and standard deviation. Runs of different tasks or
test sets stand in separate tables, and a line says why. RUN may be the name of an included run, such as
weights/photographs. A folder that `eval` wrote for a model that was not trained here, or the name of the model,
transformers:NAME, is compared by its test metrics.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

from vision_attn.commands._comparison import (
    SEED,
    Compared,
    comparison_rows,
    curves,
    different,
    metric_names,
    named,
    settings,
    tables,
    tested,
    told_keys,
    unfinished,
    why,
    written,
)
from vision_attn.commands._files import add_figure_arguments, check_writable, figure_options, place
from vision_attn.commands._old_pictures import old_pictures_removed, others_kept
from vision_attn.commands._run_options import best_of, measured_in
from vision_attn.system.console import complain, say, suggest
from vision_attn.system.errors import UserError
from vision_attn.system.files import is_pretrained, read_json, shipped
from vision_attn.system.inputs import writes

WIDTH = 119
"""The letters of a line of the table where no terminal says how wide it is."""
NARROWEST = 60
"""The smallest number of letters of a line."""
NAME = 40
"""The largest number of letters of a run's name in the table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn compare`."""
    parser.usage = "%(prog)s RUN [RUN ...] [options]"  # names of --metrics would take in what follows
    parser.add_argument("runs", nargs="+", type=place, metavar="RUN", help="the folder of a run")
    parser.add_argument(
        "--metrics", nargs="+", metavar="NAME", help="these instead of the one that selected the best weights"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each run, with all metrics")
    parser.add_argument("--out", type=place, metavar="FOLDER", help="write a page with the tables and all curves")
    add_figure_arguments(
        parser, "small charts of the curves of all runs, or of test metrics; of --metrics alone, if they are given"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print the tables. Raises UserError for a folder that is no run."""
    if arguments.out:
        check_writable(arguments.out, "--out")
        others_kept(arguments.out)
        writes(arguments.out / "index.html", "--out")
    figure = figure_options(arguments)
    notes: list[str] = []
    runs = [compared(folder, number, notes) for number, folder in enumerate(arguments.runs, start=1)]
    known = {name for run in runs for name in (*run.val, *run.test)}
    notes.extend(f"no run has {name}{suggest(name, known)}" for name in arguments.metrics or () if name not in known)
    if arguments.out:  # before anything is printed, whose reader may leave
        from vision_attn.commands._compared_page import write_compared

        with old_pictures_removed(arguments.out):
            notes.append(f"drawn: {write_compared(arguments.out / 'index.html', runs, arguments.metrics)}")
    if arguments.figure:
        notes.append(_figure(runs, arguments.metrics, arguments.figure, figure))
    for line in records(runs) if arguments.json else printed(runs, arguments.metrics):
        say(line)
    for line in notes:
        complain(line)
    return 0


def _figure(runs: Sequence[Compared], wanted: Sequence[str] | None, path: Path, options: dict[str, Any]) -> str:
    """Write the figure: curves, or bars of the test metrics of runs without logs. Returns a line about it."""
    from vision_attn.viz.figures.charts import bars_figure, curves_figure
    from vision_attn.viz.figures.drawing import save
    from vision_attn.viz.figures.paper import Paper

    lines, bars = curves(runs, wanted), tested(runs, wanted)
    if not lines and not bars:
        what = (
            f"no run has {' or '.join(wanted)}"
            if wanted
            else "these runs have neither metrics.jsonl nor metrics_test.json"
        )
        return f"{path} is not drawn: {what}"
    drawn = curves_figure(lines, Paper(**options)) if lines else bars_figure(bars, Paper(**options))
    without = "no curves of these metrics" if wanted else "no metrics.jsonl, so there are no curves"
    told = "" if lines else f", with bars of test metrics: these runs have {without}"
    return f"drawn: {save(drawn, path)}{told}"


def compared(folder: Path, number: int, notes: list[str]) -> Compared:
    """Read a run, also an included one by its name. Files that do not exist yet are empty. notes: remarks on the run
    are added here."""
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
        return Compared(str(test.get("run", name)), {SEED: test.get("seed")}, {}, test, [], {}, number)
    if not config.is_file():
        raise UserError(f"{name} is no run: it holds neither config.yaml nor best/config.yaml")
    val, test = best_of(folder), _read(folder / "metrics_test.json")
    now = val.get("step")
    if test.get("step", now) != now:
        was = test["step"]
        notes.append(f"{name}: its test metrics are of step {was}, its weights of step {now}: vision-attn eval {name}")
        test = {}
    elif not test:
        notes.append(f"{name} has no test metrics: vision-attn eval {name}")
    keys = flat(moved(read_yaml(config)))
    if "data.words" in keys:  # as its vocabulary splits captions, where the config leaves that to it
        vocabulary = _read(config.parent / "vocabulary.json") or _read(folder / "best" / "vocabulary.json")
        keys["data.words"] = vocabulary.get("words") or keys["data.words"]
    return Compared(
        name, keys, val, test, _lines(folder / "metrics.jsonl"),
        _read(folder / "last" / "position.json"), number,
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    content = read_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def _lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a log, except one that a killed process left half written."""
    lines = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict)]


def records(runs: Sequence[Compared]) -> Iterator[str]:
    """Yield a JSON object for each run."""
    keys = different(runs)
    for run in runs:
        yield json.dumps(
            {"run": run.name, "keys": {key: run.config.get(key) for key in keys}, "val": run.val, "test": run.test}
        )


def printed(runs: Sequence[Compared], wanted: Sequence[str] | None) -> Iterator[str]:
    """Yield the lines of all tables, none wider than the terminal."""
    compared, room = tables(runs), max(NARROWEST, get_terminal_size((WIDTH, 24)).columns)
    for number, table in enumerate(compared, start=1):
        if len(compared) > 1:
            yield from ([""] if number > 1 else [])
            yield f"{number}. {named(table)}"
        yield from _table(table, wanted, room)
    if len(compared) > 1:
        yield ""
    for line in (*why(compared), *unfinished(runs)):
        yield from wrap(line, room, subsequent_indent="  ", break_on_hyphens=False)


def _table(table: Sequence[Compared], wanted: Sequence[str] | None, room: int) -> Iterator[str]:
    """Yield the aligned columns of a table and the keys that differ: as columns if all of them fit, otherwise each on a
    line below, with its values by the numbers of runs. Metrics that do not fit are left out; those asked for follow in
    a further table. A single run that does not fit is shown as a column. room: the letters of a line."""
    names, (keys, others) = metric_names(table, wanted), told_keys(table)
    if len(table) == 1 and _width(whole := _grid(table, names)) > room:
        label = max(map(len, whole[0]))
        yield from (f"{head.ljust(label)}  {cell}"[:room] for head, cell in zip(*whole, strict=True))
        return
    below = _width(_grid(table, names if wanted else names[:2], keys)) > room
    beside = () if below else keys
    while not wanted and len(names) > 2 and _width(_grid(table, names, beside)) > room:
        names.pop()
    while names or beside:
        shown = len(names)
        while shown > 1 and _width(_grid(table, names[:shown], beside)) > room:
            shown -= 1
        grid = _grid(table, names[:shown], beside)
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        for line in grid:
            yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()[:room]
        names, beside = names[shown:], ()
    for key in keys if below else ():
        yield from wrap(f"{key}  {_by_value(table, key)}", room, subsequent_indent="    ")
    if others:
        yield f"{others} more keys are of classes that only some of the runs have: --json"


def _grid(table: Sequence[Compared], names: Sequence[tuple[str, str]], keys: Sequence[str] = ()) -> list[list[str]]:
    """Return the cells of a table, the head first. A mean takes two lines."""
    grid = [["#", "run", *keys, "step", *(f"{split} {name}" for split, name in names)]]
    columns = [settings(table, key) for key in keys]
    own = {run.number: [column[place] for column in columns] for place, run in enumerate(table)}
    for row in comparison_rows(table, names):
        numbers = [written(value, name) for value, (_, name) in zip(row.values, names, strict=True)]
        if run := row.run:
            grid.append([str(run.number), _end(run.name), *own[run.number], str(run.val.get("step", "-")), *numbers])
            continue
        spread = [written(value, name) for value, (_, name) in zip(row.spread, names, strict=True)]
        for label, cells in ((f"mean of {row.seeds} seeds", numbers), ("+- standard deviation", spread)):
            grid.append(["", label, *[""] * (len(keys) + 1), *cells])
    return grid


def _width(grid: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) for column in zip(*grid, strict=True)) + 2 * (len(grid[0]) - 1)


def _end(name: str) -> str:
    return name if len(name) <= NAME else f"...{name[3 - NAME :]}"


def _by_value(table: Sequence[Compared], key: str) -> str:
    """Return a key's values, each with the numbers of the runs that have it."""
    by_value: dict[str, list[str]] = {}
    for run, value in zip(table, settings(table, key), strict=True):
        by_value.setdefault(value, []).append(str(run.number))
    return "; ".join(f"{', '.join(numbers)}: {value}" for value, numbers in by_value.items())

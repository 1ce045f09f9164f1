"""Write the page of `vision-attn compare`: tables of metrics, the keys that differ, and a grid of curves."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.commands._comparison import (
    Compared,
    ComparisonRow,
    comparison_rows,
    curves,
    is_number,
    labelled,
    metric_names,
    named,
    settings,
    tables,
    told_keys,
    unfinished,
    why,
    written,
)
from vision_attn.viz.curves import Plot, plot
from vision_attn.viz.html import write_html

UNKNOWN = "–"
BESIDE = 3
"""The largest number of keys that are shown beside the metrics; more have a separate table."""
FIRST = ("loss", "nll", "error")
"""The curves that are shown first, after those of the metrics in the table."""
CURVES = 4
"""The number of charts that are unfolded."""
GUIDE = "Curves are against the training step, and have the number of their run at their end."
TESTED = "test: measured by vision-attn eval. val: of the best weights, on validation. step: that of the best weights."


class _ShownRun(NamedTuple):
    """A row of a table.

    number: that of the run; 0 for a mean."""

    number: int
    name: str
    step: str
    cells: list[tuple[str, str]]
    """The numbers, each with its spread over seeds; a run has no spread."""
    settings: list[str]


class Section(NamedTuple):
    """The tables and curves of runs that can be compared."""

    title: str
    numbers: list[int]
    names: list[tuple[str, str]]
    """The split and the name of each metric."""
    rows: list[_ShownRun]
    beside: list[str]
    """The keys that differ, if they are few."""
    settings: dict[str, list[str]]
    """The values of keys that differ, by key, if there are many."""
    all: dict[str, list[str]]
    """All metrics, by name."""
    charts: list[Plot]
    more: list[Plot]
    """Further curves."""


def write_compared(path: Path, runs: Sequence[Compared], wanted: Sequence[str] | None) -> Path:
    """Write the page. Returns its path.

    wanted: the metrics of its tables; by default those that selected the best weights, and the usual ones.
    """
    compared = tables(runs)
    notes = [*(f"{line[0].upper()}{line[1:]}." for line in why(compared)), *unfinished(runs)]
    sections = [_section(table, wanted) for table in compared]
    guide = " ".join([TESTED, GUIDE] if any(section.charts for section in sections) else [TESTED])
    title, lines = "Runs side by side", max(run.number for run in runs)
    return write_html(path, "compared.html", title=title, guide=guide, notes=notes, sections=sections, lines=lines)


def _section(table: Sequence[Compared], wanted: Sequence[str] | None) -> Section:
    names, (keys, _) = metric_names(table, wanted), told_keys(table)
    values = {key: settings(table, key) for key in keys}
    beside = keys if len(keys) <= BESIDE else []
    own = {run.number: [values[key][place] for key in beside] for place, run in enumerate(table)}
    shown = [_shown_run(row, names, own) for row in comparison_rows(table, names)]
    plots = _plots(table, names)
    return Section(
        named(table),
        [run.number for run in table],
        names,
        shown,
        beside,
        {} if beside else values,
        _all(table),
        plots[:CURVES],
        plots[CURVES:],
    )


def _shown_run(row: ComparisonRow, names: Sequence[tuple[str, str]], own: Mapping[int, list[str]]) -> _ShownRun:
    texts = [written(value, name, UNKNOWN) for value, (_, name) in zip(row.values, names, strict=True)]
    if run := row.run:
        cells = [(text, "") for text in texts]
        return _ShownRun(run.number, run.name, str(run.val.get("step", UNKNOWN)), cells, own[run.number])
    spread = [written(value, name, "") for value, (_, name) in zip(row.spread, names, strict=True)]
    rest = [""] * len(next(iter(own.values())))
    return _ShownRun(0, f"mean of {row.seeds} seeds", "", list(zip(texts, spread, strict=True)), rest)


def _all(table: Sequence[Compared]) -> dict[str, list[str]]:
    """Return every known number of each split, in each run."""
    parts = [(split, name) for split in ("val", "test") for run in table for name in getattr(run, split)]
    columns = {}
    for split, name in dict.fromkeys(parts):
        values = [getattr(run, split).get(name) for run in table]
        if name not in ("step", "epoch", "seed", "seconds") and any(map(is_number, values)):
            columns[f"{split} {name}"] = [_exact(value, name) for value in values]
    return columns


def _exact(value: Any, name: str) -> str:
    """Format a number of any size; whole numbers are counts and settings."""
    if isinstance(value, int) or not is_number(value):
        return f"{value:,}" if is_number(value) else UNKNOWN
    return written(value, name, UNKNOWN)


def _plots(table: Sequence[Compared], metrics: Iterable[tuple[str, str]]) -> list[Plot]:
    """Return a chart of each number in the logs: first the metrics of the table on validation, then losses, then other
    metrics of the table, then the rest."""
    names, logged = [""] * max(run.number for run in table), curves(table)
    for run in table:
        names[run.number - 1] = labelled(run)
    on_val, on_test = ([f"val/{name}" for split, name in metrics if split == chosen] for chosen in ("val", "test"))
    first = [*on_val, *FIRST, *on_test]
    order = sorted(logged, key=lambda name: first.index(name) if name in first else len(first))
    return [plot(name, logged[name], names) for name in order]

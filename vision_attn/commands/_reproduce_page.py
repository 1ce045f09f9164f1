"""Write the page and the table of reproduced rows: the paper, ours before, ours now, curves and pictures."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.commands._paper_rows import PaperRow
from vision_attn.commands._reproduce_plan import ERRORS, Made, Number, Plan, measurements, numbers
from vision_attn.system.bounded_yaml import flat, read_yaml
from vision_attn.system.errors import UserError
from vision_attn.system.files import replacing
from vision_attn.viz.curves import Plot, plot
from vision_attn.viz.html import write_html

TABLE = "table.md"
GUIDE = (
    "Before: what docs/results.md says. Now, with the 95% interval. A number is called worse if it is so by more than "
    f"{ERRORS:g} standard errors of the difference: over seeds where the documents have several, else over images. By "
    "chance alone one number in forty is."
)


class _ShownRow(NamedTuple):
    """A row of the page."""

    name: str
    what: str
    paper: str
    seeds: str
    state: str
    """"as before", "worse", "not judged", "not yet" or "failed"."""
    numbers: list[tuple[str, str, str, str]]
    """The name, the number before and now, and the state of each column."""
    chart: Plot | None
    page: str
    """The address of the row's pictures, relative to the page; empty without."""
    picture: str


def state_of(numbers: Sequence[Number] | None, failed: bool) -> str:
    """Return the state of a row: see `_ShownRow.state`."""
    if numbers is None:
        return "failed" if failed else "not yet"
    judged = "as before" if any(number.judged for number in numbers) else "not judged"
    return "worse" if any(number.worse for number in numbers) else judged


def cells(row: PaperRow, number: Number) -> tuple[str, str, str, str]:
    """Return the column, a number before and now, and how they compare."""
    digits = row.decimals[number.column]
    between = "" if number.low is None else f" ({number.low:.{digits}f} to {number.high:.{digits}f})"
    state = "worse" if number.worse else "as before" if number.judged else "not judged"
    return number.column, f"{number.before:.{digits}f}", f"{number.now:.{digits}f}{between}", state


def write_pages(rows: Sequence[PaperRow], failed: Mapping[str, str], plan: Plan, notes: Sequence[str]) -> Path:
    """Write the table in Markdown, and the page. Returns the path of the page. failed: the reasons, by the names of
    rows."""
    numbers_of = {row.name: numbers(row, plan) for row in rows}
    with replacing(plan.out / TABLE) as path:
        path.write_text("\n".join(_lines(rows, numbers_of, failed)) + "\n", encoding="utf-8")
    sections: dict[str, list[_ShownRow]] = {}
    for row in rows:
        sections.setdefault(row.table, []).append(_shown_row(row, numbers_of[row.name], failed, plan))
    lines = max(
        (len(section.chart.lines) for some in sections.values() for section in some if section.chart), default=0
    )
    title = "Rows of papers, reproduced"
    return write_html(
        plan.out / "index.html",
        "reproduced.html",
        title=title,
        guide=GUIDE,
        notes=notes,
        sections=sections,
        lines=lines,
    )


def _lines(
    rows: Sequence[PaperRow], numbers_of: Mapping[str, Sequence[Number] | None], failed: Mapping[str, str]
) -> Iterator[str]:
    yield "| row | column | paper | ours before | ours now (95%) | |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        name, paper, some = row.name, row.paper, numbers_of[row.name]
        if some is None:
            yield f"| {name} | | {paper} | | | {failed.get(row.name, 'not yet')} |"
        for number in some or ():
            column, before, now, state = cells(row, number)
            yield f"| {name} | {column} | {paper} | {before} | {now} | {f'**{state}**' if number.worse else state} |"
            name = paper = ""


def _shown_row(row: PaperRow, some: Sequence[Number] | None, failed: Mapping[str, str], plan: Plan) -> _ShownRow:
    column, first = next(iter(measurements(row, plan).items()))
    training, out, _ = first[0]
    pictures = sorted((out / "pictures_test").glob("*.png"))
    page = out / "pictures_test" / "index.html"
    return _ShownRow(
        row.name,
        row.what,
        row.paper,
        ", ".join(str(training.seed) for training, _, _ in first),
        state_of(some, row.name in failed),
        [cells(row, number) for number in some or ()],
        None if some is None else _chart([training for training, _, _ in first]),
        page.relative_to(plan.out).as_posix() if page.is_file() else "",
        pictures[0].relative_to(plan.out).as_posix() if pictures else "",
    )


def _chart(runs: Sequence[Made]) -> Plot | None:
    """Make the chart of the metric that selected the weights, on validation, with a curve for each seed; None without a
    log."""
    curves: dict[str, list[tuple[float, float]]] = {}
    name = ""
    for training in runs:
        with suppress(UserError, OSError):
            name = f"val/{flat(read_yaml(training.folder / 'config.yaml'))['run.metric']}"
            logged = [_read_line(line) for line in (training.folder / "metrics.jsonl").read_bytes().splitlines()]
            points = [(float(line["step"]), float(line[name])) for line in logged if line.get(name) is not None]
            curves |= {f"seed {training.seed}": points} if len(points) > 1 else {}
    return plot(name, curves, list(curves)) if curves else None


def _read_line(line: bytes) -> dict[str, Any]:
    """Read a line of a log; empty for one that a killed process left half written."""
    try:
        logged = json.loads(line)
    except ValueError:
        return {}
    return logged if isinstance(logged, dict) else {}

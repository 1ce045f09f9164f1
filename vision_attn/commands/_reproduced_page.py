"""The page and the table of rows that were reproduced: the paper, ours before, ours now, curves and pictures."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.commands._paper_rows import Row
from vision_attn.commands._reproduction import ERRORS, Made, Number, Plan, measurements, numbers
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


class Shown(NamedTuple):
    """A row of the page."""

    name: str
    what: str
    paper: str
    seeds: str
    state: str
    """"as before", "worse", "not judged", "not yet" or "failed"."""
    numbers: list[tuple[str, str, str, str]]
    """Of each column: its name, before, now, and its state."""
    chart: Plot | None
    page: str
    """The address of its pictures, from the page; empty without."""
    picture: str


def state_of(found: Sequence[Number] | None, failed: bool) -> str:
    """What became of a row."""
    if found is None:
        return "failed" if failed else "not yet"
    judged = "as before" if any(one.judged for one in found) else "not judged"
    return "worse" if any(one.worse for one in found) else judged


def cells(row: Row, one: Number) -> tuple[str, str, str, str]:
    """A number before and now, and how they compare."""
    digits = row.decimals[one.column]
    between = "" if one.low is None else f" ({one.low:.{digits}f} to {one.high:.{digits}f})"
    state = "worse" if one.worse else "as before" if one.judged else "not judged"
    return one.column, f"{one.before:.{digits}f}", f"{one.now:.{digits}f}{between}", state


def write_pages(rows: Sequence[Row], failed: Mapping[str, str], plan: Plan, notes: Sequence[str]) -> Path:
    """Write the table in Markdown, and the page. failed: why, by the names of rows. Returns the path of the page."""
    found = {row.name: numbers(row, plan) for row in rows}
    with replacing(plan.out / TABLE) as path:
        path.write_text("\n".join(_lines(rows, found, failed)) + "\n", encoding="utf-8")
    sections: dict[str, list[Shown]] = {}
    for row in rows:
        sections.setdefault(row.table, []).append(_shown(row, found[row.name], failed, plan))
    lines = max((len(one.chart.lines) for some in sections.values() for one in some if one.chart), default=0)
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
    rows: Sequence[Row], found: Mapping[str, Sequence[Number] | None], failed: Mapping[str, str]
) -> Iterator[str]:
    yield "| row | column | paper | ours before | ours now (95%) | |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        name, paper, some = row.name, row.paper, found[row.name]
        if some is None:
            yield f"| {name} | | {paper} | | | {failed.get(row.name, 'not yet')} |"
        for one in some or ():
            column, before, now, state = cells(row, one)
            yield f"| {name} | {column} | {paper} | {before} | {now} | {f'**{state}**' if one.worse else state} |"
            name = paper = ""


def _shown(row: Row, some: Sequence[Number] | None, failed: Mapping[str, str], plan: Plan) -> Shown:
    column, first = next(iter(measurements(row, plan).items()))
    one, out, _ = first[0]
    pictures = sorted((out / "pictures_test").glob("*.png"))
    page = out / "pictures_test" / "index.html"
    return Shown(
        row.name,
        row.what,
        row.paper,
        ", ".join(str(each.seed) for each, _, _ in first),
        state_of(some, row.name in failed),
        [cells(row, each) for each in some or ()],
        None if some is None else _chart([each for each, _, _ in first]),
        page.relative_to(plan.out).as_posix() if page.is_file() else "",
        pictures[0].relative_to(plan.out).as_posix() if pictures else "",
    )


def _chart(runs: Sequence[Made]) -> Plot | None:
    """The metric that chose the weights, on validation, of each seed; None without a log."""
    curves: dict[str, list[tuple[float, float]]] = {}
    name = ""
    for one in runs:
        with suppress(UserError, OSError):
            name = f"val/{flat(read_yaml(one.folder / 'config.yaml'))['run.metric']}"
            logged = [_logged(line) for line in (one.folder / "metrics.jsonl").read_bytes().splitlines()]
            points = [(float(each["step"]), float(each[name])) for each in logged if each.get(name) is not None]
            curves |= {f"seed {one.seed}": points} if len(points) > 1 else {}
    return plot(name, curves, list(curves)) if curves else None


def _logged(line: bytes) -> dict[str, Any]:
    """A line of a log; empty for one that a killed process left half written."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

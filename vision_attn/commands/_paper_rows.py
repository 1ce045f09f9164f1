"""Read the rows of `vision-attn reproduce` from docs/results.yaml: how each is trained and measured, and how long that
takes.

The tables of docs/results.md are written from the same file, so that both agree.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import yaml

from vision_attn.system.console import suggest
from vision_attn.system.errors import UserError
from vision_attn.system.files import find, ours

FILE = "docs/results.yaml"
APART = ("command", "seeds", "hardware")
"""The columns that do not describe a row."""


class PaperTraining(NamedTuple):
    """A training: a config with options."""

    config: str
    options: Sequence[str] = ()
    seed: int | None = None
    """The seed; None for that of the row."""
    after: str | None = None
    """The training, or the included weights, that it starts from."""
    eval: Sequence[str] = ()
    """Further options of `eval`."""
    data: Sequence[str] | None = None
    """The data that must be found; None for those of the table."""
    cpu: float | None = None
    """The minutes on one core of a CPU."""
    images: int | None = None
    """The number of training images in all epochs."""
    rate: str | None = None
    """The name of the rate of a GPU that applies."""


class Measure(NamedTuple):
    """How the number in a column is read from the files that `eval` wrote."""

    metric: Sequence[str]
    """The names of the metric; the first that exists is used."""
    better: str | None = None
    """"max" or "min"; None if the number is shown but not judged."""
    times: float = 1.0
    exponential: bool = False
    eval: Sequence[str] = ()


class PaperRow(NamedTuple):
    """A row of a table that has numbers of ours."""

    name: str
    """The name of the row; empty if another command makes it, which `command` names."""
    table: str
    what: str
    paper: str
    seeds: Sequence[int]
    hardware: str
    command: str
    before: Mapping[str, Sequence[float]]
    """The numbers in the documents by column, one for each seed."""
    decimals: Mapping[str, int]
    measures: Mapping[str, Measure]
    trainings: Mapping[str, str]
    """The name of the training by column."""
    eval: Sequence[str]
    data: Sequence[str]
    weights: str | None
    """The included weights of this row; None without."""


@cache
def _documents() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    tables, rest = yaml.safe_load_all((ours() / FILE).read_text(encoding="utf-8"))
    return tables, rest


def tables() -> list[dict[str, Any]]:
    """Return the tables of the file."""
    return _documents()[0]


def rates() -> dict[str, dict[str, Any]]:
    """Return the training images per second on one H200 by the name of the rate, with the source of the number."""
    return _documents()[1]["rates"]


@cache
def trainings() -> dict[str, PaperTraining]:
    """Return all trainings by name."""
    return {name: PaperTraining(**{"config": name} | (keys or {})) for name, keys in _documents()[1]["runs"].items()}


@cache
def paper_rows() -> list[PaperRow]:
    """Return all rows with numbers of ours, in the order of the file."""
    return [row for table in tables() for row in _rows(table)]


def _rows(table: Mapping[str, Any]) -> Iterable[PaperRow]:
    first, said = table["columns"][0], ""
    measures = {column: _measure(keys) for column, keys in table.get("measures", {}).items()}
    for row in table["rows"]:
        said = row.get(first) or said
        if not row.get("seeds"):
            continue
        before = {
            name: [float(value) for value in row[name]] for name in table["decimals"] if isinstance(row.get(name), list)
        }
        name = row.get("name")
        named = row.get("runs") or (dict.fromkeys(before, name) if name in trainings() else {})
        own = trainings()[next(iter(named.values()))] if named else None
        texts = [
            said if column == first else row.get(column, "")
            for column in table["columns"]
            if column not in (*APART, *before)
            and not column.startswith("paper")
            and not isinstance(row.get(column), list)
        ]
        yield PaperRow(
            name or "",
            table["heading"],
            ", ".join(plain(text) for text in texts if text),
            _paper(row, before),
            row["seeds"],
            plain(row.get("hardware", "")),
            plain(row.get("command", "")),
            before,
            table["decimals"],
            measures,
            named,
            [*table.get("eval", ()), *(own.eval if own else ())],
            own.data if own and own.data is not None else table.get("data", ()),
            row.get("weights"),
        )


def _measure(keys: Mapping[str, Any]) -> Measure:
    names = keys["metric"]
    return Measure(
        **{**keys, "metric": [names] if isinstance(names, str) else names, "times": float(keys.get("times", 1))}
    )


def plain(text: str) -> str:
    """Remove the marks and links of Markdown from a text."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("**", "").replace("`", "")


def _paper(row: Mapping[str, Any], before: Iterable[str]) -> str:
    """Return the paper's numbers: from a column of their own, or from the paper's row."""
    if theirs := row.get("theirs"):
        return ", ".join(theirs.get(column, "-") for column in before)
    return ", ".join(str(value) for column, value in row.items() if column.startswith("paper"))


def chosen(names: Sequence[str]) -> list[PaperRow]:
    """Return the rows of these names, or of patterns such as "strings_*". Raises UserError, with a suggestion, for an
    unknown one."""
    known = {row.name: row for row in paper_rows() if row.name}
    matching: list[str] = []
    for name in names:
        some = fnmatch.filter(known, name)
        if not some:
            raise UserError(f"there is no row {name}{suggest(name, known)}; vision-attn reproduce lists them")
        matching += some
    return [known[name] for name in dict.fromkeys(matching)]


def chain(name: str) -> list[str]:
    """Return a training and all that must be trained before it, in order."""
    before = trainings()[name].after
    return [*(chain(before) if before in trainings() else ()), name]


def needed(row: PaperRow) -> list[str]:
    """Return all trainings of a row, in order."""
    return list(dict.fromkeys(training for name in row.trainings.values() for training in chain(name)))


def seconds(names: Iterable[str], *, gpu: bool) -> float | None:
    """Return the seconds that trainings take on one H200, or on one core of a CPU; None if one is unknown."""
    times = [_seconds(trainings()[name], gpu) for name in names]
    return None if None in times else sum(time for time in times if time is not None)


def _seconds(training: PaperTraining, gpu: bool) -> float | None:
    if not gpu:
        return None if training.cpu is None else 60.0 * training.cpu
    if training.images is None or training.rate is None:
        return None
    return training.images / rates()[training.rate]["images"] + _documents()[1]["overhead"]


def clock(spent: float) -> str:
    """Format a time in the largest units that fit: "40 s", "12 min", "3 h 20 min"."""
    if spent < 100:
        return f"{spent:.0f} s"
    hours, minutes = divmod(round(spent / 60), 60)
    return (f"{hours} h " if hours else "") + f"{minutes} min"


def missing(row: PaperRow) -> list[str]:
    """Return the data of a row that are not found."""
    return [name for name in row.data if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        find(name)
    except UserError:
        return False
    return True

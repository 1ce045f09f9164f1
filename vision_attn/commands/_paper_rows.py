"""The rows of papers that the documents have, how each is trained and measured, and how long that takes.

They lie in docs/results.yaml, from which the tables of docs/results.md are written as well, so that both say the same.
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
"""Columns that do not say what a row is."""


class PaperTraining(NamedTuple):
    """One run: a config with options."""

    config: str
    options: Sequence[str] = ()
    seed: int | None = None
    """None: that of the row."""
    after: str | None = None
    """The training, or the included weights, that it starts from."""
    eval: Sequence[str] = ()
    """Further options of `eval`."""
    data: Sequence[str] | None = None
    """What must be found; None: as its table says."""
    cpu: float | None = None
    """Minutes on a core of a CPU."""
    images: int | None = None
    """Training images of all epochs."""
    rate: str | None = None
    """Which of the rates of a GPU it has."""


class Measure(NamedTuple):
    """How the number in a column is read from what `eval` wrote."""

    metric: Sequence[str]
    """The first of these that is there."""
    better: str | None = None
    """"max" or "min"; None: the number is shown and not judged."""
    times: float = 1.0
    exponential: bool = False
    eval: Sequence[str] = ()


class PaperRow(NamedTuple):
    """A row of a table that has numbers of ours."""

    name: str
    """Empty if it is made by another command, which `command` names."""
    table: str
    what: str
    paper: str
    seeds: Sequence[int]
    hardware: str
    command: str
    before: Mapping[str, Sequence[float]]
    """By column, a number for each seed."""
    decimals: Mapping[str, int]
    measures: Mapping[str, Measure]
    trainings: Mapping[str, str]
    """By column, the name of what is trained."""
    eval: Sequence[str]
    data: Sequence[str]
    weights: str | None
    """Included weights of this row."""


@cache
def _documents() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    tables, rest = yaml.safe_load_all((ours() / FILE).read_text(encoding="utf-8"))
    return tables, rest


def tables() -> list[dict[str, Any]]:
    """The tables as the file has them."""
    return _documents()[0]


def rates() -> dict[str, dict[str, Any]]:
    """By name, training images a second on one H200, and what the number rests on."""
    return _documents()[1]["rates"]


@cache
def trainings() -> dict[str, PaperTraining]:
    """All trainings by name."""
    return {name: PaperTraining(**{"config": name} | (keys or {})) for name, keys in _documents()[1]["runs"].items()}


@cache
def rows() -> list[PaperRow]:
    """All rows with numbers of ours, in the order of the file."""
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
    """Text without the marks and links of Markdown."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("**", "").replace("`", "")


def _paper(row: Mapping[str, Any], before: Iterable[str]) -> str:
    """The paper's numbers: in a column of their own, or in those of the paper's row."""
    if theirs := row.get("theirs"):
        return ", ".join(theirs.get(column, "-") for column in before)
    return ", ".join(str(value) for column, value in row.items() if column.startswith("paper"))


def chosen(names: Sequence[str]) -> list[PaperRow]:
    """The rows of these names, or patterns such as "strings_*". Raises UserError, with a suggestion, for an unknown
    one."""
    known = {row.name: row for row in rows() if row.name}
    matching: list[str] = []
    for name in names:
        some = fnmatch.filter(known, name)
        if not some:
            raise UserError(f"there is no row {name}{suggest(name, known)}; vision-attn reproduce lists them")
        matching += some
    return [known[name] for name in dict.fromkeys(matching)]


def chain(name: str) -> list[str]:
    """A training and all that must be trained before it, in this order."""
    before = trainings()[name].after
    return [*(chain(before) if before in trainings() else ()), name]


def needed(row: PaperRow) -> list[str]:
    """All trainings of a row, in their order."""
    return list(dict.fromkeys(training for name in row.trainings.values() for training in chain(name)))


def seconds(names: Iterable[str], *, gpu: bool) -> float | None:
    """How long trainings take on one H200, or on a core of a CPU; None where it is not known of one."""
    times = [_seconds(trainings()[name], gpu) for name in names]
    return None if None in times else sum(time for time in times if time is not None)


def _seconds(training: PaperTraining, gpu: bool) -> float | None:
    if not gpu:
        return None if training.cpu is None else 60.0 * training.cpu
    if training.images is None or training.rate is None:
        return None
    return training.images / rates()[training.rate]["images"] + _documents()[1]["overhead"]


def clock(spent: float) -> str:
    """A time in the largest units that tell it: "40 s", "12 min", "3 h 20 min"."""
    if spent < 100:
        return f"{spent:.0f} s"
    hours, minutes = divmod(round(spent / 60), 60)
    return (f"{hours} h " if hours else "") + f"{minutes} min"


def missing(row: PaperRow) -> list[str]:
    """What of a row's data is not found."""
    return [name for name in row.data if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        find(name)
    except UserError:
        return False
    return True

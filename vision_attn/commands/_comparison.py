"""The computations of `vision-attn compare`: group comparable runs, find the keys that differ, and summarise metrics
over seeds."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

from vision_attn.system.console import unit_of

SEED = "run.seed"
APART = {"run.folder"}
"""The keys in which any two runs differ."""
TRAINING = frozenset(
    f"data.{name}"
    for name in (
        "batch_size", "cache", "crops", "download", "epoch_images", "evaluation_batch_size", "features", "flips",
        "function_words", "lengths", "max_length", "min_count", "residency", "rows", "shift", "shuffle", "train",
        "turns", "val_images", "verify", "vocabulary", "vocabulary_images",
    )
)  # fmt: skip
"""The keys of `data` that change training or how files are read, but not which images are in the test set."""
UNSAID = {"data.words": "spaces"}
"""The values of keys of `Compared.test_set` if a config lacks them: references are split like captions."""
HEADLINES = (
    "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "pointing", "error", "error_sequence", "bound", "nll",
)  # fmt: skip
"""The metrics of the test set that tables show by default."""
NO_CURVES = {"step", "epoch", "seconds", "threads"}
"""The numbers of a log that have no curve."""
LONGEST = 32
"""The largest number of letters of a setting in a table."""
_CLASS = re.compile(r"[a-z_]\w*(?:\.\w+)*\.[A-Z]\w*")


class Compared(NamedTuple):
    """The config, the metrics and the log of a run to compare."""

    name: str
    config: dict[str, Any]
    """The config, by keys as on the command line; only the seed for a model that was not trained here."""
    val: dict[str, Any]
    """The validation metrics of the best weights, with their `step`."""
    test: dict[str, Any]
    lines: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    position: dict[str, Any]
    """The state of training: the epoch, and whether it is done."""
    number: int = 1
    """The position of the run on the command line, from 1, by which tables and charts refer to it."""

    @property
    def test_set(self) -> dict[str, Any]:
        """The keys that determine the test images. `eval` may have changed them."""
        given = (text.removeprefix("--").split("=", 1) for text in self.test.get("overrides", ()))
        keys = self.config | {pair[0]: pair[1] for pair in given if len(pair) == 2}
        return {
            key: value
            for key, value in keys.items()
            if key.partition(".")[0] == "data" and key not in TRAINING and value is not None
        }

    @property
    def trained_here(self) -> bool:
        return bool(self.config.keys() - {SEED})


def tables(runs: Iterable[Compared]) -> list[list[Compared]]:
    """Group runs with the same task and the same test set, whose metrics can be compared. Groups are in the order of
    their first runs."""
    grouped: list[list[Compared]] = []
    for run in sorted(runs, key=lambda run: not run.trained_here):
        for table in grouped:
            if not unlike(table[0], run):
                table.append(run)
                break
        else:
            grouped.append([run])
    for table in grouped:
        table.sort(key=lambda run: run.number)
    return sorted(grouped, key=lambda table: table[0].number)


def unlike(first: Compared, second: Compared) -> str:
    """Return the reason why the metrics of two runs cannot be compared; empty if they can.

    A model that was not trained here has no config. Its task is recognised by its metrics, and its test set by the data
    options of `eval` and the number of images.
    """
    told = [run.test_set for run in (first, second)]
    if first.trained_here and second.trained_here:
        if first.config.get("task") != second.config.get("task"):
            return f"their tasks differ: {short(first.config.get('task'))} and {short(second.config.get('task'))}"
        keys = dict.fromkeys([*told[0], *told[1]])
    else:
        shared = first.test.keys() & second.test.keys() & {*HEADLINES, "BLEU-1"}
        if first.test and second.test and not shared:
            return "they have no metric in common"
        keys = dict.fromkeys(key for key in told[0] if key in told[1])
    for key in keys:
        values = [_text(test_set.get(key, UNSAID.get(key))) for test_set in told]
        if values[0] != values[1]:
            return f"their test sets differ in {key}: {' and '.join(shortest(values))}"
    counts = [run.test.get("images") for run in (first, second)]
    if None not in counts and counts[0] != counts[1]:
        return f"their test sets have {counts[0]:,} and {counts[1]:,} images"
    return ""


def why(tables: Sequence[Sequence[Compared]]) -> list[str]:
    """Return for each table but the first the reason why its runs are not in the previous one."""
    lines = []
    for number, table in enumerate(tables[1:], start=2):
        reasons = [(unlike(other[0], table[0]), place) for place, other in enumerate(tables[: number - 1], start=1)]
        reason, place = next((entry for entry in reasons if "test sets" in entry[0]), reasons[0])
        lines.append(f"tables {place} and {number} are apart, since {reason}")
    return lines


def named(table: Sequence[Compared]) -> str:
    """Return the title of a table: the task and the data of its runs."""
    first = next((run for run in table if run.trained_here), table[0])
    told = [short(first.config.get(key)) for key in ("task", "data") if first.config.get(key) is not None]
    return " on ".join(told) or "Models that were not trained here"


def different(runs: Sequence[Compared]) -> list[str]:
    """Return the keys whose values are not the same in all runs."""
    keys = dict.fromkeys(key for run in runs for key in run.config if key not in APART)
    return [key for key in keys if any(run.config.get(key) != runs[0].config.get(key) for run in runs)]


def told_keys(runs: Sequence[Compared]) -> tuple[list[str], int]:
    """Return the keys of `different` that a table shows, and the number of the others, which some runs lack because
    they have another class (the class is shown). Models that were not trained here are ignored."""
    keys = different([run for run in runs if run.trained_here])
    whole = [key for key in keys if all(key in run.config for run in runs if run.trained_here)]
    told = [key for key in keys if key in whole or not any(key.startswith(f"{above}.") for above in whole)]
    return told, len(keys) - len(told)


def metric_names(runs: Sequence[Compared], wanted: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return the split and the name of each metric of a table.

    wanted: the metrics to show on both splits; None: those that selected the best weights, and `HEADLINES` on the test
        set.
    """
    chosen = wanted or list(dict.fromkeys(str(run.config.get("run.metric")) for run in runs if run.trained_here))
    names = [(split, name) for name in chosen for split in ("val", "test")]
    more = [] if wanted else [("test", name) for name in HEADLINES if any(name in run.test for run in runs)]
    return list(dict.fromkeys([*names, *more]))


class ComparisonRow(NamedTuple):
    """A row of a table: a run, or the mean of runs that differ only in their seed."""

    run: Compared | None
    seeds: int
    """The number of runs in the mean; 1 for a run."""
    values: list[float | None]
    """A value for each metric of the table."""
    spread: list[float | None]
    """Their standard deviations over seeds; empty for a run."""


def comparison_rows(runs: Sequence[Compared], names: Sequence[tuple[str, str]]) -> list[ComparisonRow]:
    """Return the rows of a table: each run, and the mean below runs that differ only in their seed."""
    listed = []
    for group in _seeds(runs):
        numbers = [[_number(getattr(run, split).get(name)) for split, name in names] for run in group]
        listed += [ComparisonRow(run, 1, values, []) for run, values in zip(group, numbers, strict=True)]
        if len(group) > 1 and len({run.config.get(SEED) for run in group}) == len(group):  # not the same run twice
            columns = [[value for value in column if value is not None] for column in zip(*numbers, strict=True)]
            full = [column if len(column) == len(group) else [] for column in columns]
            means, spread = ([of(column) if column else None for column in full] for of in (mean, stdev))
            listed.append(ComparisonRow(None, len(group), means, spread))
    return listed


def _seeds(runs: Sequence[Compared]) -> list[list[Compared]]:
    """Group runs that differ only in their seed. A model that was not trained here is a group of its own."""
    groups: dict[str, list[Compared]] = {}
    for run in runs:
        rest = {key: value for key, value in run.config.items() if key not in APART | {SEED}} or run.number
        groups.setdefault(json.dumps(rest, sort_keys=True, default=str), []).append(run)
    return list(groups.values())


def labelled(run: Compared) -> str:
    """Return the label of a run in a legend."""
    return f"{run.number} {run.name}"


def curves(
    runs: Iterable[Compared], wanted: Sequence[str] | None = None
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the curves in the logs by the name of a number and the label of a run.

    wanted: the metrics to return; None: all numbers.
    """
    by_number: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for run in runs:
        for line in run.lines:
            for name, value in line.items():
                asked = not wanted or name.rpartition("/")[2] in wanted
                if asked and name not in NO_CURVES and is_number(value) and is_number(line.get("step")):
                    points = by_number.setdefault(name, {}).setdefault(labelled(run), [])
                    points.append((float(line["step"]), float(value)))
    return by_number


def tested(runs: Sequence[Compared], wanted: Sequence[str] | None) -> dict[str, dict[str, float]]:
    """Return the metrics of the test set by the name of a metric and the label of a run."""
    groups: dict[str, dict[str, float]] = {}
    for split, name in metric_names(runs, wanted):
        values: dict[str, Any] = {labelled(run): run.test.get(name) for run in runs if split == "test"}
        if there := {label: float(value) for label, value in values.items() if is_number(value)}:
            groups[f"test/{name}"] = there
    return groups


def unfinished(runs: Iterable[Compared]) -> list[str]:
    """Return a line for each run whose training is not done."""
    return [
        f"{run.name} is not finished: epoch {run.position.get('epoch')} is done"
        for run in runs
        if run.position.get("done") is False
    ]


def written(value: float | None, name: str, unknown: str = "-") -> str:
    """Format a metric for a table, with its unit; `unknown` where there is none."""
    return unknown if value is None else f"{value:.4f}{unit_of(name)}"


def settings(runs: Sequence[Compared], key: str) -> list[str]:
    """Return the value of a key in each run, short enough for a table; "-" where a run lacks it."""
    return shortest([_text(run.config[key]) if key in run.config else "-" for run in runs])


def shortest(texts: Sequence[str]) -> list[str]:
    """Shorten dotted paths to their class, and long texts, as long as different texts stay different."""
    brief = [short(text) for text in texts]
    return brief if len(set(brief)) == len(set(texts)) else list(texts)


def short(value: Any) -> str:
    text = _text(value)
    text = text.rpartition(".")[2] if _CLASS.fullmatch(text) else text
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2 - 2]}...{text[1 - LONGEST // 2 :]}"


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list | Mapping) else str(value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None

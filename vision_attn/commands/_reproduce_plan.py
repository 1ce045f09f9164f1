"""Plan `vision-attn reproduce`: the commands that train and measure each row, and the comparison of its numbers with
the documents."""

from collections.abc import Mapping, Sequence
from math import exp, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from vision_attn.commands._paper_rows import Measure, PaperRow, needed, paper_rows, seconds, trainings
from vision_attn.commands._run_options import best_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import read_json

STOPPED = (130, 141, 143)
"""The exit statuses of a verb that was interrupted, or whose reader has left. No further row is started."""
ERRORS = 2.0
"""The number of standard errors by which a number may be worse."""
Z = 1.96
QUICK = "data"
"""The folder of the data that `--quick` reads."""


class Plan(NamedTuple):
    """Where and how rows are made."""

    out: Path
    seeds: int = 1
    """The number of a row's seeds that are trained."""
    included: bool = False
    """Measure included weights, and train nothing."""
    device: str = "auto"
    show: int = 8
    """The number of images that are drawn."""
    options: Sequence[str] = ()
    """Further options of training."""
    quick: bool = False


class Number(NamedTuple):
    """A number of a row, before and now."""

    column: str
    before: float
    now: float
    low: float | None
    high: float | None
    """The upper end of the 95% interval of the number now; None where no standard error is known."""
    error: float | None
    """The standard error of the difference."""
    worse: bool
    judged: bool


class Made(NamedTuple):
    """A training of a row with a seed, and its folders."""

    name: str
    seed: int
    folder: Path
    """The folder of the run, or of the included weights."""
    out: Path
    """The folder that its metrics are written to."""


def seeds_of(row: PaperRow, plan: Plan) -> Sequence[int]:
    """Return the seeds of a row to train. A row with several stages has the seeds of the documents."""
    return row.seeds[:1] if plan.included or len(needed(row)) > len(row.trainings) else row.seeds[: plan.seeds]


def made(row: PaperRow, column: str, seed: int, plan: Plan) -> Made:
    """Return the run, or the included weights, that a column of a row is measured on."""
    if row.weights is not None and (plan.included or not row.trainings):
        return Made(row.name, seed, Path(row.weights), plan.out / f"{row.name}-included")
    return trained(row.trainings[column], seed, row, plan)


def trained(name: str, seed: int, row: PaperRow, plan: Plan) -> Made:
    own = trainings()[name].seed
    if own is None and name not in row.trainings.values():  # that of its own row, if it has one
        own = next((other.seeds[0] for other in paper_rows() if name in other.trainings.values()), 0)
    folder = plan.out / (name if own is not None or seed == row.seeds[0] else f"{name}-seed{seed}")
    return Made(name, seed if own is None else own, folder, folder)


def steps(row: PaperRow, plan: Plan) -> list[Made]:
    """Return all trainings of a row, in order."""
    if plan.included or not row.trainings:
        return []
    return list(dict.fromkeys(trained(name, seed, row, plan) for seed in seeds_of(row, plan) for name in needed(row)))


def train_words(run: Made, row: PaperRow, plan: Plan) -> list[str]:
    """Return the command line of `train`."""
    training, start = trainings()[run.name], []
    if training.after in trainings():
        start = [f"--run.start_from={trained(training.after, run.seed, row, plan).folder}"]
    elif training.after and not plan.quick:
        start = [f"--run.start_from={training.after}"]
    elif training.after:
        start = ["--run.start_from=null"]
    device = [f"--run.device={plan.device}"] if plan.device != "auto" else []
    words = ["train", training.config, f"--run.folder={run.folder}", f"--run.seed={run.seed}"]
    if plan.quick:
        from vision_attn.commands._quick_rows import small

        device += small(training, plan.out / QUICK)
    return [*words, *start, *training.options, *device, *plan.options]


def measurements(row: PaperRow, plan: Plan) -> dict[str, list[tuple[Made, Path, list[str]]]]:
    """Return for each column and seed the run to measure, the folder of its record, and the options of `eval`."""
    by_column: dict[str, list[tuple[Made, Path, list[str]]]] = {}
    for column in row.before:
        own = row.measures[column].eval
        for seed in seeds_of(row, plan):
            training = made(row, column, seed, plan)
            out = training.out / column.replace(" ", "_") if own else training.out
            by_column.setdefault(column, []).append((training, out, [*row.eval, *own]))
    return by_column


def eval_words(training: Made, out: Path, options: Sequence[str], plan: Plan) -> list[str]:
    """Return the command line of `eval`."""
    device = [f"--device={plan.device}"] if plan.device != "auto" else []
    return ["eval", str(training.folder), f"--out={out}", f"--show={plan.show}", *device, *options]


def is_measured(training: Made, out: Path, options: Sequence[str]) -> bool:
    """Return whether the record in `out` was made with the current weights and these options."""
    try:
        record = read_json(out / "metrics_test.json")
    except UserError:
        return False
    keys = [option for option in options if "." in option.split("=")[0]]
    step = best_of(training.folder).get("step") if training.folder == training.out else record.get("step")
    return record.get("step") == step and [key for key in record.get("overrides", ()) if key in keys] == keys


def left(row: PaperRow, plan: Plan, *, gpu: bool) -> float | None:
    """Return the seconds that the trainings of a row still take, by the epochs that are done; None where no time is
    known."""
    total = 0.0
    for step in steps(row, plan):
        known = seconds([step.name], gpu=gpu)
        if known is None:
            return None
        total += known * (1 - _done(step.folder))
    return total


def _done(folder: Path) -> float:
    """Return the share of a run's epochs that are done."""
    try:
        position, config = read_json(folder / "last" / "position.json"), (folder / "config.yaml").read_text()
    except (UserError, OSError):
        return 0.0
    import yaml

    epochs = yaml.safe_load(config)["run"]["epochs"]
    return 1.0 if position.get("done") else min(1.0, position.get("epoch", 0) / epochs)


def numbers(row: PaperRow, plan: Plan) -> list[Number] | None:
    """Return the numbers of a row now with those of the documents; None unless all are measured."""
    collected = []
    for column, measured in measurements(row, plan).items():
        if not all(is_measured(*measurement) for measurement in measured):
            return None
        read = [value_of(row.measures[column], out) for _, out, _ in measured]
        values = [value for value in read if value is not None]
        if len(values) < len(read):
            return None
        measure = row.measures[column]
        measure = measure._replace(better=None) if plan.quick else measure
        collected.append(compared(column, row.before[column], values, measure, row.decimals[column]))
    return collected


class Value(NamedTuple):
    """A number of one run, with its standard error over images and the number of images."""

    value: float
    error: float | None
    images: int
    is_share: bool
    """Whether the number is a share of the images in percent."""


def value_of(measure: Measure, out: Path) -> Value | None:
    """Read a number from the record in `out`; None if the record has none."""
    record = read_json(out / "metrics_test.json")
    name = next((name for name in measure.metric if isinstance(record.get(name), int | float)), None)
    if name is None:
        return None
    images, value = int(record.get("images", 0)), float(record[name])
    is_share = name.startswith("error") and not (out / "transcripts_test.json").is_file() or name == "error_sequence"
    error = _error(name, value, record, out, images, is_share)
    if measure.exponential:
        value, error = exp(value), None if error is None else exp(value) * error
    return Value(value * measure.times, None if error is None else error * measure.times, images, is_share)


def _error(name: str, value: float, record: Mapping[str, Any], out: Path, images: int, is_share: bool) -> float | None:
    """Return the standard error over images: from the interval in the record; for a share the binomial one; for
    transcripts by a jackknife."""
    ends = record.get("intervals", {}).get(name) or [record.get(f"{name}_{end}") for end in ("low", "high")]
    if None not in ends:
        return (ends[1] - ends[0]) / (2 * Z)
    if is_share:
        return _binomial(value, images)
    if name == "pointing":
        return _binomial(100 * value, images) / 100
    if name == "error" and (file := out / "transcripts_test.json").is_file():
        import numpy as np

        from vision_attn.metrics.intervals import ratio

        lines = read_json(file)["transcripts"]
        sums = np.array([100 * line["edits"] for line in lines])
        return float(ratio(sums, np.array([max(1, len(line["reference"])) for line in lines])).error)
    return None


def _binomial(percent: float, images: int) -> float:
    share = min(1.0, max(0.0, percent / 100))
    return 100 * sqrt(share * (1 - share) / max(1, images))


def compared(column: str, before: Sequence[float], values: Sequence[Value], measure: Measure, decimals: int) -> Number:
    """Compare a number now and before: it is worse if it differs by more than `ERRORS` standard errors of the
    difference.

    The standard errors are over seeds if the documents have several, and at least the last digit shown; otherwise over
    images.
    """
    now, old = mean(value.value for value in values), mean(before)
    errors = [value.error for value in values if value.error is not None]
    own = None if len(errors) < len(values) else sqrt(sum(error**2 for error in errors)) / len(errors)
    if len(before) > 1:
        spread = max(stdev(before), 10.0**-decimals)
        error = spread * sqrt(1 / len(before) + 1 / len(values))
    elif own is None:
        error = None
    else:
        first = _binomial(old, values[0].images) if values[0].is_share else own
        error = sqrt(first**2 + own**2)
    low, high = _interval(values, now, own)
    gain = now - old if measure.better == "max" else old - now
    judged = measure.better is not None and error is not None
    worse = measure.better is not None and error is not None and gain < -ERRORS * error
    return Number(column, old, now, low, high, error, worse, judged)


def _interval(values: Sequence[Value], now: float, own: float | None) -> tuple[float | None, float | None]:
    """Return the 95% interval: over seeds by Student's t, or over images."""
    if len(values) > 1:
        from scipy.special import stdtrit

        half = float(stdtrit(len(values) - 1, 0.975)) * stdev(value.value for value in values) / sqrt(len(values))
    elif values[0].is_share and values[0].images:
        from vision_attn.metrics.errors import wilson

        low, high = wilson(round(now / 100 * values[0].images), values[0].images)
        return 100 * low, 100 * high
    elif own is None:
        return None, None
    else:
        half = Z * own
    return now - half, now + half

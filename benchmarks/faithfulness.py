"""Does a map that points also explain? `python -m benchmarks.faithfulness RUN...`, of runs on drawn scenes.

Every method of maps of a ViT (`configs/vit_scenes.yaml`) or of captioners of scenes, on the test split, where the box
of what each answer names is known: the gain of its order over a random one, beside pointing and mass. A page for each
run lies in `--out`; `--figure` draws gain against pointing. Runs of one name but for the seed at its end (`soft_0`,
`soft_1`) are also put together. For a page of `--out` in place of a run, the numbers are those measured before.
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import torch

from benchmarks.charts import Axis, Chart, save
from benchmarks.measure import spread
from vision_attn.faithfulness.measurement import Measured, MeasureSettings, gains
from vision_attn.metrics.attention import rank_correlation
from vision_attn.results.faithfulness import MeasureResult
from vision_attn.results.opening import open_model


def table(result: MeasureResult) -> str:
    """The table of a run, in Markdown."""
    numbers = result.numbers
    lines = [f"{result.file}: {numbers['answers']} answers to {numbers['images']} scenes. {result.text}", ""]
    lines += [
        "| Method | gain (unadjusted 95% interval) | of the best | pointing | mass | random weights |",
        "|---|---|---|---|---|---|",
    ]
    for name, method in sorted(result.methods.items(), key=lambda item: -item[1]["gain"]):
        ends = method["gain_interval"]
        interval = "-" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"
        share = "-" if method["share"] is None else f"{method['share']:.0%}"
        pointed = f"{method['pointing']:.3f} | {method['mass']:.3f}"
        alike = f"{method['sanity'][-1]:.2f}" if "sanity" in method else "-"
        lines.append(f"| {name} | {method['gain']:.3f} ({interval}) | {share} | {pointed} | {alike} |")
    uniform = numbers["uniform"]
    lines.append(f"| uniform | | | {uniform['pointing']:.3f} | {uniform['mass']:.3f} | |")
    return "\n".join([*lines, "", pointing_and_gain(result), ""])


def pointing_and_gain(result: MeasureResult) -> str:
    """The relation of pointing and gain: over methods as a rank correlation, and over answers as the mean gain of maps
    that point and of maps that do not."""
    lines = [f"Rank correlation of pointing and gain over methods: {correlation(result):.2f}."]
    for name, (there, not_there) in gains_by_pointing(result).items():
        if there and not_there:
            lines.append(f"{name}: gain {mean_of(there)} where its map points, {mean_of(not_there)} where it does not.")
    return " ".join(lines)


def correlation(result: MeasureResult) -> float:
    """The rank correlation of pointing and gain over the methods of a run."""
    table = torch.tensor([[method["pointing"] for method in result.methods.values()],
                         [method["gain"] for method in result.methods.values()]])  # fmt: skip
    return float(rank_correlation(table)[0, 1])


def gains_by_pointing(result: MeasureResult) -> dict[str, tuple[list[float], list[float]]]:
    """For each method, return the gains of the maps that point at the object that their answer names, and of those that
    do not."""
    answers = [
        answer for image in result.numbers["each"] for answer in image["answers"] if answer["pointing"] is not None
    ]
    by_method: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in result.methods}
    for answer in answers:
        for name, pointing, gain in zip(by_method, answer["pointing"][:-1], gains(Measured(**answer)), strict=True):
            by_method[name][pointing <= 0.5].append(float(gain))
    return by_method


def mean_of(values: Sequence[float]) -> str:
    """Format the mean, and the number of values."""
    return f"{mean(values):.3f} ({len(values)})" if values else "-"


def families(results: Sequence[MeasureResult]) -> dict[str, list[MeasureResult]]:
    """Group runs that differ in their seed alone, by the name that they share."""
    by_name: dict[str, list[MeasureResult]] = {}
    for result in results:
        by_name.setdefault(re.sub(r"_\d+$", "", Path(result.file).name), []).append(result)
    return by_name


def table_of_seeds(family: str, results: Sequence[MeasureResult]) -> str:
    """The table of the runs of a family: mean and standard deviation of the runs; of the words of all of them, the
    mean gain of maps that point and of maps that do not."""
    correlations = ", ".join(f"{correlation(result):.2f}" for result in results)
    lines = [f"{family}: {len(results)} runs; rank correlation of pointing and gain over methods {correlations}", ""]
    lines += [
        "| Method | gain | pointing | mass | gain where the map points | where it does not |",
        "|---|---|---|---|---|---|",
    ]
    every = [gains_by_pointing(result) for result in results]
    rows = []
    for name in results[0].methods:
        columns = [[result.methods[name][key] for result in results] for key in ("gain", "pointing", "mass")]
        split = [[gain for of_run in every for gain in of_run[name][side]] for side in (0, 1)]
        rows.append((mean(columns[0]), f"| {name} | {' | '.join([*map(spread, columns), *map(mean_of, split)])} |"))
    uniform = [mean(result.numbers["uniform"][key] for result in results) for key in ("pointing", "mass")]
    lines += [row for _, row in sorted(rows, reverse=True)]
    return "\n".join([*lines, f"| uniform | | {uniform[0]:.3f} | {uniform[1]:.3f} | | |", ""])


def figure(results: Sequence[MeasureResult], picture: Path) -> None:
    """A chart for each family of runs: the gain of each method against its pointing, a point for each run."""
    names = list(dict.fromkeys(name for result in results for name in result.methods))
    charts = []
    for family, runs in families(results).items():
        methods = [run.methods for run in runs]
        lines = {
            name: [(of_run[name]["pointing"], of_run[name]["gain"]) for of_run in methods if name in of_run]
            for name in names
        }
        title = f"gain over a random order, {family}"
        charts.append(
            Chart(lines, Axis("pointing", logarithmic=False), Axis(title, logarithmic=False), frozenset(names))
        )
    save(charts, picture)


def measured(run: Path, methods: list[str], number: int, settings: MeasureSettings, out: Path) -> MeasureResult:
    """Return the numbers of a run and write its page, or read those of a page that was written before."""
    before = run / "measure.json"
    if before.is_file():
        numbers = json.loads(before.read_text(encoding="utf-8"))
        return MeasureResult(numbers.pop("model"), numbers, [])
    model = open_model(run, device="cpu")
    result = model.measure(number=number, methods=methods or None, **settings._asdict())
    result.write_folder(out / run.name)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faithfulness", description=__doc__)
    what = "the folder of a run on scenes, or a copy of its best/; or of a page that this command wrote"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=what)
    parser.add_argument("--images", type=int, default=100, help="scenes of each run (default: 100)")
    parser.add_argument("--method", action="append", default=[], help="only this method; may be repeated")
    parser.add_argument(
        "--best", type=int, default=MeasureSettings().best, metavar="N", help="answers whose best order is searched"
    )
    parser.add_argument("--figure", type=Path, metavar="PNG", help="also draw gain against pointing")
    parser.add_argument("--out", type=Path, default=Path("faithfulness"), help="where pages go")
    parser.add_argument("--quick", action="store_true", help="two scenes: tests that it runs, measures nothing")
    options = parser.parse_args()
    settings = MeasureSettings(steps=2, best=0, sanity=1) if options.quick else MeasureSettings(best=options.best)
    number, results = 2 if options.quick else options.images, []
    for run in options.runs:
        results.append(measured(run, options.method, number, settings, options.out))
        print(table(results[-1]))
    for family, runs in families(results).items():
        if len(runs) > 1:
            print(table_of_seeds(family, runs))
    if options.figure:
        figure(results, options.figure)


if __name__ == "__main__":
    main()

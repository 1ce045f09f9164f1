"""Does a map that points also explain? `python -m benchmarks.faithfulness RUN...`, of runs on drawn scenes.

Every method of maps of a ViT (`configs/vit_scenes.yaml`) or of captioners of scenes, on the test split, where the box
of what each answer names is known: the gain of its order over a random one, beside pointing and mass. A page for each
run lies in `--out`; `--figure` draws gain against pointing.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.charts import Axis, Chart, save
from vision_attn.explain.measure import Measured, Settings, gains
from vision_attn.metrics.attention import rank_correlation
from vision_attn.results.measured import MeasureResult
from vision_attn.results.model import open_model


def table(result: MeasureResult) -> str:
    """The table of a run, in Markdown."""
    numbers = result.numbers
    lines = [f"{result.file}: {numbers['answers']} answers to {numbers['images']} scenes. {result.text}", ""]
    lines += [
        "| Method | gain (95% interval) | of the best | pointing | mass | random weights |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in sorted(result.methods.items(), key=lambda item: -item[1]["gain"]):
        low, high = one["gain_interval"]
        share = "-" if one["share"] is None else f"{one['share']:.0%}"
        pointed = f"{one['pointing']:.3f} | {one['mass']:.3f}"
        alike = f"{one['sanity'][-1]:.2f}" if "sanity" in one else "-"
        lines.append(f"| {name} | {one['gain']:.3f} ({low:.3f} to {high:.3f}) | {share} | {pointed} | {alike} |")
    uniform = numbers["uniform"]
    lines.append(f"| uniform | | | {uniform['pointing']:.3f} | {uniform['mass']:.3f} | |")
    return "\n".join([*lines, "", pointing_and_gain(result), ""])


def pointing_and_gain(result: MeasureResult) -> str:
    """How pointing goes with the gain: over methods as a rank correlation, and over answers as the mean gain of maps
    that point and of maps that do not."""
    some = torch.tensor([[one["pointing"] for one in result.methods.values()],
                         [one["gain"] for one in result.methods.values()]])  # fmt: skip
    lines = [f"Rank correlation of pointing and gain over methods: {float(rank_correlation(some)[0, 1]):.2f}."]
    answers = [one for image in result.numbers["each"] for one in image["answers"] if one["pointing"] is not None]
    every = [
        (number, one["pointing"][number] > 0.5, gains(Measured(**one))[number])
        for one in answers
        for number in range(len(result.methods))
    ]
    for number, name in enumerate(result.methods):
        both = [[gain for of, pointed, gain in every if of == number and pointed == value] for value in (True, False)]
        if all(both):
            there, not_there = (f"{sum(some) / len(some):.3f} ({len(some)})" for some in both)
            lines.append(f"{name}: gain {there} where its map points, {not_there} where it does not.")
    return " ".join(lines)


def figure(results: Sequence[MeasureResult], picture: Path) -> None:
    """A chart for each run: the gain of each method against its pointing."""
    names = list(dict.fromkeys(name for result in results for name in result.methods))
    charts = []
    for result in results:
        points = {name: (one["pointing"], one["gain"]) for name, one in result.methods.items()}
        lines = {name: [points[name]] if name in points else [] for name in names}
        title = f"gain over a random order, {Path(result.file).name}"
        charts.append(
            Chart(lines, Axis("pointing", logarithmic=False), Axis(title, logarithmic=False), frozenset(names))
        )
    save(charts, picture)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faithfulness", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run on scenes, or a copy of its best/")
    parser.add_argument("--images", type=int, default=100, help="scenes of each run (default: 100)")
    parser.add_argument("--method", action="append", default=[], help="only this method; may be repeated")
    parser.add_argument(
        "--best", type=int, default=Settings().best, metavar="N", help="answers whose best order is searched"
    )
    parser.add_argument("--figure", type=Path, metavar="PNG", help="also draw gain against pointing")
    parser.add_argument("--out", type=Path, default=Path("faithfulness"), help="where pages go")
    parser.add_argument("--quick", action="store_true", help="two scenes: tests that it runs, measures nothing")
    options = parser.parse_args()
    settings = Settings(steps=2, best=0, sanity=1) if options.quick else Settings(best=options.best)
    results = []
    for run in options.runs:
        model, number = open_model(run, device="cpu"), 2 if options.quick else options.images
        results.append(model.measure(number=number, methods=options.method or None, **settings._asdict()))
        results[-1].write_folder(options.out / Path(run).name)
        print(table(results[-1]))
    if options.figure:
        figure(results, options.figure)


if __name__ == "__main__":
    main()

"""Does a map that points also explain? `python -m benchmarks.faithfulness RUN...`, of runs on drawn scenes.

Every method of maps of a ViT (`configs/vit_scenes.yaml`) or of captioners of scenes, on the test split, where the box
of what each answer names is known: the gain of its order over a random one, beside pointing and mass. A page for each
run lies in `--out`.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image
from torch import Tensor

from vision_attn.explain.measure import Measurement, Settings
from vision_attn.results.explainer import explainer_of_run, sees_photographs
from vision_attn.results.measured import result_of, subject_of_run
from vision_attn.results.model import Model, open_model
from vision_attn.system.console import progress


def scenes(model: Model, number: int) -> Iterator[tuple[Image.Image, Callable[[str], list]]]:
    """The first test scenes of a run, with the boxes of what a text names: for a classifier the star's."""
    left = number
    for batch in model.source.split("test"):
        for image, boxes in zip(batch.images[:left], batch.boxes[:left], strict=True):
            pixels = (255 * image).round().byte() if image.is_floating_point() else image
            picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
            if isinstance(boxes, Tensor):
                yield picture, lambda _, star=boxes: [star.tolist()]
            else:
                yield picture, lambda text, known=boxes: [list(map(float, box)) for box in known.get(text, ())]
        left -= len(batch.images)
        if left <= 0:
            return


def table(folder: str, out: Path, number: int, settings: Settings) -> str:
    """The table of a run, in Markdown; its page lies in `out`."""
    model = open_model(folder, device="cpu")
    if sees_photographs(model.task):
        subject = explainer_of_run(model.task, model.source, model.name, model.device).subject()
    else:
        subject = subject_of_run(model.task, model.name, model.device, model.seed)
    measurement = None
    for count, (picture, boxes) in enumerate(progress(scenes(model, number), what=folder, unit="scene", total=number)):
        measurement = measurement or Measurement(subject, subject.methods(subject.read(picture)), settings)
        measurement.add(f"scene {count + 1}", picture, boxes)
    measurement.finish()
    result = result_of(measurement, folder)
    result.write_folder(out / Path(folder).name)
    lines = [f"{folder}: {result.numbers['answers']} answers to {number} scenes. {result.text}", ""]
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
    uniform = result.numbers["uniform"]
    return "\n".join([*lines, f"| uniform | | | {uniform['pointing']:.3f} | {uniform['mass']:.3f} | |", ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faithfulness", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run on scenes, or a copy of its best/")
    parser.add_argument("--images", type=int, default=100, help="scenes of each run (default: 100)")
    parser.add_argument("--out", type=Path, default=Path("faithfulness"), help="where pages go")
    parser.add_argument("--quick", action="store_true", help="two scenes: tests that it runs, measures nothing")
    options = parser.parse_args()
    settings = Settings(steps=2, best=0, sanity=1) if options.quick else Settings()
    for run in options.runs:
        print(table(run, options.out, 2 if options.quick else options.images, settings))


if __name__ == "__main__":
    main()

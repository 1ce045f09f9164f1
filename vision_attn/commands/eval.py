"""Measure a trained run on one split of its data, and show what it does.

Prints a table and writes metrics_SPLIT.json and, for captioners, captions_SPLIT.json (COCO results format) and
scores_SPLIT.jsonl (the metrics of each image; --each writes them elsewhere), into the run folder or another. Metrics of
captions have intervals of 95%, as `score` gives them. --number 100 measures a sample, which is faster. Keys of the
config may be overridden, for example if the data moved: --data.images=FOLDER. Several runs of captioners are measured
as an ensemble, which averages their probabilities of each word. It has the data and the decoding of the first run, and
writes into its folder ensemble/. A captioner of transformers, transformers:NAME-or-folder, is measured on photographs
with captions, such as --data.images=FOLDER --data.annotations=FILE, or on other data that --data names.

With several GPUs: torchrun --nproc-per-node=4 eval.py RUN. Each process predicts a part of the split, and the first one
computes the metrics, which equal those of a single process.
"""

import argparse
import json
import math
import os
import platform
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision_attn.commands._files import add_figure_arguments, check_file, figure_options, place, writable
from vision_attn.commands._old_pictures import PAGE, old_pictures_removed, others_kept
from vision_attn.commands._run_options import (
    add_overlay,
    add_run_arguments,
    best_of,
    is_run,
    measured_in,
    named,
    names_after_options,
    open_with,
    view_of,
)
from vision_attn.system.checks import check_range
from vision_attn.system.console import plural, say, unit_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import finite, ours, read_json, shipped
from vision_attn.system.inputs import check_replaced, writes
from vision_attn.system.machine import processor
from vision_attn.system.memory import collected_later

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.engine.distributed import World
    from vision_attn.results.model import Model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn eval`."""
    add_run_arguments(parser, pretrained=True)
    parser.add_argument("others", nargs="*", type=named, metavar="RUN", help="further captioners, for an ensemble")
    parser.add_argument("--split", default="test", help="train, val or test (default: test)")
    parser.add_argument(
        "--out",
        type=place,
        metavar="FOLDER",
        help="where to write (default: the run folder; runs/NAME for included weights)",
    )
    parser.add_argument(
        "--each", type=place, metavar="FILE.jsonl", help="of captioners: write the metrics of each image there"
    )
    parser.add_argument("--json", action="store_true", help="print the record that is written, as a JSON object")
    parser.add_argument(
        "--number", type=int, metavar="N",
        help="only N items, which the run's seed chooses from all of the split; written into the folder sample_N, "
        "unless these are all",
    )  # fmt: skip
    parser.add_argument("--show", type=int, default=0, metavar="N", help="also draw N images (at most one batch)")
    add_figure_arguments(parser, "the images of --show")
    add_overlay(parser)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, print and write; the exit status is 1 when a metric could not be computed."""
    with collected_later():
        from vision_attn.engine.distributed import join

    with join(arguments.device) as world:
        arguments.device = str(world.device)
        return world.broadcast(evaluated(arguments, world))


def evaluated(arguments: argparse.Namespace, world: "World") -> int:
    """Evaluate this process's part; the first process prints, writes, and returns the exit status."""
    names, arguments.overrides = names_after_options(arguments.overrides, lambda word: is_run(shipped(word)))
    arguments.others = [*arguments.others, *names]
    if arguments.show < 0:
        raise UserError(f"--show is {arguments.show}, but must not be negative")
    if arguments.number is not None:
        check_range("eval", 1, 10_000_000, number=arguments.number)
    figure = figure_options(arguments)
    if arguments.figure and not arguments.show:
        raise UserError("--figure draws the images of --show: add --show N")
    model = open_with(arguments)
    from vision_attn.engine.batches import examples
    from vision_attn.engine.distributed import seed_all
    from vision_attn.metrics.errors import without_softmax

    folders = [str(folder) for folder in (arguments.folder, *arguments.others)]
    if model.source is None:
        raise UserError(f"name the photographs to measure {folders[0]} on: --data.images=FOLDER")
    mine = Path(folders[0]).is_dir() and ours() / "weights" not in Path(folders[0]).resolve().parents
    place = Path(folders[0]) if mine else measured_in(folders[0])
    asked = arguments.number
    if asked is not None and covers(model, arguments.split, asked):
        arguments.number = None
    joint = (len(folders) > 1 or arguments.number is not None) and not arguments.out
    sample = "" if arguments.number is None else f"sample_{arguments.number}"
    out = writable(arguments.out or Path(place, "ensemble" * (len(folders) > 1), sample), "--out")
    pictures = out / f"pictures_{arguments.split}"
    for link in (out, pictures) if joint else (pictures,):
        if link.is_symlink():  # a run folder may come from anyone, and its links may lead anywhere
            raise UserError(f"{link} is a link: remove it, or name another folder with --out")
    written = out / f"metrics_{arguments.split}.json"
    if view_of(arguments) and model.task.verb != "caption":
        raise UserError(f"--overlay and --scale are for captioners, and {folders[0]} holds a {model.task.kind}")
    if arguments.each:
        if model.task.kind != "captioner":
            raise UserError(f"--each is for captioners, and {folders[0]} holds a {model.task.kind}")
        check_file(arguments.each, "--each")
    for file in {written, out / f"captions_{arguments.split}.json", *out.glob(f"*_{arguments.split}.json")}:
        writes(file, "--out")
    if arguments.show:
        others_kept(pictures)
        writes(pictures / PAGE, "--out")
    with redirect_stdout(sys.stderr) if arguments.json else nullcontext():
        metrics, record = evaluate(
            model, arguments.split, out, world, runs=folders, overrides=arguments.overrides, each=arguments.each,
            number=arguments.number,
        )  # fmt: skip
        if not world.is_main:
            return 0
        shown = ""
        if arguments.show > 0:
            batch = examples(model.task, model.source.split(arguments.split), arguments.show, model.device)
            seed_all(model.seed)
            with old_pictures_removed(pictures):
                paths = model.task.show(batch, pictures, **view_of(arguments))
                more = f" and {len(paths) - 1} more in this folder" * (len(paths) > 1)
                shown = f"pictures: {paths[0]}{more}" if paths else "no pictures"
                if arguments.figure:
                    from vision_attn.viz.figures.drawing import save
                    from vision_attn.viz.figures.paper import Paper

                    seed_all(model.seed)
                    save(model.task.figure(batch, Paper(**figure), **view_of(arguments)), arguments.figure)
                    shown += f"; figure: {arguments.figure}"
        # All is written by now: the reader of what is printed may leave.
        if not arguments.json:
            items = plural(record["images"], model.task.unit)
            chosen = f", chosen from all by the seed {model.seed} (--number)" if sample else ""
            chosen = chosen or ("" if asked is None else f", all that there are: --number {asked} leaves none out")
            say(f"{arguments.split}: {items}{chosen}")
            for line in table(metrics, record.get("intervals", {})):
                say(line)
        for line in without_softmax(metrics):
            say(line)
        say(f"written to {written}")
        if shown:
            say(shown)
    if arguments.json:
        say(json.dumps(record))
    return 1 if any(math.isnan(value) for value in metrics.values()) else 0


def covers(model: "Model", split: str, number: int) -> bool:
    """Return whether a split has at most `number` items."""
    from vision_attn.engine.batches import items_of

    assert model.source is not None
    model.source.only(split)
    model.source.prepare(model.task)
    return number >= items_of(partial(model.source.split, split))


def evaluate(
    model: "Model",
    split: str,
    out: Path,
    world: "World",
    *,
    runs: Sequence[str],
    overrides: Sequence[str] = (),
    each: Path | None = None,
    number: int | None = None,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Compute the metrics of `split`, and a record of them with settings and versions. The first process returns both,
    and writes the record into `out`; the others return empty dicts.

    each: the file for the metrics of each image of a captioner, instead of scores_SPLIT.jsonl in `out`.
    number: how many items to measure; None: all."""
    import torch

    from vision_attn.engine.batch_size import DoesNotFit
    from vision_attn.engine.batches import sampled
    from vision_attn.engine.predictions import predictions
    from vision_attn.engine.short_of_memory import in_evaluation
    from vision_attn.metrics.coco.results import EACH, INTERVALS
    from vision_attn.system.files import replacing, scratch

    intervals: dict[str, Any] = {}
    task, source, config = model.task, model.source, model.config
    source.only(split)
    source.prepare(task)
    task.prepare_evaluation(source)
    began, sizes = time.perf_counter(), list[int]()
    with torch.no_grad():
        mine = {"rank": world.rank, "world": world.size}
        batches = (
            source.split(split, **mine)
            if number is None
            else sampled(partial(source.split, split), number, model.seed, **mine)
        )
        options: dict[str, Any] = {"seed": model.seed, "what": f"evaluate {split}", "full": True, "sizes": sizes}
        options["within"] = model.turn
        predicted = predictions(task, batches, world, **options)
        if not world.is_main:
            deque(predicted, maxlen=0)
            world.gather_to_main(sum(sizes))
            return {}, {}
        # Files behind the metrics, such as captions.json, get a temporary name first, then one that names the split.
        with scratch("eval", out) as folder:
            short = None
            try:
                metrics = task.judge(predicted, folder)
            except DoesNotFit as error:
                short = error
            if short is not None:  # no error is its context, and the command prints it as it is
                raise in_evaluation(short, source)
            for file in folder.iterdir():
                if file.name == INTERVALS:
                    intervals = {"intervals": read_json(file)}
                elif each and file.name == EACH:
                    with replacing(each) as place:  # which may lie on another disk
                        shutil.copyfile(file, place)
                else:
                    check_replaced(place := out / f"{file.stem}_{split}{file.suffix}", "--out")
                    os.replace(file, place)
    seconds = time.perf_counter() - began
    record = finite(metrics) | {
        "split": split,
        "images": sum(world.gather_to_main(sum(sizes))),
        "run": runs[0] if len(runs) == 1 else list(runs),
        "seed": config.get("run", {}).get("seed"),
    }
    record |= intervals | ({} if number is None else {"number": number})
    step = best_of(shipped(runs[0])).get("step") if len(runs) == 1 else None
    record |= {} if step is None else {"step": step}  # by which `compare` knows whether training went on since
    record |= {"overrides": list(overrides)} if overrides else {}
    record |= {"processes": world.size} if world.size > 1 else {}
    record |= task.settings | machine(model.device, model.turn.threads)
    record |= {"seconds": round(seconds, 1), "time": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    with replacing(out / f"metrics_{split}.json") as path:
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return metrics, record


def table(metrics: Mapping[str, float], intervals: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield a line for each metric, with its 95% interval where there is one."""
    width = max(map(len, metrics))
    for name, value in metrics.items():
        ends = intervals.get(name)
        yield f"{name:{width}}  {value:8.4f}{unit_of(name)}" + (f"  ({ends[0]:.4f} to {ends[1]:.4f})" if ends else "")
    if intervals:
        yield "in brackets: 95% intervals over images, each by itself, by a jackknife, as of vision-attn score"


def machine(device: Any, threads: int) -> dict[str, Any]:
    """Return the device and the versions of everything that the numbers depend on."""
    import torch

    import vision_attn
    from vision_attn.system.thread_trial import named

    name = f"{processor()}, {named(threads)}"
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions |= {"torchvision": version("torchvision"), "vision_attn": vision_attn.__version__}
    return {
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else name,
        "versions": versions,
    }

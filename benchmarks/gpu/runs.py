"""The blocks that train: `draw64`, `ram` and `captioners`, by configs of this repository and `train` as users run it.

Each run has its own process and its share of the block's time. It first trains two epochs to see how long one takes,
then as many as fit, so that the schedule of the learning rate reaches its end; then it is evaluated on the test split.
"""

import json
import shutil
import statistics
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.block import Options, Row, run
from benchmarks.gpu.fit import Asked
from benchmarks.gpu.tiny import tiny_run
from vision_attn.configuration.run_settings import Run
from vision_attn.engine import checkpoint
from vision_attn.system.files import read_json, replacing

LATE = 30
"""Seconds after its time at which a run is killed. It stops itself before."""
LIMIT = 15 * 2**20
"""Bytes of an archive; the next run begins another one."""
SEEDS = (0, 1, 2)
FEW = 4
"""Steps with `quick`."""


class Recipe(NamedTuple):
    """A run: its name, its config, what it changes, and at most how many steps it trains."""

    name: str
    config: str
    overrides: tuple[str, ...] = ()
    most_steps: int | None = None
    """As in `Asked`."""
    goal: str = ""
    """The number to reach, of the metric that selects the best weights."""
    fast: bool = True
    """Whether it is long enough to pay for compiling and capturing. If not, the settings of the config hold."""


def draw64(options: Options) -> Iterator[Row]:
    """DRAW with 64 time steps, with and without attention."""
    yield from trained(
        options,
        [
            Recipe("draw_mnist", "draw_mnist", goal="80.97"),
            Recipe("draw_mnist_no_attention", "draw_mnist_no_attention", goal="87.40"),
        ],
    )


def ram(options: Options) -> Iterator[Row]:
    """RAM and DRAW's reader, for as many as 100,000 steps."""
    goals = {
        "ram_mnist28": "0.9", "ram_translated60": "0.9", "ram_cluttered60": "2.0", "ram_cluttered100": "1.7",
        "draw_reader_cluttered100": "1.5",
    }  # fmt: skip
    yield from trained(options, [Recipe(name, name, (), 100_000, goal) for name, goal in goals.items()])


def captioners(options: Options) -> Iterator[Row]:
    """Soft and hard attention on Flickr8k, three seeds of each, and how much the seeds differ.

    Needs no Java: weights are selected by the likelihood of references. Captions of the test split are in the archive.
    """
    common = ["--task.validate_with=[]", "--run.metric=nll", "--run.mode=min", "--run.validate_every=1"]
    common += [f"--data.cache={Path(options.runs) / 'cache'}", "--data.residency=device"]
    recipes = [
        Recipe(f"{config}_seed{seed}", config, (*common, f"--run.seed={seed}"), fast=False)
        for config in ("sat_soft_flickr8k", "sat_hard_flickr8k")
        for seed in SEEDS
    ]
    found: dict[str, list[dict]] = {}
    for row in trained(options, recipes):
        yield row
        found.setdefault(row.what.partition("_seed")[0], []).append(row.numbers.get("test", {}))
    for config, metrics in found.items():
        for name in ("nll", "BLEU-4", "CIDEr"):
            values = [each[name] for each in metrics if each.get(name) is not None]
            if len(values) > 1:
                mean, deviation = statistics.fmean(values), statistics.stdev(values)
                yield Row(f"{config}, {name}", f"{mean:.4g} +- {deviation:.2g} over {len(values)} seeds")


def trained(options: Options, recipes: Sequence[Recipe]) -> Iterator[Row]:
    """One row for each run, with an equal share of the time that is left."""
    until = time.monotonic() + options.seconds
    for number, recipe in enumerate(recipes[:1] if options.quick else recipes):
        share = (until - time.monotonic()) / (len(recipes) - number)
        yield carried_out(options, recipe, share)


def carried_out(options: Options, recipe: Recipe, seconds: float) -> Row:
    """Train and evaluate in another process, by the first of `ways` that works."""
    deadline = time.monotonic() + seconds
    folder = Path(options.runs) / recipe.name
    result = folder.with_name(f"{recipe.name}.json")
    tiny = tiny_run(recipe.config) if options.quick else []
    failures = []
    for fast in ways(options) if recipe.fast else [[]]:
        result.unlink(missing_ok=True)
        left = deadline - time.monotonic()
        overrides = [*recipe.overrides, *tiny, *fast, f"--run.device={options.device}"]
        most_steps = FEW if options.quick else recipe.most_steps
        asked = Asked(recipe.config, str(folder), overrides, left, most_steps)
        status = run([sys.executable, "-m", "benchmarks.gpu.fit", json.dumps(asked), str(result)], left + LATE)
        found: dict[str, Any] = read_json(result) if result.exists() else {"error": f"it ended with {status}"}
        if "error" not in found:
            archive(options, recipe.name, folder)
            return Row(recipe.name, said(found, recipe.goal), found | {"failures": failures})
        failures.append(": ".join([*fast, found["error"]]))
        print(f"{recipe.name} {failures[-1]}", flush=True)
        if checkpoint.begun(folder) or deadline - time.monotonic() < seconds / 3:
            break
    return Row(recipe.name, f"failed: {failures[-1]}", {"failures": failures})


def ways(options: Options) -> list[list[str]]:
    """Overrides that make steps fast, best first; settings that the engine does not have are left out."""
    if options.device == "cpu":
        return [[]]
    known = [name for name in ("compile", "capture") if name in (field.name for field in fields(Run))]
    tried = [known] * options.compile + [["capture"], []]
    switches = [[f"--run.{name}={str(name in on).lower()}" for name in known] for on in tried]
    return [each for number, each in enumerate(switches) if each not in switches[:number]]


def said(found: dict[str, Any], goal: str) -> str:
    """The result of a run in words."""
    test, metric = found["test"], found["metric"]
    names = [metric, *(name for name in ("nll", "error_copies", "BLEU-4") if name in test and name != metric)]
    parts = [f"{name} {test[name]:.4g}" for name in names if test.get(name) is not None]
    parts += [f"goal {goal}"] * bool(goal) + [
        f"{found['done']} of {found['epochs']} epochs (recipe: {found['recipe']})"
    ]
    chosen = [name for name, value in (found["chosen"] or {}).items() if value is True]
    return ", ".join([*parts, f"{found['steps']:,} steps, {found['rate']:,.0f} items/s", *chosen])


def archive(options: Options, name: str, folder: Path) -> None:
    """Add what a run left to OUT/BLOCK.N.tar, without checkpoints, and without weights if they are too large."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and kept(path.relative_to(folder))]
    if bytes_of(files) > LIMIT:
        files = [path for path in files if path.suffix != ".safetensors"]
    number = 1
    while (tar := Path(options.out) / f"{options.block}.{number}.tar").exists():
        if bytes_of([tar, *files]) <= LIMIT:
            break
        number += 1
    with replacing(tar) as temporary:
        if tar.exists():
            shutil.copyfile(tar, temporary)
        with tarfile.open(temporary, "a") as into:
            for path in files:
                into.add(path, f"{name}/{path.relative_to(folder)}")


def bytes_of(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def kept(path: Path) -> bool:
    return path.parts[0] not in ("last", "previous", "pictures") and not path.name.startswith(".")

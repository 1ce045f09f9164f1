"""Count the CUDA graphs that an epoch of each config needs: `python -m benchmarks.graphs [CONFIG ...]`. Needs no GPU.

Prints a row for each config: the number of batches in an epoch; the number of their signatures (each may have a graph);
the number of signatures that occur often enough to be captured; the share of steps that replay or prepare these graphs;
and the share of padding among the words that a GPU computes (in brackets: if batches were in random order). No model
runs, and no photograph is read.
"""

import argparse
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vision_attn.configuration.config import build, read
from vision_attn.data.grouping import Stratified, padding
from vision_attn.data.photographs.batches import CaptionTable
from vision_attn.data.photographs.captions import Captions
from vision_attn.engine.capture import WARM_UP, signature
from vision_attn.system.console import say
from vision_attn.task import Task
from vision_attn.tasks.caption import Captioning

CONFIGS = Path(__file__).parents[1] / "configs"
Found = tuple[list, str]
"""The signature of each batch, and the share of padding."""


def photographs(source: Captions, task: Task) -> Found:
    """Count an epoch of photographs, from their captions alone."""
    members = source.photographs["train"]
    table = CaptionTable(members, np.arange(len(members)), source.vocabulary, source.max_length)
    rng = np.random.default_rng(0)
    lengths = -np.sort(-table.words.lengths(table.pick(source.rows, rng)), axis=1)
    groups = Stratified(table.most_words(source.rows), source.batch_size).epoch(rng)
    size = len(groups[0].members)
    order = rng.permutation(len(lengths))[: len(groups) * size].reshape(-1, size)
    before = 1 - lengths[order].sum() / (lengths[order].max(axis=(1, 2)).sum() * size * source.rows)
    share = f"{padding(groups, lengths):.1%} ({before:.1%})" if task.criteria.given else "no words"
    return [group.shape if task.criteria.given else None for group in groups], share


def generated(batches: Iterable[Any], task: Task) -> Found:
    """Count batches that are generated."""
    signatures, words, computed = [], 0, 0
    for batch in batches:
        given = task.captured_batch(batch)
        signatures.append(signature(given))
        if isinstance(task, Captioning) and task.criteria.given:
            images, rows, length = given[1].shape
            words += int((batch.words != 0).sum())
            computed += sum(map(sum, batch.lengths)) if batch.lengths else images * rows * length
    return signatures, f"{1 - words / computed:.1%}" if computed else "no words"


def row(config: str, most: int, overrides: list[str]) -> str:
    """A row of the table, of at most this number of batches if they are generated."""
    built = build(read(CONFIGS / f"{config}.yaml", overrides))
    source, task = built["data"], built["task"](built["data"])
    # The lengths of samples are multiples of four.
    for criterion in task.criteria.sampling if isinstance(task, Captioning) else ():
        criterion.sample = lambda model, regions, references: ()
    if task.uncapturable:
        return f"| `{config}` | not captured: {task.uncapturable} | | | | |"
    if isinstance(source, Captions):
        signatures, share = photographs(source, task)
    else:
        source.prepare(task)
        signatures, share = generated(islice(source.train(0, seed=0), most), task)
    counts = Counter(signatures).values()
    often = [count for count in counts if count >= WARM_UP]
    replayed = sum(often) / len(signatures)
    return f"| `{config}` | {len(signatures)} | {len(counts)} | {len(often)} | {replayed:.1%} | {share} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="*", default=sorted(path.stem for path in CONFIGS.glob("*.yaml")))
    parser.add_argument("--most", type=int, default=800, help="batches of generated data that are looked at")
    arguments, overrides = parser.parse_known_args()
    say("| Config | batches | shapes | graphs | steps with these | padding |\n|---|---|---|---|---|---|")
    for config in arguments.configs:
        try:
            say(row(config, arguments.most, overrides))
        except ValueError as error:
            say(f"| `{config}` | {error} | | | | |")


if __name__ == "__main__":
    main()

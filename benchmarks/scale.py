"""`python -m benchmarks.scale` trains on cached annotation vectors that do not fit into memory.

Writes as many vectors as COCO has images, 25 GB (`--images`), and trains a captioner on random batches of them, in a
process that may use 4 GB (`--memory`); then on as many as fit, in main memory. The limit counts the pages of files that
the system keeps, and needs a memory controller that this user may set (root, mostly); the table says whether it held.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import accelerated, resident, table
from benchmarks.shapes import QUICK, Shapes, random_batch
from vision_attn.attention.scores import Additive
from vision_attn.data.photographs.annotation_vectors.feature_index import complete
from vision_attn.data.photographs.annotation_vectors.features import SHARD, Features
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.system.console import progress
from vision_attn.system.machine import processor

ROOT = Path(__file__).parent.parent
GROUPS = Path("/sys/fs/cgroup")
FITS = 4096
"""The number of images of the set that is kept in main memory: 0.8 GB."""


def write(folder: Path, header: dict[str, Any]) -> None:
    """A complete cache of random vectors; all shards hold the same ones, but lie in files of their own."""
    images, regions, size = header["shape"]
    vectors = np.random.default_rng(0).standard_normal((min(SHARD, images), regions, size)).astype(np.float16)
    shards = []
    for first in progress(range(0, images, SHARD), what="writing", unit="part"):
        path = folder / f"{first // SHARD:05}.npy"
        np.save(path, vectors[: images - first])
        forget(path)
        shape = [min(SHARD, images - first), regions, size]
        entry = {"file": path.name, "shape": shape, "bytes": path.stat().st_size, "sha256": "", "unreadable": {}}
        shards.append(entry)
    complete(folder, header, shards)


def forget(path: Path) -> None:
    """Remove a file from the system's cache: pages that another process has read do not count against a limit."""
    if sys.platform != "linux":
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def limited(memory: float) -> bool:
    """Whether this process may use no more than `memory` GB from now on, pages of files included."""
    name = f"vision_attn_{os.getpid()}"
    for group, limit in ((GROUPS / "memory" / name, "memory.limit_in_bytes"), (GROUPS / name, "memory.max")):
        with suppress(OSError):
            group.mkdir()
            (group / limit).write_text(str(int(memory * 1e9)))
            (group / "cgroup.procs").write_text(str(os.getpid()))
            return True
    return False


def train(folder: str, residency: str, memory: float, steps: int, *, quick: bool = False) -> dict[str, float | bool]:
    """Train for some steps on random images. Returns rates in images per second, and GB of memory at the peak."""
    torch.set_num_threads(1)
    held = memory > 0 and limited(memory)
    shapes = (QUICK if quick else Shapes(rows=1))._replace(images=2 if quick else 64)
    features = Features([Path(folder)], residency, torch.device("cpu"))
    images = json.loads((Path(folder) / "index.json").read_text())["shape"][0]
    sizes = {"hidden_size": shapes.hidden, "word_size": shapes.word}
    score = partial(Additive, attention_size=shapes.attention)
    model = accelerated(ShowAttendTell(shapes.vocabulary, shapes.region_size, **sizes, score=score))
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4, fused=True)
    words, rng = random_batch(shapes).words, np.random.default_rng(1)
    loading = working = 0.0
    for number in range(steps + 1):
        rows = rng.integers(0, images, shapes.images)
        start = time.perf_counter()
        regions = features.gather(rows, features.space(len(rows))).float()
        loaded = time.perf_counter()
        (-model(regions, words).log_prob.sum() / len(rows)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number:  # the first is warm-up
            loading += loaded - start
            working += time.perf_counter() - loaded
    number = steps * shapes.images
    rates = {"loaded": number / loading, "trained": number / (loading + working)}
    return {**rates, "memory": resident(peak=True) / 1e9, "held": held}


def scale(images: int, memory: float, steps: int, folder: Path, *, quick: bool = False) -> str:
    """The table: both sets, each in a process of its own."""
    shapes = QUICK if quick else Shapes()
    rows = []
    for name, number, residency, limit in (
        ("on disk", images, "memmap", memory), ("in main memory", min(images, FITS), "memory", 0.0),
    ):  # fmt: skip
        with tempfile.TemporaryDirectory(dir=folder) as place:
            write(Path(place), {"format": 1, "shape": [number, shapes.regions, shapes.region_size]})
            asked = place, residency, limit, steps
            if quick:
                measured = train(place, residency, 0.0, steps, quick=True)
            else:
                command = [sys.executable, "-m", "benchmarks.scale", "--train", json.dumps(asked)]
                done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
                measured = json.loads(done.stdout)
        size = f"{number * shapes.regions * shapes.region_size * 2 / 1e9:.1f} GB"
        allowed = f"{limit:g} GB" if measured["held"] else "no limit"
        rates = f"{measured['loaded']:.0f}", f"{measured['trained']:.1f}"
        rows.append((name, f"{number:,}", size, allowed, *rates, f"{measured['memory']:.1f} GB"))
    columns = ("", "images", "vectors", "memory allowed", "loaded, images/s", "trained, images/s", "largest in use")
    return table(f"{processor()}, one thread, {steps} steps of one caption per image", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--images", type=int, default=123_287, help="images of the large set (default: COCO's)")
    parser.add_argument("--memory", type=float, default=4.0, help="GB that training on it may use (default: 4)")
    parser.add_argument("--steps", type=int, default=100, help="optimiser steps of 64 images (default: 100)")
    parser.add_argument("--folder", type=Path, default=Path("."), help="where the vectors are written for the time")
    parser.add_argument("--quick", action="store_true", help="small sizes: tests that it runs, measures nothing")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train:
        print(json.dumps(train(*json.loads(asked.train))))
        return
    images, steps = (600, 2) if asked.quick else (asked.images, asked.steps)
    print(scale(images, asked.memory, steps, asked.folder, quick=asked.quick))


if __name__ == "__main__":
    main()

"""`python -m benchmarks.captions` measures the start and the memory of several processes that read ten million
captions.

Writes an annotation file of two million images with five captions each (`--images`), an empty file for each image, and
a cache of small annotation vectors, so that a source starts as it does with real ones. Then starts `--processes`
processes at once, twice: the first time one of them reads the captions while the others wait, the second time all find
them in the cache.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import resident, table
from benchmarks.scale import write
from vision_attn.contracts import Encoder
from vision_attn.data.photographs import annotations as annotations_source
from vision_attn.data.photographs.annotation_vectors.feature_index import folder_name, make_header
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.photographs.mirrored_views import Views
from vision_attn.data.photographs.store import locate
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.system.console import progress
from vision_attn.system.files import replacing
from vision_attn.system.machine import processor
from vision_attn.task import SPLITS, Task

ROOT = Path(__file__).parent.parent
CAPTIONS = 5
"""The number of captions of an image."""
FOLDER = 1000
"""The number of images in a folder."""
WORDS = [f"{first}{second}{third}" for first in "bcdfghklmn" for second in "aeiou" for third in "lmnrst"]
VALIDATION = 1000
"""The number of images of the validation split."""


class Finished(Encoder):
    """Two regions of four numbers; nothing is computed, because the cache is complete."""

    trainable, grid, region_size, resolution = False, (1, 2), 4, 32

    def identity(self) -> dict[str, str | int]:
        return {"backbone": "benchmark"}


class Stand(Task):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Finished()


def source(folder: Path, *, cached: bool = True) -> Captions:
    return Captions(
        images=str(folder / "images"),
        annotations=str(folder / "captions.json"),
        vocabulary=str(folder / "vocabulary.json"),
        cache=str(folder / "cache") if cached else None,
    )


def make(folder: Path, images: int) -> None:
    """Write the annotation file, the images and the vocabulary."""
    Vocabulary.build(WORDS, min_count=1).save(folder / "vocabulary.json")
    with replacing(folder / "captions.json") as path, path.open("w") as file:
        file.write('{"images": [')
        file.write(
            ",\n".join(_image(number, images) for number in progress(range(images), what="images", unit="image"))
        )
        file.write('],\n"annotations": [')
        notes = _notes(images)
        file.write(next(notes))
        file.writelines(
            f",\n{note}" for note in progress(notes, what="captions", unit="caption", total=CAPTIONS * images)
        )
        file.write("]}\n")
    for number in progress(range(images), what="files", unit="file"):
        if number % FOLDER == 0:
            (folder / "images" / f"{number // FOLDER:05}").mkdir(parents=True)
        (folder / "images" / _name(number)).touch()


def prepare(folder: Path) -> None:
    """Write a cache of vectors of these images, in a process of its own, because it reads all captions."""
    photographs = locate(source(folder, cached=False).photographs, dict.fromkeys(SPLITS, folder / "images"))
    header = make_header(Finished(), Views(photographs, flips=False))
    place = folder / "cache" / folder_name(header)
    place.mkdir(parents=True)
    write(place, header)


def start(folder: str, batches: int) -> dict[str, float]:
    """Prepare the source and draw batches; return seconds, and GB of memory that this process does not share."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    annotations_source.LARGE = 0  # whatever the number of images
    data = source(Path(folder))
    data.prepare(Stand())
    stream = chain.from_iterable(data.train(epoch, seed=0) for epoch in count())
    drawn = next(stream)
    ready = time.perf_counter()
    for _ in range(batches):
        drawn = next(stream)
    rate = batches * len(drawn.ids) / (time.perf_counter() - ready)
    return {"start": ready - begun, "rate": rate, "own": _own() / 1e9, "peak": resident(peak=True) / 1e9}


def captions(images: int, processes: int, folder: Path, *, quick: bool = False) -> str:
    """The table: all processes at once, the first and the second time. If `quick`, one after the other, in this one."""
    rows, batches = [], 2 if quick else 200
    with tempfile.TemporaryDirectory(dir=folder) as place:
        make(Path(place), images)
        if quick:
            prepare(Path(place))
        else:
            _run([["--prepare", place]])
        for name in ("first start", "second start"):
            if quick:
                starts = [start(place, batches) for _ in range(processes)]
            else:
                starts = [json.loads(text) for text in _run([["--start", json.dumps([place, batches])]] * processes)]
            worst = {key: max(measured[key] for measured in starts) for key in ("start", "own", "peak")}
            slowest = min(measured["rate"] for measured in starts)
            memory = (f"{worst[key]:.2f} GB" for key in ("own", "peak"))
            rows.append((name, f"{worst['start']:.1f} s", *memory, f"{slowest:,.0f}"))
        size = (Path(place) / "captions.json").stat().st_size / 1e9
    title = f"{processor()}: {CAPTIONS * images:,} captions of {images:,} images ({size:.1f} GB), {processes} processes"
    columns = ("", "start", "memory of its own", "largest, shared pages included", "images/s of each")
    return table(title, columns, rows)


def _run(commands: list[list[str]]) -> list[str]:
    """Start several processes of this program at once, and return what each prints."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.captions", *command], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit("benchmarks.captions: a process failed; see above")
    return printed


def _own() -> int:
    """Bytes of memory in use that no file holds; where the system does not tell, all bytes in use."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return resident(peak=False)
    sizes = dict(line.split()[:2] for line in lines[1:])
    return 1024 * int(sizes["Anonymous:"])


def _name(number: int) -> str:
    return f"{number // FOLDER:05}/{number:08}.jpg"


def _image(number: int, images: int) -> str:
    split = "val" if number >= images - min(VALIDATION, images // 10) else "train"
    return json.dumps({"id": number, "file_name": _name(number), "split": split})


def _notes(images: int) -> Iterator[str]:
    rng = np.random.default_rng(0)
    for number in range(images):
        chosen = rng.integers(0, len(WORDS), (CAPTIONS, 11))
        for words in chosen.tolist():
            caption = " ".join([WORDS[word] for word in words])
            yield f'{{"image_id": {number}, "caption": "{caption}"}}'


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.captions", description=__doc__)
    parser.add_argument("--images", type=int, default=2_000_000, help="images with five captions (default: 2,000,000)")
    parser.add_argument("--processes", type=int, default=4, help="processes that read them at once (default: 4)")
    parser.add_argument("--folder", type=Path, default=Path("."), help="where the files are written for the time")
    parser.add_argument("--quick", action="store_true", help="small sizes: tests that it runs, measures nothing")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.start:
        print(json.dumps(start(*json.loads(asked.start))))
    elif asked.prepare:
        prepare(Path(asked.prepare))
    else:
        if asked.images < 100 or asked.processes < 1:
            parser.error("--images must be at least 100, and --processes at least 1")
        images, processes = (1000, 2) if asked.quick else (asked.images, asked.processes)
        print(captions(images, processes, asked.folder, quick=asked.quick))


if __name__ == "__main__":
    main()

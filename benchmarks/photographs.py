"""Measure how long it takes to read photographs for an encoder: milliseconds of each part and of the whole, on one core
and on two.

The reference, `before`, is the code until version 1.1: a thread per core read a file in small pieces, resized the
picture by Pillow and made a tensor of it; then all tensors were stacked and put in order.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.loaders import painted
from benchmarks.measure import table
from benchmarks.shapes import Shapes
from vision_attn.data.images.open import open_photograph
from vision_attn.data.images.resizing import grouped, in_floats, resized
from vision_attn.data.images.squares import in_threads, read_seen, seen_box
from vision_attn.data.photographs.pixels import AHEAD, CPU, HeldPixels, Pixels, View
from vision_attn.system.files import find
from vision_attn.system.machine import cores

SIDE = 448
"""The side of the squares in `configs/sat_photographs.yaml`."""
BATCH, BATCHES = 64, 6
Sizes = tuple[str, list[Path]]


def photographs(shapes: Shapes, repeats: int) -> str:
    """The tables of all parts, and of whole batches; milliseconds for each photograph, the least of all rounds: others
    on the machine make each slower, never faster."""
    number, side = (4, 32) if shapes.quick else (BATCH, SIDE)
    rounds = 1 if shapes.quick else max(3, repeats)
    with tempfile.TemporaryDirectory() as folder:
        sets = [files(Path(folder), 224, 224, number), files(Path(folder), 640, 480, number)]
        return "\n".join([_parts(sets, side, rounds), _wholes(sets, side, rounds)])


def files(folder: Path, width: int, height: int, number: int) -> Sizes:
    """Photographs of this size: those of Flickr8k where they are there, else noise that compresses about as well."""
    try:
        files = sorted(find("flickr8k/images").glob("*.jpg"))[:number]
    except Exception:
        return f"{width} x {height}, painted", painted(folder, width, height, number)
    paths = []
    for path in files:
        with Image.open(path) as image:
            resized_ = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
        paths.append(path if (width, height) == image.size else folder / f"{width}-{path.name}")
        if paths[-1] != path:
            grain = np.random.default_rng(0).integers(-6, 7, (height, width, 3))  # or it would compress too well
            Image.fromarray((np.asarray(resized_) + grain).clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return f"{width} x {height}", paths


def _parts(sets: list[Sizes], side: int, rounds: int) -> str:
    """Parts in one thread, in processor time, which others on the machine hardly change."""
    columns: list[dict[str, float]] = []
    for _, paths in sets:
        contents = [path.read_bytes() for path in paths]
        pictures = [open_photograph(path) for path in paths]
        squares = [picture.crop(seen_box(*picture.size, "centre")) for picture in pictures]
        arrays = [np.array(square) for square in squares]
        small = [square.resize((side, side), Image.Resampling.BICUBIC) for square in squares]
        batch = torch.from_numpy(np.stack(arrays))
        encoded = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents]
        channels = batch.permute(0, 3, 1, 2)
        work = {
            "decode, Pillow": lambda c=contents: [Image.open(BytesIO(content)).load() for content in c],
            "decode, torchvision": lambda e=encoded: [_by_torchvision(content) for content in e],
            "file to pixels of the square, as now": lambda p=paths: [read_seen(path, side, "centre") for path in p],
            "resize, Pillow": lambda s=squares: [s_.resize((side, side), Image.Resampling.BICUBIC) for s_ in s],
            "resize, torch, each alone": lambda b=batch: [resized(b[i : i + 1], side) for i in range(len(b))],
            "resize, torch, a batch, as now": lambda b=batch: resized(b, side),
            "resize, torch, in floats (as on a GPU)": lambda c=channels: in_floats(c, side),
            "to an array": lambda s=small: [np.array(picture) for picture in s],
            "to a tensor": lambda s=small: [_tensor(np.asarray(picture)) for picture in s],
            "stack by size": lambda a=arrays: grouped(a),
        }
        taken = dict.fromkeys(work, float("inf"))
        with on_cores(1):
            for _ in range(rounds):
                for name, run in work.items():
                    began = time.process_time()
                    run()
                    taken[name] = min(taken[name], (time.process_time() - began) / len(paths) * 1000)
        columns.append(taken)
    rows = [(name, *(f"{column[name]:.2f}" for column in columns)) for name in columns[0]]
    title = f"Parts of a photograph on its way to a square of {side} pixels, ms of one core"
    return table(title, ("", *(name for name, _ in sets)), rows)


def _wholes(sets: list[Sizes], side: int, rounds: int) -> str:
    """Time some batches, one after the other, on one core and on two, in turn."""
    rows = []
    numbers = sorted({1, min(2, cores())})
    for name, paths in sets:
        views = [View(path.name, path) for path in paths]
        held = HeldPixels(views, side, CPU, room=len(paths) * 3 * side**2)
        ways = {
            "before": lambda p=paths: _before(p, side),
            "now": lambda v=views: Pixels(v, side),
            "now, from memory": lambda h=held: h,
        }
        taken: dict[tuple[str, int], float] = {}
        for _ in range(rounds):
            for way, make in ways.items():
                for number in numbers:
                    with on_cores(number):
                        seconds = _seconds(make(), len(paths))
                    taken[way, number] = min(taken.get((way, number), float("inf")), seconds)
        for way in ways:
            times = [taken[way, number] / (BATCHES * len(paths)) * 1000 for number in numbers]
            rows.append((f"{name}: {way}", *(f"{ms:.2f}" for ms in times), f"{times[0] / times[-1]:.2f}"))
    title = f"Whole batches of {len(sets[0][1])} photographs to squares of {side} pixels, ms a photograph"
    return table(title, ("", *(f"{number} core{'s' * (number > 1)}" for number in numbers), "one to two"), rows)


def _seconds(pixels: "Pixels | Callable[[], Tensor]", number: int) -> float:
    """Read all batches in the way of `data.photographs.batches`."""
    rows = np.arange(number)
    began = time.perf_counter()
    if isinstance(pixels, Pixels):
        for read in in_threads(pixels.read, [rows] * BATCHES, ahead=AHEAD, threads=AHEAD):
            pixels.finish(read)
    else:
        with ThreadPoolExecutor(1) as reader:
            for done in [reader.submit(pixels) for _ in range(BATCHES)]:
                done.result()
    return time.perf_counter() - began


@contextmanager
def on_cores(number: int) -> Iterator[None]:
    """Within this context, this thread and those it starts run on this number of cores, and torch in as many."""
    threads = torch.get_num_threads()
    torch.set_num_threads(number)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    if allowed:
        os.sched_setaffinity(0, sorted(allowed)[:number])
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if allowed:
            os.sched_setaffinity(0, allowed)


def _before(paths: list[Path], side: int) -> Callable[[], Tensor]:
    def read(path: Path) -> Tensor:
        with open(path, "rb") as file:  # in small pieces, as Pillow asks for them
            image = Image.open(file)
            image.draft(None, (2 * side, 2 * side))
            image = image.convert("RGB")
        box = seen_box(*image.size, "centre")
        return _tensor(np.array(image.resize((side, side), Image.Resampling.BICUBIC, box=box)))

    def batch() -> Tensor:
        with ThreadPoolExecutor(cores()) as pool:
            return torch.stack(list(pool.map(read, paths))).contiguous(memory_format=torch.channels_last)

    return batch


def _tensor(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()


def _by_torchvision(content: Tensor) -> Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg

    return decode_jpeg(content, mode=ImageReadMode.RGB)

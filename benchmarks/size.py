"""Measure how the cost of an answer grows with the size of the image, for three models.

RAM cuts glimpses out of a file that is mapped into memory; DRAW's reader and a convolutional network see all pixels.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.charts import Axis, Chart, save, short
from benchmarks.measure import MiB, accelerated, peak_memory, table
from benchmarks.shapes import Shapes
from vision_attn.attention.glimpse import Retina
from vision_attn.attention.images import Images
from vision_attn.data.images.lazy import open_pixels
from vision_attn.fast.versions import without_loops
from vision_attn.models.dram import ConvolutionalGlimpse
from vision_attn.models.draw import DRAWReader
from vision_attn.models.ram import RAM, ContextLSTM
from vision_attn.system.files import scratch
from vision_attn.tasks.cost import multiply_adds

PICTURE = Path("runs/size.png")
SIDES = (60, 200, 600, 2000, 6000, 20_000)
LARGEST_WHOLE = 2000
"""The largest side of images on which models that see all pixels run; above it their cost is counted: 20,000 x 20,000
floats alone take 1.6 GB."""
ANSWERS = 20


class Cost(NamedTuple):
    """The cost of one answer. `milliseconds` is NaN where it was not measured."""

    multiply_adds: float
    pixels: float
    milliseconds: float


class Convolutional(nn.Module):
    """Three convolutions of 3x3 with stride 2, the mean of all places, a linear map: for any size."""

    def __init__(self) -> None:
        super().__init__()
        layers = [(1, 16), (16, 32), (32, 64)]
        self.layers = nn.Sequential(
            *(layer for c, d in layers for layer in (nn.Conv2d(c, d, 3, 2, 1), nn.ReLU())),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Counted:
    """The pixels of an image, and how many were read."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.read = array, array.shape, 0

    def __getitem__(self, place: tuple[slice, slice]) -> np.ndarray:
        pixels = self.array[place]
        self.read += pixels.size
        return pixels


def size(shapes: Shapes, repeats: int) -> str:
    """The table, and a chart of it in `PICTURE` (in the temporary folder of the system with `quick` shapes)."""
    sides = (60, 90) if shapes.quick else SIDES
    answers = 1 if shapes.quick else ANSWERS
    costs: dict[str, list[Cost]] = {"RAM": [], "DRAW's reader": [], "convolutional": []}
    with scratch("size") as folder, torch.no_grad():
        images = {side: mapped(folder, side) for side in sides}
        ram = timed({side: partial(reader().forward, image, 1, "mean") for side, image in images.items()}, answers)
        for side in sides:
            counted = Counted(images[side].pixels[0])
            model = reader()
            operations = multiply_adds(model, Images([counted], 1), mode="mean")
            costs["RAM"].append(Cost(operations, counted.read, ram[side]))
            for name, make in (("DRAW's reader", whole), ("convolutional", Convolutional)):
                costs[name].append(seen_whole(make, side, answers))
        picture = (folder / PICTURE.name) if shapes.quick else PICTURE
        save(charts(sides, costs), picture)
    rows = [
        (name, f"{side:,}", f"{cost.multiply_adds / 1e6:,.1f}", f"{cost.pixels:,.0f}", figure(cost.milliseconds))
        for name, of_model in costs.items()
        for side, cost in zip(sides, of_model, strict=True)
    ]
    memory = peak_memory("benchmarks.size:answer", shapes, sides[-1])
    first, last = costs["RAM"][0].milliseconds, costs["RAM"][-1].milliseconds
    title = (
        f"An answer about one image of a certain width and height; processor time, minimum of {answers}. RAM: "
        f"{last / first:.2f}x from {sides[0]} to {sides[-1]:,} pixels; "
        f"{memory / MiB:.0f} MiB above the imports at {sides[-1]:,}. Chart: {picture}"
    )
    return table(title, ("", "width", "multiply-adds, millions", "pixels read", "ms"), rows)


def answer(shapes: Shapes, side: int) -> None:
    """Open an image of `side` pixels (60 with `quick` shapes) and answer: `peak_memory` calls it."""
    with scratch("size") as folder, torch.no_grad():
        reader()(mapped(folder, 60 if shapes.quick else side), 1, "mean")


def reader() -> RAM:
    """RAM as in configs/ram_cluttered60.yaml, with random weights."""
    torch.manual_seed(0)
    networks = {
        "retina": partial(Retina, size=12, num_scales=3),
        "glimpse": ConvolutionalGlimpse,
        "core": partial(ContextLSTM, place_size=128),
    }
    return accelerated(RAM((1, 0, 0), 10, num_glimpses=8, first="policy", **networks)).eval()


def whole(side: int) -> DRAWReader:
    """DRAW's reader as in configs/draw_reader_cluttered100_pixels.yaml."""
    return accelerated(DRAWReader((1, side, side), 10, relative=True))


def mapped(folder: Path, side: int) -> Images:
    """An image of noise in a file, mapped into memory."""
    path, noise = folder / f"{side}.npy", np.random.default_rng(0)
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (side, side)}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(side):
            file.write(noise.bytes(side))
    return Images([open_pixels(path)], 1)


def seen_whole(make: Callable[..., nn.Module], side: int, answers: int) -> Cost:
    """The cost of a model that sees all pixels: counted without computing, and measured up to `LARGEST_WHOLE`."""
    sized = (side,) if make is whole else ()
    with without_loops(), FakeTensorMode():
        operations = multiply_adds(make(*sized), torch.empty(1, 1, side, side))
    if side > LARGEST_WHOLE:
        return Cost(operations, side**2, math.nan)
    model, image = make(*sized).eval(), torch.rand(1, 1, side, side)
    return Cost(operations, side**2, timed({side: partial(model, image)}, min(answers, 3))[side])


def timed(runs: dict[int, Callable[[], object]], answers: int) -> dict[int, float]:
    """Milliseconds of processor time, the minimum of some answers after one to warm up; runs take turns."""
    fastest = dict.fromkeys(runs, math.inf)
    for turn in range(1 + answers):
        for name, run in runs.items():
            start = time.process_time()
            run()
            spent = 1000 * (time.process_time() - start)
            fastest[name] = min(fastest[name], spent) if turn else math.inf
    return fastest


def figure(milliseconds: float) -> str:
    return "" if math.isnan(milliseconds) else f"{milliseconds:,.1f}"


def charts(sides: tuple[int, ...], costs: dict[str, list[Cost]]) -> list[Chart]:
    """Three charts with the width of the image from left to right."""
    width = Axis("the image's width", short)
    return [
        Chart(
            {
                name: [(side, cost[field]) for side, cost in zip(sides, of_model, strict=True) if cost[field] > 0]
                for name, of_model in costs.items()
            },
            width,
            Axis(title, short),
        )
        for field, title in enumerate(("multiply-adds", "pixels read", "milliseconds"))
    ]

"""Compare the time of each loader with that of the training step that it feeds, without prefetching."""

import math
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.measure import seconds, table
from benchmarks.shapes import Shapes
from benchmarks.show_attend_tell import ours, training_step
from vision_attn.attention.glimpse import Retina
from vision_attn.contracts import Encoder
from vision_attn.data.digits.clutter import Clutter
from vision_attn.data.digits.mnist import Digits
from vision_attn.data.photographs.annotation_vectors.features import Features, cached_features
from vision_attn.data.photographs.pixels import Pixels, View
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.encoders.backbone import Backbone
from vision_attn.encoders.convnet import ConvNet
from vision_attn.models.ram import RAM
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.task import Source, Task
from vision_attn.tasks.caption import Captioning
from vision_attn.tasks.classify import Classification


def loaders(shapes: Shapes, repeats: int) -> str:
    """The table of seconds per batch: the loader's and the step's, in one process and with the same threads."""
    images = 2 if shapes.quick else 64
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, load, work in cases(shapes, images, Path(folder)):
            taken = seconds({"load": load, "work": work}, repeats, name)
            share = taken["load"] / (taken["load"] + taken["work"])
            rows.append(
                (name, f"{images / taken['load']:.0f}", f"{images / taken['work']:.0f}", f"{share:.1%}"),
            )
    title = f"Loaders and what they feed, batches of {images} images"
    return table(title, ("", "loaded, images/s", "trained or encoded, images/s", "loader's share"), rows)


def cases(shapes: Shapes, images: int, folder: Path) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each case, the function that loads a batch, and the function that uses it."""
    scenes = Scenes(batch_size=images, rows=2, epoch_images=1000 * images)
    yield "drawn scenes, 56x56", *trained(scenes, partial(Captioning, encoder=ConvNet(), model=captioner))
    for canvas, scales in ((60, 3), (100, 4)):
        clutter = Clutter(canvas=canvas, batch_size=images, epoch_images=1000 * images)
        clutter.digits = {"train": random_digits(256)}
        model = partial(RAM, retina=partial(Retina, size=12, num_scales=scales))
        yield f"cluttered MNIST, {canvas}x{canvas}", *trained(clutter, partial(Classification, model=model))
    yield "cached annotation vectors, 196x512", *cached(shapes, images, folder)
    yield "photographs, 640x480 JPEG to 224x224, MobileNetV2", *photographs(images, folder)


captioner = partial(ShowAttendTell, hidden_size=128, word_size=64)


def random_digits(number: int) -> Digits:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (number, 28, 28), generator=generator, dtype=torch.uint8)
    return Digits(pixels, torch.randint(10, (number,), generator=generator))


def trained(source: Source, make: Any) -> tuple[Any, Any]:
    """Return a function that loads a batch of `source`, and a training step of the task on such a batch."""
    torch.manual_seed(0)
    task: Task = make(source)
    batches = source.train(0, seed=0)
    batch = next(batches)
    optimizer = torch.optim.Adam(task.parameters(), fused=True)

    def step() -> None:
        task(*batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    return lambda: next(batches), step


class Zeros(Encoder):
    """A stand-in for an encoder whose vectors have been cached."""

    resolution = 16

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        side = math.isqrt(shapes.regions)
        self.grid, self.region_size = (side, side), shapes.region_size

    def identity(self) -> dict[str, str | int]:
        return {"backbone": "zeros"}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.new_zeros(len(images), self.grid[0] * self.grid[1], self.region_size, dtype=torch.float32)


def cached(shapes: Shapes, images: int, folder: Path) -> tuple[Any, Any]:
    """Return a function that gathers memory-mapped vectors in a random order, and a step of the captioner of the other
    tables."""
    shapes = shapes._replace(images=images)
    number = 8 * images
    views = [View(str(index), path) for index, path in enumerate(islice(cycle(painted(folder, 16, 16)), number))]
    features = Features([cached_features(folder / "cache", Zeros(shapes), views)], "memmap", torch.device("cpu"))
    order = np.random.default_rng(0)

    def load() -> torch.Tensor:
        return features.gather(order.permutation(number)[:images], features.space(images)).float()

    return load, training_step(ours(shapes), fused=True)


def photographs(images: int, folder: Path) -> tuple[Any, Any]:
    """Return a function that decodes JPEG files as the encoder sees them, and the encoder."""
    paths = painted(folder, 640, 480)
    pixels = Pixels([View(path.name, path) for path in paths], resolution=224)
    encoder = Backbone(name="mobilenet_v2", node="features.18").eval()
    rows = np.arange(images) % len(paths)
    batch = pixels.gather(rows)

    def encode() -> None:
        with torch.no_grad():
            encoder(batch)

    return lambda: pixels.gather(rows), encode


def painted(folder: Path, width: int, height: int, number: int = 8) -> list[Path]:
    """JPEG files of smooth noise, which compresses about as well as a photograph."""
    noise, paths = np.random.default_rng(0), []
    for index in range(number):
        coarse = Image.fromarray(noise.integers(0, 256, (height // 8, width // 8, 3), np.uint8))
        paths.append(folder / f"{width}x{height}_{index}.jpg")
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(paths[-1], quality=90)
    return paths

"""Write a folder of labelled images to try classifiers on: `python -m benchmarks.drawn_objects FOLDER`.

Writes 11,000 drawn scenes (`data/scenes/scenes.py`) of one object each into FOLDER/images, 72 to 144 pixels wide and
high, and the object, such as "red star", into FOLDER/labels.csv: 42 classes. The same files on every machine.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from vision_attn.data.random_streams import stream
from vision_attn.data.scenes import grammar
from vision_attn.data.scenes.canvas import arrange, draw
from vision_attn.system.console import progress
from vision_attn.system.files import replacing

SIZES = (96, 112, 128, 144)
SPLITS = {"train": 8000, "val": 1000, "test": 2000}
BATCH = 250


def scenes(number: int, first: int) -> Iterator[tuple[np.ndarray, str]]:
    """Pixels (Y, X, 3) and the name of the object of `number` scenes, of which `first` is the seed."""
    bits = stream(17, first)
    for start in range(0, number, BATCH):
        size = SIZES[start // BATCH % len(SIZES)]
        drawn = arrange(bits, min(BATCH, number - start), "train", (1.0, 0.0, 0.0), size)
        for image, pixels in enumerate(draw(drawn, size)):
            (x, y), side = drawn.corner[image, 0].tolist(), int(drawn.side[image, 0])
            cut = bits.random_raw(2) % (size // 4)  # from the right, or from the left of objects that lie there
            rows, columns = (
                slice(0, max(at + side, size - int(most)))
                if at + side < size * 3 // 4
                else slice(min(at, int(most)), size)
                for at, most in ((y, cut[0]), (x, cut[1]))
            )
            yield pixels[:, rows, columns].transpose(1, 2, 0), grammar.OBJECTS[drawn.objects[image, 0]]


def write(folder: Path, splits: dict[str, int]) -> None:
    """Write scenes. splits: how many of each split."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines = []
    for seed, (split, number) in enumerate(splits.items()):
        made = progress(scenes(number, seed), what=split, unit="image", total=number)
        for index, (pixels, label) in enumerate(made):
            name = f"{split}{index:05d}.png"
            Image.fromarray(np.ascontiguousarray(pixels)).save(folder / "images" / name)
            lines.append((name, label, split))
    with replacing(folder / "labels.csv") as path, open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("image", "label", "split"), *lines])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drawn_objects", description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder, SPLITS)

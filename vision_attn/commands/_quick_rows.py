"""Shrink the rows of papers to trainings of about a second, on synthetic digits and a few photographs, to test that
each runs."""

import gzip
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vision_attn.commands._hints import config_file
from vision_attn.commands._paper_rows import PaperTraining
from vision_attn.system.bounded_yaml import flat
from vision_attn.system.files import ours, replacing

MODEL = {
    "hidden_size": 16, "word_size": 8, "attention_size": 8, "feedforward_size": 16, "place_size": 8, "glimpse_size": 16,
    "latent_size": 4, "what_size": 8, "where_size": 8, "num_glimpses": 2, "num_steps": 2, "num_layers": 1,
    "num_heads": 2, "num_samples": 2, "size": 8,
}  # fmt: skip
"""The largest values of these keys of a model and its criteria."""
REST = {
    "data.batch_size": 4, "data.evaluation_batch_size": 4, "data.epoch_images": 8, "data.val_images": 4,
    "data.test_images": 4, "data.stories": 12, "data.test_stories": 4, "data.min_count": 1, "run.epochs": 1,
    "run.warmup": 0, "run.validate_every": 1, "run.show": 0, "task.importance_samples": 1, "task.importance_images": 4,
    "task.max_words": 6, "task.test_copies": 2, "task.encoder.resolution": 100,
}  # fmt: skip
"""The largest values of keys, wherever a config has them."""
DIGITS = {"train-images-idx3-ubyte": 36, "train-labels-idx1-ubyte": 36, "t10k-images-idx3-ubyte": 12,
          "t10k-labels-idx1-ubyte": 12}  # fmt: skip
"""The files of MNIST, with the number of digits that are made up for each."""


def small(training: PaperTraining, folder: Path) -> list[str]:
    """Return the options with which a training takes about a second.

    folder: the data that `write_data` wrote.
    """
    from vision_attn.configuration.config import read

    keys = flat(read(config_file(training.config), training.options).content())
    settings: dict[str, Any] = {"run.sanity_check": "false", **dict(_smaller(keys))}
    if keys.get("task.validate_with"):
        settings |= {"task.validate_with": "[]", "run.metric": "nll", "run.mode": "min"}
    if "data.folder" in keys:
        settings["data.folder"] = folder / "mnist"
    if "data.annotations" in keys:
        settings |= {"data.images": folder / "images", "data.annotations": folder / "captions.json"}
        settings |= {"data.cache": folder / "cache"} if keys["data.cache"] else {}
        settings |= {"task.encoder.weights": "null", "task.encoder.resolution": 64}
    return [f"--{key}={value}" for key, value in settings.items()]


def _smaller(keys: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for key, value in keys.items():
        section, _, name = key.rpartition(".")
        most = MODEL.get(name) if section.startswith(("task.model", "task.criteria")) else None
        most = REST.get(key, most)
        if most is not None and isinstance(value, int) and value > most:
            yield key, most


def write_data(folder: Path) -> None:
    """Write made-up digits, and the included photographs with a caption each."""
    import numpy as np

    numbers = np.random.default_rng(0)
    for name, count in DIGITS.items():
        shape = (count, 28, 28) if "images" in name else (count,)
        values = numbers.integers(0, 256, shape) if "images" in name else np.arange(count) % 10
        head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
        with replacing(folder / "mnist" / f"{name}.gz") as path:
            path.write_bytes(gzip.compress(head + values.astype(np.uint8).tobytes(), 1))
    images, captions = [], []
    for number, photograph in enumerate(sorted((ours() / "docs" / "photographs").glob("*.jpg"))):
        with replacing(folder / "images" / photograph.name) as path:
            path.write_bytes(photograph.read_bytes())
        split = {0: "val", 1: "test"}.get(number, "train")
        images.append({"id": number, "file_name": photograph.name, "split": split})
        captions += [
            {"id": 2 * number + index, "image_id": number, "caption": f"a {photograph.stem}"} for index in (0, 1)
        ]
    with replacing(folder / "captions.json") as path:
        path.write_text(json.dumps({"images": images, "annotations": captions}), encoding="utf-8")

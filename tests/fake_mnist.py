"""A made-up MNIST, as small as tests allow, for tests without the real one."""

import gzip
import struct
from pathlib import Path

import numpy as np

FILES = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
         "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}  # fmt: skip
NUM_TRAIN, NUM_VAL, NUM_TEST = 300, 27, 120


def write_mnist(folder: Path, images: dict[str, np.ndarray] | None = None, *, packed: bool = False) -> str:
    """The four files, with `images` ("train" with validation, "test") or `numbered` ones; returns the folder's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, (image_file, label_file) in FILES.items():
        digits = (images or numbered())[part]
        write_idx(folder / image_file, digits, packed=packed)
        write_idx(folder / label_file, np.arange(len(digits)) % 10, packed=packed)
    return str(folder)


def write_idx(path: Path, array: np.ndarray, *, packed: bool = False) -> None:
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    if packed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content, 1))
    else:
        path.write_bytes(content)


def numbered() -> dict[str, np.ndarray]:
    """Noise, sparse as digits are; the first two pixels of each image say which it is (see `number`)."""
    rng = np.random.default_rng(0)
    parts = {}
    for part, count in (("train", NUM_TRAIN + NUM_VAL), ("test", NUM_TEST)):
        digits = rng.integers(0, 2**32, (count, 28, 7), dtype=np.uint32).view(np.uint8)
        digits[digits < 150] = 0
        digits[digits > 240] = 255
        digits[:, 0, 0], digits[:, 0, 1] = np.divmod(np.arange(count), 256)
        parts[part] = digits
    return parts


def flat(train: int, val: int, test: int) -> dict[str, np.ndarray]:
    """Images of one intensity throughout, which says of which split they are."""
    rows = {"train": [train] * NUM_TRAIN + [val] * NUM_VAL, "test": [test] * NUM_TEST}
    return {part: np.full((len(row), 28, 28), 0) + np.array(row)[:, None, None] for part, row in rows.items()}


def number(images) -> list[int]:
    """Which of the `numbered` digits these are, from images (B, 1, 28, 28)."""
    high, low = (images[:, 0, 0, :2] * 255).round().long().T
    return (256 * high + low).tolist()

"""MNIST, held whole on the device, so that a batch is a selection by index.

The last 5,000 training digits are the validation set. No source trains on them or on pieces of them.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from vision_attn.attention.images import Images
from vision_attn.data.counted_batches import Counted, slices
from vision_attn.data.digits.mnist_files import FILES, SIDE, locate, read_idx
from vision_attn.data.random_streams import stream
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError
from vision_attn.task import Source, Task, equal_part, known_split

NUM_VALIDATION = 5000
"""The number of digits for validation, the last ones of the training files. Smaller sets in the same format give their
last twelfth."""


class Digits(NamedTuple):
    """The digits of one split, intensities from 0 to 255."""

    images: UInt8[Tensor, "N 28 28"]
    labels: Int[Tensor, "N"]


class DigitBatch(NamedTuple):
    """Images, each with the label and the box of one digit."""

    images: Float[Tensor, "B 1 Y X"] | Images
    """Intensities from 0 (background) to 1 (ink)."""
    labels: Int[Tensor, "B"]
    boxes: Float[Tensor, "B 4"]
    """(x0, y0, x1, y1) in [-1, 1] of the digit's 28x28 image."""


class DigitSource(Source):
    """Base class of sources made from MNIST: holds the digits on the device of the task."""

    num_classes = 10
    image_shape: tuple[int, int, int]
    """(C, Y, X). Known before any image is read, to construct a model."""

    batch_size: int

    def __init__(self, *, folder: str, batch_size: int, download: bool) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: a batch must hold at least one digit")
        check_range(type(self).__name__, 1, 10**6, batch_size=batch_size)
        self.folder, self.batch_size, self.download = folder, batch_size, download

    @cached_property
    def digits(self) -> dict[str, Digits]:
        """The digits by split. Raises UserError like `read_mnist`."""
        return read_mnist(self.folder, download=self.download)

    def prepare(self, task: Task) -> None:
        """Read the digits and move them to the device of the task's weights."""
        device = next((weights.device for weights in task.parameters()), torch.device("cpu"))
        self.digits = {
            split: Digits(*(tensor.to(device) for tensor in digits)) for split, digits in self.digits.items()
        }


class MNIST(DigitSource):
    """The original 28x28 digits: 55,000 for training, 5,000 for validation, 10,000 for testing.

    folder: the folder of the four files, also searched for under `$VISION_ATTN_DATA` and `data/`.
    batch_size: images per batch. An epoch contains each training digit once, shuffled; an incomplete last batch is
        dropped.
    download: download missing files with torchvision.
    shift: move each training digit by up to this many pixels horizontally and vertically, at random in each epoch;
        pixels outside the image are lost. With 0, as in the paper, the model overfits quickly.
    """

    def __init__(self, *, folder: str = "mnist", batch_size: int = 256, download: bool = False, shift: int = 0) -> None:
        super().__init__(folder=folder, batch_size=batch_size, download=download)
        if not 0 <= shift < SIDE:
            raise UserError(f"shift={shift} must be from 0 to {SIDE - 1} pixels")
        self.image_shape, self.shift = (1, SIDE, SIDE), shift

    def __len__(self) -> int:
        return len(self.digits["train"].labels) // self.batch_size

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[DigitBatch]:
        digits, mine = self.digits["train"], equal_part(self.batch_size, rank, world)
        bits = stream(seed % 2**64, epoch)
        shuffled = bits.random_raw(len(digits.labels)).argsort(kind="stable")  # numpy's shuffle may change
        raw = bits.random_raw((len(shuffled), 2)) % (2 * self.shift + 1)
        order, moves = (torch.from_numpy(table.astype(np.int64)).to(digits.labels.device) for table in (shuffled, raw))
        for number in range(skip, len(self)):
            batch = slice(number * self.batch_size, (number + 1) * self.batch_size)
            images, labels, boxes = plain(digits, order[batch][mine])
            assert isinstance(images, Tensor)
            yield DigitBatch(moved(images, moves[batch][mine], self.shift) if self.shift else images, labels, boxes)

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> Counted[DigitBatch]:
        known_split(name)
        digits = self.digits[name]
        members = torch.arange(len(digits.labels), device=digits.labels.device)
        return slices(
            lambda chosen: plain(digits, members[chosen]), len(members), self.batch_size, rank=rank, world=world
        )


def plain(digits: Digits, members: Int[Tensor, "B"]) -> DigitBatch:
    """Return a batch of these digits, each filling its image."""
    images = scaled(digits.images.index_select(0, members).float())
    boxes = images.new_ones(len(members), 4)
    boxes[:, :2] = -1
    return DigitBatch(images[:, None], digits.labels.index_select(0, members), boxes)


def moved(images: Float[Tensor, "B 1 Y X"], moves: Int[Tensor, "B 2"], most: int) -> Float[Tensor, "B 1 Y X"]:
    """Translate each image to the right and down by `moves - most` pixels, and fill with zeros."""
    height, width = images.shape[-2:]
    padded = F.pad(images[:, 0], (most,) * 4)
    pixel_columns = 2 * most - moves[:, :1] + torch.arange(width, device=images.device)
    pixel_rows = 2 * most - moves[:, 1:] + torch.arange(height, device=images.device)
    image = torch.arange(len(images), device=images.device)[:, None, None]
    return padded[image, pixel_rows[:, :, None], pixel_columns[:, None, :]][:, None]


def scaled(images: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Scale intensities from [0, 255] to [0, 1], in place; 255 gives exactly 1. Multiplies, because devices divide
    differently."""
    return images.mul_(1 / 255)


def read_mnist(folder: str, *, download: bool = False) -> dict[str, Digits]:
    """Read the digits by split, on the CPU, from the four idx files in `folder`, gzipped or not, of any names: see
    `mnist_files.locate`.

    Raises UserError if files are damaged or missing; the message says which, and where to put them.
    """
    files = locate(folder, download=download)
    training, test = (Digits(*(read_idx(files[name]) for name in names)) for names in FILES.values())
    for digits, (images, labels) in zip((training, test), FILES.values(), strict=True):
        if digits.images.shape[1:] != (SIDE, SIDE) or digits.labels.shape != digits.images.shape[:1]:
            shapes = f"{tuple(digits.images.shape)} and {tuple(digits.labels.shape)}"
            raise UserError(f"{files[images]} and {files[labels].name} hold {shapes}, not (N, {SIDE}, {SIDE}) and (N,)")
        if wrong := (digits.labels > 9).nonzero().flatten().tolist():
            what = f"label {int(digits.labels[wrong[0]])} of image {wrong[0]} is not a digit"
            raise UserError(f"{files[labels]}: {what}: the file is damaged, download it again")
    held_out = min(NUM_VALIDATION, len(training.labels) // 12)
    if not held_out:
        raise UserError(
            f"{folder} has {len(training.labels)} training digits: at least 12 are needed, a twelfth for validation"
        )
    splits = {
        "train": (tensor[:-held_out] for tensor in training),
        "val": (tensor[-held_out:] for tensor in training),
        "test": test,
    }
    return {split: Digits(images, labels.long()) for split, (images, labels) in splits.items()}

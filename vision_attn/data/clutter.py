"""Translated and cluttered MNIST: a digit somewhere on a larger canvas, among pieces of other digits.

After the original generator of Mnih et al. (2014): crops of digits are added to an empty canvas, then the digit, and
ink is clipped to 1. Whole batches are made on the device in a dozen operations, none of which waits for it.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.data.mnist import NUM_VALIDATION, SIDE, DigitBatch, Digits, DigitSource, scaled
from vision_attn.data.scene_canvas import integers
from vision_attn.data.streams import FIXED, FRESH, stream
from vision_attn.ranges import check_range
from vision_attn.task import SPLITS


class Clutter(DigitSource):
    """Canvases with one digit and `pieces` pieces of others; translated MNIST is `pieces=0`.

    canvas: height and width of the images in pixels.
    pieces, piece: how many pieces there are, and their height and width in pixels.
    epoch_images: images in a training epoch, in batches of `batch_size`; an incomplete last batch is left out.
    val_images, test_images: size of the fixed sets. They show their digits in order, all before any comes again, and
        a smaller set is the beginning of a larger one.
    folder, download: as for `MNIST`.

    Training images are always new, and follow from seed, epoch and number of the batch. Digits and pieces of a split
    come from the digits of that split only. The 10,000 test images are the same everywhere; `checksum("test")` gives

        canvas=60, pieces=0 (translated)  6b47567899463204
        canvas=60, pieces=4 (cluttered)   ef8b9d70aaabe574
        canvas=100, pieces=8 (cluttered)  2e880b82f00c9f7d

    Raises ValueError for numbers that leave nothing to draw.
    """

    def __init__(
        self,
        *,
        canvas: int = 60,
        pieces: int = 4,
        piece: int = 8,
        batch_size: int = 256,
        epoch_images: int = 51200,
        val_images: int = NUM_VALIDATION,
        test_images: int = 10000,
        folder: str = "mnist",
        download: bool = False,
    ) -> None:
        super().__init__(folder=folder, batch_size=batch_size, download=download)
        if canvas < SIDE:
            raise ValueError(f"clutter: canvas={canvas} is smaller than a digit of {SIDE} pixels")
        if pieces < 0 or not 1 <= piece <= SIDE:
            raise ValueError(f"clutter: pieces={pieces} of piece={piece} pixels; a piece is 1 to {SIDE} pixels wide")
        if min(val_images, test_images) < 1 or epoch_images < batch_size:
            raise ValueError(
                f"clutter: epoch_images={epoch_images} must hold a batch of {batch_size}, and val_images={val_images} "
                f"and test_images={test_images} must be positive"
            )
        check_range("Clutter", 1, 2**28, pixels_of_a_batch=batch_size * canvas**2)
        check_range("Clutter", 1, 2**24, digits_and_pieces_of_a_split=(1 + pieces) * max(val_images, test_images))
        self.canvas, self.pieces, self.piece = canvas, pieces, piece
        self.image_shape = (1, canvas, canvas)
        self.epoch_images = epoch_images
        self.split_images = {"train": val_images, "val": val_images, "test": test_images}

    def __len__(self) -> int:
        return self.epoch_images // self.batch_size

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[DigitBatch]:
        """Fresh images. Every batch has its own random stream, so that skipping costs nothing."""
        part = self.part(rank, world)
        for index in range(skip, len(self)):
            draws = self.draw("train", (FRESH, seed % 2**64, epoch, index), self.batch_size)
            yield self.batch("train", draws[part])

    def split(self, name: str) -> Iterator[DigitBatch]:
        """Fixed images, the same for every run; "train" gives as many as "val", of training digits."""
        self.check_split(name)
        # All at once, so that the images do not depend on the size of the batches.
        draws = self.draw(name, (FIXED, SPLITS.index(name)), self.split_images[name])
        draws[:, 0] = torch.arange(len(draws)) % len(self.digits[name].labels)
        for part in draws.split(self.batch_size):
            yield self.batch(name, part)

    def checksum(self, name: str) -> str:
        """The first 16 digits of the SHA-256 of a fixed set: all pixels as bytes of 0 to 255, then all labels."""
        content, labels = hashlib.sha256(), bytearray()
        for batch in self.split(name):
            content.update(batch.images.mul(255).round().byte().cpu().numpy().tobytes())
            labels += batch.labels.byte().cpu().numpy().tobytes()
        content.update(labels)
        return content.hexdigest()[:16]

    def draw(self, name: str, numbers: tuple[int, ...], num_images: int) -> Int[Tensor, "B columns"]:
        """Everything that chance decides, one row per image, on the CPU; `Placement` names the columns."""
        bits = stream(*numbers)
        num_digits, cut, put = len(self.digits[name].labels), SIDE - self.piece, self.canvas - self.piece
        piece = [num_digits - 1, cut, cut, put, put]
        digit = [num_digits - 1, self.canvas - SIDE, self.canvas - SIDE]
        last = digit + piece * self.pieces
        return torch.from_numpy(integers(bits, 0, last, num_images, len(last)))

    def batch(self, name: str, draws: Int[Tensor, "B columns"]) -> DigitBatch:
        digits = self.digits[name]
        placement = Placement.of(on(digits.images.device, draws))
        corner = placement.corner
        return DigitBatch(
            images=compose(digits, placement, canvas=self.canvas, piece=self.piece)[:, None],
            labels=digits.labels.index_select(0, placement.digit),
            boxes=torch.cat([corner, corner + SIDE], dim=1) * (2 / self.canvas) - 1,
        )


class Placement(NamedTuple):
    """What lies where in each image; corners are upper left pixels, (x, y)."""

    digit: Int[Tensor, "B"]
    corner: Int[Tensor, "B 2"]
    source: Int[Tensor, "B P"]
    """Of which digit each piece is a crop."""
    crop: Int[Tensor, "B P 2"]
    """Where the piece lies in that digit."""
    place: Int[Tensor, "B P 2"]
    """Where the piece lies on the canvas."""

    @classmethod
    def of(cls, draws: Int[Tensor, "B columns"]) -> "Placement":
        num_pieces = (draws.shape[1] - 3) // 5
        pieces = draws[:, 3:].view(len(draws), num_pieces, 5)
        return cls(draws[:, 0], draws[:, 1:3], pieces[..., 0], pieces[..., 1:3], pieces[..., 3:])


def compose(digits: Digits, placement: Placement, *, canvas: int, piece: int) -> Float[Tensor, "B Y X"]:
    """Canvases with pieces and digits, clipped to 1.

    The original clips before the digit is added and again after. Nothing is negative, so once at the end is the same,
    and everything can be added at once. Sums are of whole numbers up to 255 and thus exact, in whatever order a device
    adds, and the pixels are the same on all.
    """
    num_images = len(placement.digit)
    images = torch.zeros(num_images, canvas, canvas, device=digits.images.device)
    row = torch.arange(num_images, device=images.device)[:, None]
    crops = digits.images.flatten().index_select(0, window(placement.source, placement.crop, piece, SIDE))
    pixels = images.view(-1)
    pixels.scatter_add_(0, window(row, placement.place, piece, canvas), crops.float())
    ink = digits.images.index_select(0, placement.digit).flatten()
    pixels.scatter_add_(0, window(row, placement.corner[:, None], SIDE, canvas), ink.float())
    return scaled(images.clamp_(max=255))


def window(image: Int[Tensor, "B #P"], corner: Int[Tensor, "B P 2"], size: int, side: int) -> Int[Tensor, "pixels"]:
    """Where the pixels of size x size windows stand in a flattened stack of images of side x side."""
    x, y = corner.unbind(-1)
    along = torch.arange(size, device=corner.device)
    first = (image * side + y) * side + x
    return (first[..., None, None] + (along[:, None] * side + along)).flatten()


def on(device: torch.device, draws: Int[Tensor, "B columns"]) -> Int[Tensor, "B columns"]:
    """On a GPU by way of pinned memory, so that the copy is waited for by the device only."""
    return draws.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else draws.to(device)

"""Translated and cluttered MNIST: a digit at a random position on a larger canvas, among pieces of other digits.

Follows the original generator of Mnih et al. (2014): crops of digits are added to an empty canvas, then the digit, and
intensities are clipped to 1. A batch is made on the device in a dozen operations, without synchronisation.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.data.digits.mnist import NUM_VALIDATION, SIDE, DigitBatch, Digits, DigitSource, scaled
from vision_attn.data.generated_images import GeneratedImages
from vision_attn.data.random_streams import integers, stream
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError
from vision_attn.task import Batch


class Clutter(GeneratedImages, DigitSource):
    """Cluttered MNIST: canvases with one digit and `pieces` pieces of other digits. With `pieces=0`, translated MNIST.

    canvas: height and width of the images in pixels.
    pieces, piece: the number of pieces, and their height and width in pixels.
    batch_size, epoch_images: as for `GeneratedImages`.
    val_images, test_images: sizes of the fixed sets. They use the digits of the split in order, and again from the
        first after the last. A smaller set is the beginning of a larger one.
    folder, download: as for `MNIST`.

    Digits and pieces come from the same split. The 10,000 test images are the same everywhere; `checksum("test")` gives

        canvas=60, pieces=0 (translated)  6b47567899463204
        canvas=60, pieces=4 (cluttered)   ef8b9d70aaabe574
        canvas=100, pieces=8 (cluttered)  2e880b82f00c9f7d

    Raises UserError for sizes and numbers that no image can be made with.
    """

    most_pixels = 2**28
    """The largest number of pixels of a batch, which must fit into memory."""

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
        DigitSource.__init__(self, folder=folder, batch_size=batch_size, download=download)
        sizes = {"epoch_images": epoch_images, "val_images": val_images, "test_images": test_images}
        GeneratedImages.__init__(self, batch_size=batch_size, **sizes)
        if canvas < SIDE:
            raise UserError(f"clutter: canvas={canvas} is smaller than a digit of {SIDE} pixels")
        if pieces < 0 or not 1 <= piece <= SIDE:
            raise UserError(f"clutter: pieces={pieces} must be at least 0, and piece={piece} from 1 to {SIDE} pixels")
        check_range("Clutter", 1, self.most_pixels, pixels_of_a_batch=batch_size * canvas**2)
        check_range("Clutter", 1, 2**24, digits_and_pieces_of_a_split=(1 + pieces) * max(val_images, test_images))
        self.canvas, self.pieces, self.piece = canvas, pieces, piece
        self.image_shape = (1, canvas, canvas)

    def fixed(self, name: str) -> tuple[Int[Tensor, "N columns"], Sequence[int]]:
        """Uses the digits of the split in order."""
        samples, ids = super().fixed(name)
        samples[:, 0] = torch.arange(len(samples)) % len(self.digits[name].labels)
        return samples, ids

    def checksum(self, name: str) -> str:
        """Return the first 16 digits of the SHA-256 of a fixed set: all pixels as bytes, then all labels."""
        content, labels = hashlib.sha256(), bytearray()
        for batch in self.split(name):
            content.update(batch.images.mul(255).round().byte().cpu().numpy().tobytes())
            labels += batch.labels.byte().cpu().numpy().tobytes()
        content.update(labels)
        return content.hexdigest()[:16]

    def sample(self, name: str, numbers: tuple[int, ...], num_images: int) -> Int[Tensor, "B columns"]:
        """Sample all random choices on the CPU, one row per image; `Placement` names the columns."""
        bits = stream(*numbers)
        num_digits, cut, put = len(self.digits[name].labels), SIDE - self.piece, self.canvas - self.piece
        piece = [num_digits - 1, cut, cut, put, put]
        digit = [num_digits - 1, self.canvas - SIDE, self.canvas - SIDE]
        last = digit + piece * self.pieces
        return torch.from_numpy(integers(bits, 0, last, num_images, len(last)))

    def batch(self, name: str, samples: Int[Tensor, "B columns"], ids: Sequence[int] = ()) -> Batch:
        """Draw the images of these samples.

        ids: for subclasses whose batches name their images.
        """
        digits = self.digits[name]
        placement = Placement.of(to_device(digits.images.device, samples))
        corner = placement.corner
        return DigitBatch(
            images=compose(digits, placement, canvas=self.canvas, piece=self.piece)[:, None],
            labels=digits.labels.index_select(0, placement.digit),
            boxes=torch.cat([corner, corner + SIDE], dim=1) * (2 / self.canvas) - 1,
        )


class Placement(NamedTuple):
    """The random choices of a batch of images. Corners are top-left pixels, (x, y)."""

    digit: Int[Tensor, "B"]
    corner: Int[Tensor, "B 2"]
    source: Int[Tensor, "B P"]
    """The digit that each piece is cropped from."""
    crop: Int[Tensor, "B P 2"]
    """Corner of the piece in that digit."""
    place: Int[Tensor, "B P 2"]
    """Corner of the piece on the canvas."""

    @classmethod
    def of(cls, samples: Int[Tensor, "B columns"]) -> "Placement":
        num_pieces = (samples.shape[1] - 3) // 5
        pieces = samples[:, 3:].view(len(samples), num_pieces, 5)
        return cls(samples[:, 0], samples[:, 1:3], pieces[..., 0], pieces[..., 1:3], pieces[..., 3:])


def compose(digits: Digits, placement: Placement, *, canvas: int, piece: int) -> Float[Tensor, "B Y X"]:
    """Render canvases with pieces and digits, clipped to 1.

    The original clips before and after the digit is added. Because nothing is negative, clipping once at the end gives
    the same result. Sums of integers are exact in float32 in any order, so all devices give the same pixels.
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
    """Return indices of the pixels of size x size windows in a flattened stack of images of side x side."""
    x, y = corner.unbind(-1)
    along = torch.arange(size, device=corner.device)
    first = (image * side + y) * side + x
    return (first[..., None, None] + (along[:, None] * side + along)).flatten()


def to_device(device: torch.device, samples: Int[Tensor, "B columns"]) -> Int[Tensor, "B columns"]:
    """Copy to `device`; to a GPU from pinned memory, so that the host does not wait."""
    return samples.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else samples.to(device)

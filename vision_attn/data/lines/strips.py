"""The layout of strips of MNIST digits, the bounds of their ink, and how digits are added to a canvas."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vision_attn.data.digits.mnist import SIDE, Digits

INK = 40
"""Intensity, of at most 255, above which a pixel of a digit counts as ink."""
MULTIPLE = 8
"""Widths of batches are rounded up to a multiple of this number of pixels."""


class StripLayout(NamedTuple):
    """All random choices of a batch of strips. A strip may have fewer than N digits; the slots past its length are
    meaningless."""

    length: Int[np.ndarray, "B"]
    digit: Int[np.ndarray, "B N"]
    """The index of each digit in its split."""
    x: Int[np.ndarray, "B N"]
    """The left edge of each digit's ink, in pixels."""
    y: Int[np.ndarray, "B N"]
    """The upper edge of each digit's 28x28 image."""
    width: Int[np.ndarray, "B"]
    """The width of each strip, margins included."""
    pieces: Int[np.ndarray, "B P 5"]
    """Clutter: index of a digit, corner (x, y) of the crop in it, corner (x, y) in the strip."""


class Ink(NamedTuple):
    """The bounds of the ink of each digit of a split in its 28x28 image: left, top, and one past right and bottom."""

    labels: Int[np.ndarray, "N"]
    left: Int[np.ndarray, "N"]
    top: Int[np.ndarray, "N"]
    right: Int[np.ndarray, "N"]
    bottom: Int[np.ndarray, "N"]

    @classmethod
    def of(cls, digits: Digits) -> "Ink":
        ink = (digits.images > INK).cpu()
        edges = []
        for axis in (1, 2):  # columns, rows
            inked = ink.any(dim=axis).int()
            edges.append((inked.argmax(dim=1).numpy(), SIDE - inked.flip(1).argmax(dim=1).numpy()))
        (left, right), (top, bottom) = edges
        return cls(digits.labels.cpu().numpy(), left, top, right, bottom)


def add_digits(
    canvas: Tensor, digits: Tensor, source: Tensor, crop: Tensor, place: Tensor, real: Tensor, size: int
) -> None:
    """Add size x size crops of digits to `canvas`.

    source: the index of each digit.
    crop, place: the corner (x, y) of each crop in the digit, and on the canvas.
    real: whether to add a crop.
    """
    _, height, width = canvas.shape
    along = torch.arange(size, device=canvas.device)

    def pixels(image: Tensor, corner: Tensor, rows: int, columns: int) -> Tensor:
        first = (image * rows + corner[..., 1]) * columns + corner[..., 0]
        return (first[..., None, None] + along[:, None] * columns + along).flatten()

    ink = digits.flatten().index_select(0, pixels(source, crop, SIDE, SIDE))
    ink = ink.view(-1, size * size).float() * real.reshape(-1, 1)
    strip = torch.arange(len(canvas), device=canvas.device)[:, None]
    margin = torch.tensor([SIDE, 0], device=canvas.device)
    canvas.view(-1).scatter_add_(0, pixels(strip, place + margin, height, width), ink.flatten())


def padded_width(layout: StripLayout) -> int:
    """Return the width of the widest strip, rounded up."""
    return -(-int(layout.width.max()) // MULTIPLE) * MULTIPLE

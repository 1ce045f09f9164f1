"""`Strings`, lines of MNIST digits to be read, reversed or sorted. The box of every digit is known.

In reading, attention moves monotonically from left to right, in reversing from right to left; sorting is not monotonic.
Test strings are longer than training strings, to measure generalisation to longer strings. A batch is made on the
device in a dozen operations, without synchronisation.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vision_attn.data.caption_batch import CaptionBatch, padded_words
from vision_attn.data.digits.mnist import SIDE, DigitSource
from vision_attn.data.generated_images import GeneratedImages, selected
from vision_attn.data.lines.characters import Characters
from vision_attn.data.lines.strips import Ink, StripLayout, add_digits, padded_width
from vision_attn.data.random_streams import FIXED, integers, stream
from vision_attn.data.vocabulary import VocabularySource
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError
from vision_attn.task import SPLITS, Task

DIGITS = tuple("0123456789")
MARGIN = 8
"""The largest margin before the first and after the last digit, in pixels."""
ADVANCE = 8
"""The smallest distance between the left edges of neighbouring digits, in pixels."""
LENGTHS = 1
"""The last seed of the random stream for the lengths in a training batch."""


class Strings(VocabularySource, GeneratedImages, DigitSource):
    """Strips of 1 to `lengths[1]` digits, with varying gaps, vertical jitter, overlap and clutter.

    say: "read" (from left to right), "reverse" (from right to left) or "sort" (in ascending order).
    lengths, test_lengths: the smallest and largest number of digits in training and validation, and in test. All
        numbers are equally likely.
    height: height of the strips in pixels, at least 28; a digit is moved up or down by up to `height - 28` pixels.
    gap: the smallest and the largest gap between the ink of neighbouring digits in pixels; negative gaps overlap.
        Neighbours are at least 8 pixels apart from left edge to left edge.
    clutter, piece: pieces of other digits per digit, on average over long strips, and their height and width.
    grow: the number of training batches over which the largest number of digits grows evenly from `lengths[0]` to
        `lengths[1]`, because attention is learned first on short strings.
    batch_size, epoch_images, val_images, test_images: as for `GeneratedImages`.
    folder, download: as for `MNIST`.

    Strips are white on black, in three equal channels, padded on the right with black to the width of the widest in the
    batch. `boxes` of a batch holds the box of the ink of each digit, {digit: boxes in the order of the transcript}; in
    sorted transcripts, equal digits come from left to right.

    In every second training batch, lengths differ by at most 2, so that models also see short strips without padding,
    as when a single strip is read. A fixed set is ordered by length, longest first.

    Raises UserError for sizes and numbers that no strip can be made with.
    """

    content_words = frozenset(DIGITS)
    vocabulary_type = Characters

    def __init__(
        self,
        *,
        say: Literal["read", "reverse", "sort"] = "read",
        lengths: tuple[int, int] = (1, 12),
        test_lengths: tuple[int, int] = (1, 30),
        height: int = 32,
        gap: tuple[int, int] = (-2, 8),
        clutter: float = 0.25,
        piece: int = 6,
        grow: int = 0,
        batch_size: int = 64,
        epoch_images: int = 51200,
        val_images: int = 500,
        test_images: int = 1000,
        folder: str = "mnist",
        download: bool = False,
    ) -> None:
        DigitSource.__init__(self, folder=folder, batch_size=batch_size, download=download)
        sizes = {"epoch_images": epoch_images, "val_images": val_images, "test_images": test_images}
        GeneratedImages.__init__(self, batch_size=batch_size, **sizes)
        for name, (low, high) in {"lengths": lengths, "test_lengths": test_lengths}.items():
            if not 1 <= low <= high <= 100:
                raise UserError(f"strings: {name}={[low, high]} must be a smallest and a largest number, 1 to 100")
        if not SIDE <= height <= 256:
            raise UserError(f"strings: height={height} must be from {SIDE}, the height of a digit, to 256 pixels")
        if not -SIDE < gap[0] <= gap[1] <= 100:
            raise UserError(f"strings: gap={list(gap)} must be a smallest and a largest gap, -{SIDE - 1} to 100 pixels")
        if not 0 <= clutter <= 10 or not 1 <= piece <= SIDE:
            raise UserError(f"strings: clutter={clutter} must be from 0 to 10, and piece={piece} from 1 to {SIDE}")
        if grow < 0:
            raise UserError(f"strings: grow={grow} is a number of batches, and must not be negative")
        longest = max(lengths[1], test_lengths[1])
        check_range("Strings", 1, 2**28, pixels_of_a_batch=batch_size * height * longest * (SIDE + max(gap[1], 0)))
        check_range("Strings", 1, 2**24, digits_of_a_split=longest * max(val_images, test_images))
        self.say, self.height, self.gap, self.clutter, self.piece = say, height, tuple(gap), clutter, piece
        self.grow = grow
        self.lengths = {"train": tuple(lengths), "val": tuple(lengths), "test": tuple(test_lengths)}
        self.image_shape = (3, height, longest * SIDE)
        self.vocabulary = Characters(DIGITS)

    def prepare(self, task: Task) -> None:
        """Read the digits and move them to the device of the task; check the height that its encoder takes."""
        if task.resolution not in (None, self.height):
            raise UserError(
                f"strings are drawn at height={self.height}, but the encoder takes {task.resolution} pixels; "
                f"set the source's height to {task.resolution} or the encoder's to {self.height}"
            )
        super().prepare(task)

    @cached_property
    def ink(self) -> dict[str, Ink]:
        return {split: Ink.of(digits) for split, digits in self.digits.items()}

    def fresh(self, numbers: tuple[int, ...], number: int) -> StripLayout:
        """Sample a training batch. Every process pads its part to the width of the whole batch."""
        layout = self.sample("train", numbers, self.batch_size, self.near(number, numbers))
        return layout._replace(width=np.full_like(layout.width, layout.width.max()))

    def fixed(self, name: str) -> tuple[StripLayout, Sequence[int]]:
        layout, _ = super().fixed(name)
        order = np.argsort(-layout.length, kind="stable")
        return selected(layout, order), order.tolist()

    def references(self) -> Iterator[list[str]]:
        """Return transcripts of a batch of training strips. Their digits are all that the vocabulary needs."""
        layout = self.sample("train", (FIXED, SPLITS.index("train")), self.batch_size)
        return ([self.transcript("train", layout, strip)[0]] for strip in range(self.batch_size))

    def near(self, number: int, numbers: tuple[int, ...]) -> tuple[int, int]:
        """Return the range of lengths in training batch `number`, counted from the start of training: all lengths up to
        the current largest in even batches, at most three neighbouring lengths in odd ones."""
        low, high = self.lengths["train"]
        if number < self.grow:
            high = low + (high - low) * number // self.grow
        if number % 2 == 0:
            return low, high
        middle = int(integers(stream(*numbers, LENGTHS), low, high, 1)[0])
        return max(low, middle - 1), min(high, middle + 1)

    def sample(
        self, name: str, numbers: tuple[int, ...], num_images: int, lengths: tuple[int, int] | None = None
    ) -> StripLayout:
        """Sample all random choices of strips, on the CPU.

        lengths: the range of lengths; None: that of the split.
        """
        bits, ink = stream(*numbers), self.ink[name]
        low, high = lengths or self.lengths[name]
        length = integers(bits, low, high, num_images)
        margin = integers(bits, 0, MARGIN, 2, num_images)
        last = [len(ink.labels) - 1, self.height - SIDE, self.gap[1]]
        digit, y, gap = np.moveaxis(integers(bits, [0, 0, self.gap[0]], last, num_images, high, 3), -1, 0)
        advance = np.maximum(ink.right[digit] - ink.left[digit] + gap, ADVANCE)
        x = margin[0][:, None] + np.cumsum(advance, axis=1) - advance
        end = np.take_along_axis(x + ink.right[digit] - ink.left[digit], length[:, None] - 1, axis=1)[:, 0]
        width = end + margin[1]
        cut = SIDE - self.piece
        last = [len(ink.labels) - 1, cut, cut, 2**20, self.height - self.piece]
        pieces = integers(bits, 0, last, num_images, round(self.clutter * high), 5)
        pieces[..., 3] = pieces[..., 3] * np.maximum(width - self.piece, 0)[:, None] // 2**20
        return StripLayout(length, digit, x, y, width, pieces)

    def batch(self, name: str, layout: StripLayout, ids: Sequence[int]) -> CaptionBatch:
        """Draw these strips, and write their transcripts. The longest come first."""
        order, width = np.argsort(-layout.length, kind="stable"), padded_width(layout)
        layout, ids = selected(layout, order), [ids[strip] for strip in order.tolist()]
        said = [self.transcript(name, layout, strip) for strip in range(len(ids))]
        return CaptionBatch(
            images=self.draw(name, layout, width),
            words=padded_words([self.vocabulary.encode(text) for text, _ in said]),
            ids=tuple(ids),
            references=tuple([text] for text, _ in said),
            files=(None,) * len(ids),
            boxes=tuple(self.boxes(name, layout, strip, order, width) for strip, (_, order) in enumerate(said)),
        )

    def transcript(self, name: str, layout: StripLayout, strip: int) -> tuple[str, list[int]]:
        """Return the transcript of a strip, and the positions of its digits in the strip, in the order of the
        transcript."""
        labels = self.ink[name].labels[layout.digit[strip, : layout.length[strip]]]
        order = list(range(len(labels)))
        if self.say == "reverse":
            order.reverse()
        if self.say == "sort":
            order.sort(key=lambda slot: labels[slot])
        return "".join(str(labels[slot]) for slot in order), order

    def boxes(
        self, name: str, layout: StripLayout, strip: int, order: Sequence[int], width: int
    ) -> dict[str, list[tuple[float, float, float, float]]]:
        """Return the boxes of the ink of each digit, (x0, y0, x1, y1) in [-1, 1] of the padded strip."""
        ink = self.ink[name]
        by_digit: dict[str, list[tuple[float, float, float, float]]] = {}
        for slot in order:
            digit, x, y = layout.digit[strip, slot], layout.x[strip, slot], layout.y[strip, slot]
            right = x + ink.right[digit] - ink.left[digit]
            top, bottom = y + ink.top[digit], y + ink.bottom[digit]
            edges = (x / width, top / self.height, right / width, bottom / self.height)
            x0, y0, x1, y1 = (float(2 * edge - 1) for edge in edges)
            by_digit.setdefault(str(ink.labels[digit]), []).append((x0, y0, x1, y1))
        return by_digit

    def draw(self, name: str, layout: StripLayout, width: int) -> UInt8[Tensor, "B 3 Y X"]:
        """Render the strips on the device of the digits. Intensities are added and clipped."""
        digits, longest = self.digits[name].images, int(layout.length.max())
        slots = np.arange(longest) < layout.length[:, None]
        digit, x, y = (field[:, :longest] for field in (layout.digit, layout.x, layout.y))
        # Slots past a strip's length are drawn without ink at its beginning: their x may lie beyond the canvas.
        wholes = np.stack([digit, np.where(slots, x - self.ink[name].left[digit], 0), y, slots], axis=-1)
        count = np.round(self.clutter * layout.length)
        pieces = np.concatenate(
            [layout.pieces, (np.arange(layout.pieces.shape[1]) < count[:, None])[..., None]], axis=-1
        )
        device = digits.device
        whole, piece = (torch.from_numpy(table).to(device, non_blocking=True) for table in (wholes, pieces))
        # With a digit's width on both sides, since the image of a digit is wider than its ink.
        canvas = torch.zeros(len(layout.length), self.height, width + 2 * SIDE, device=device)
        corner = whole.new_zeros(2)
        add_digits(canvas, digits, whole[..., 0], corner, whole[..., 1:3], whole[..., 3], SIDE)
        add_digits(canvas, digits, piece[..., 0], piece[..., 1:3], piece[..., 3:5], piece[..., 5], self.piece)
        pixels = canvas[:, None, :, SIDE : SIDE + width].clamp_(max=255).to(torch.uint8)
        return pixels.expand(-1, 3, -1, -1).contiguous()

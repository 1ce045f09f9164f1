"""MNIST pairs: two digits anywhere on one canvas, to be read or added (Ba et al., ICLR 2015, section 4.1)."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vision_attn.data.caption_batch import CaptionBatch, padded_words
from vision_attn.data.digits.clutter import Clutter, Placement, compose, to_device
from vision_attn.data.digits.mnist import SIDE
from vision_attn.data.random_streams import FIXED, integers, stream
from vision_attn.data.vocabulary import Vocabulary, VocabularySource
from vision_attn.system.errors import UserError
from vision_attn.task import SPLITS

PLACES = 8
"""The number of random places that are tried for the second digit; if it overlaps the first digit in all of them, it is
put into the far corner."""


class DigitPairs(VocabularySource, Clutter):
    """Two digits at random places that do not overlap, on a canvas of `canvas` x `canvas` pixels.

    say: "read", both digits as two words, the left one first; or "add", their sum as one word, "0" to "18".
    canvas: height and width of the images in pixels, at least 84, where there is always room for a second digit.
    batch_size, epoch_images, val_images, test_images, folder, download: as for `Clutter`.

    Images are white on black, in three equal channels. `boxes` holds the 28x28 image of each digit of the answer; for
    sums, boxes are unknown. Training images are new in every epoch.
    """

    def __init__(
        self,
        *,
        say: Literal["read", "add"] = "read",
        canvas: int = 100,
        batch_size: int = 128,
        epoch_images: int = 51200,
        val_images: int = 1000,
        test_images: int = 10000,
        folder: str = "mnist",
        download: bool = False,
    ) -> None:
        if canvas < 3 * SIDE:
            raise UserError(f"pairs: canvas={canvas} must be at least {3 * SIDE} pixels, for two digits apart")
        super().__init__(
            canvas=canvas,
            pieces=1,
            piece=SIDE,
            batch_size=batch_size,
            epoch_images=epoch_images,
            val_images=val_images,
            test_images=test_images,
            folder=folder,
            download=download,
        )
        self.say, self.image_shape = say, (3, canvas, canvas)
        self.content_words = frozenset(map(str, range(10))) if say == "read" else frozenset()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """All answers, or the words that `restore` read."""
        return Vocabulary.build(map(str, range(10 if self.say == "read" else 19)), min_count=1)

    def references(self) -> Iterator[list[str]]:
        """Return answers for a batch of training images."""
        samples = self.sample("train", (FIXED, SPLITS.index("train")), self.batch_size)
        return ([text] for text, _ in self.answers("train", samples))

    def sample(self, name: str, numbers: tuple[int, ...], num_images: int) -> Int[Tensor, "B columns"]:
        """Sample all random choices on the CPU, one row per image; `Placement` names the columns."""
        bits, last = stream(*numbers), self.canvas - SIDE
        digit = integers(bits, 0, len(self.digits[name].labels) - 1, num_images, 2)
        place = integers(bits, 0, last, num_images, 1 + PLACES, 2)
        far = np.where(2 * place[:, :1] >= last, 0, last)
        place = np.concatenate([place, far], axis=1)
        apart = (abs(place[:, 1:] - place[:, :1]) >= SIDE).any(axis=2)
        second = place[np.arange(num_images), 1 + apart.argmax(axis=1)]
        columns = [digit[:, :1], place[:, 0], digit[:, 1:], np.zeros_like(second), second]
        return torch.from_numpy(np.concatenate(columns, axis=1))

    def checksum(self, name: str) -> str:
        """Return the first 16 digits of the SHA-256 of a fixed set: all pixels as bytes, then all answers, a line
        each."""
        content, texts = hashlib.sha256(), []
        for batch in self.split(name):
            content.update(batch.images.cpu().numpy().tobytes())
            texts += [text for (text,) in batch.references]
        content.update("\n".join(texts).encode())
        return content.hexdigest()[:16]

    def answers(self, name: str, samples: Int[Tensor, "B columns"]) -> list[tuple[str, list[tuple[int, int, int]]]]:
        """Return the transcript of each image, and its digits from left to right: label, x and y of the upper left
        corner."""
        placement, labels = Placement.of(samples), self.digits[name].labels.cpu()
        answers = []
        for first, at, (second,), (place,) in zip(
            labels[placement.digit].tolist(), placement.corner.tolist(), labels[placement.source].tolist(),
            placement.place.tolist(), strict=True,
        ):  # fmt: skip
            pair = sorted([(*at, first), (*place, second)])
            text = f"{pair[0][2]} {pair[1][2]}" if self.say == "read" else str(first + second)
            answers.append((text, [(label, x, y) for x, y, label in pair]))
        return answers

    def batch(self, name: str, samples: Int[Tensor, "B columns"], ids: Sequence[int] = ()) -> CaptionBatch:
        digits, answers = self.digits[name], self.answers(name, samples)
        images = compose(digits, Placement.of(to_device(digits.images.device, samples)), canvas=self.canvas, piece=SIDE)
        return CaptionBatch(
            images=images.mul(255).round().byte()[:, None].expand(-1, 3, -1, -1).contiguous(),
            words=padded_words([self.vocabulary.encode(text) for text, _ in answers]),
            ids=tuple(ids),
            references=tuple([text] for text, _ in answers),
            files=(None,) * len(answers),
            boxes=tuple(self.boxes(pair) if self.say == "read" else None for _, pair in answers),
        )

    def boxes(self, pair: Sequence[tuple[int, int, int]]) -> dict[str, list[tuple[float, float, float, float]]]:
        """Return the box of each digit's 28x28 image, (x0, y0, x1, y1) in [-1, 1]."""
        by_label: dict[str, list[tuple[float, float, float, float]]] = {}
        for label, x, y in pair:
            x0, y0, x1, y1 = (2 * edge / self.canvas - 1 for edge in (x, y, x + SIDE, y + SIDE))
            by_label.setdefault(str(label), []).append((x0, y0, x1, y1))
        return by_label

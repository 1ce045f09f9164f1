"""Pairs of digits: both are whole and apart, and what is said is what the image shows."""

import numpy as np
import pytest
import torch

from tests.fake_mnist import write_mnist
from vision_attn.data.digits.digit_pairs import DigitPairs
from vision_attn.data.digits.mnist import SIDE
from vision_attn.system.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """Digit d fills its image with the intensity 20 (d + 1)."""
    images = {
        name: np.repeat(20 * (np.arange(count) % 10 + 1), SIDE * SIDE).astype(np.uint8).reshape(count, SIDE, SIDE)
        for name, count in (("train", 5300), ("test", 120))
    }
    return write_mnist(tmp_path_factory.mktemp("filled") / "mnist", images)


def pairs(folder: str, **options) -> DigitPairs:
    return DigitPairs(**{"folder": folder, "batch_size": 32, "epoch_images": 64, "test_images": 40, **options})


def seen(image: torch.Tensor) -> list[int]:
    """The two digits of an image from left to right, by their intensities; the image must hold two whole digits."""
    levels, counts = image[0][image[0] > 0].unique(return_counts=True)
    columns = [int((image[0] == level).any(dim=0).int().argmax()) for level in levels]
    digits = [int(level) // 20 - 1 for level in levels]
    if len(digits) == 1:
        assert int(counts) == 2 * SIDE * SIDE
        return digits * 2
    assert counts.tolist() == [SIDE * SIDE] * 2
    return digits if columns[0] < columns[1] else digits[::-1]


def test_two_whole_digits_are_read_from_left_to_right(folder):
    source = pairs(folder)
    assert source.vocabulary.decode(source.vocabulary.encode("3 5")) == "3 5" and len(source.vocabulary) == 3 + 10
    for batch in (next(source.train(0, seed=0)), *source.split("test")):
        for image, (text,), words, boxes in zip(batch.images, batch.references, batch.words, batch.boxes, strict=True):
            columns = [int((image[0] == 20 * (int(digit) + 1)).any(dim=0).int().argmax()) for digit in text.split()]
            if columns[0] != columns[1]:
                assert seen(image) == list(map(int, text.split()))
            assert source.vocabulary.decode(words[0].tolist()) == text
            for digit, several in boxes.items():
                for box in several:
                    x0, y0, x1, y1 = (round((edge + 1) / 2 * 100) for edge in box)
                    assert (image[0, y0:y1, x0:x1] == 20 * (int(digit) + 1)).all() and x1 - x0 == y1 - y0 == SIDE
            assert sum(map(len, boxes.values())) == 2


def test_digits_are_apart_on_the_smallest_canvas(folder):
    """Also where every place that is tried overlaps, as in four of these images."""
    source = pairs(folder, canvas=84, test_images=120)
    for batch in source.split("test"):
        assert all(int((image[0] > 0).sum()) == 2 * SIDE * SIDE for image in batch.images)
    assert source.checksum("test") == source.checksum("test") != source.checksum("val")


def test_sums_are_one_word(folder):
    source = pairs(folder, say="add")
    assert len(source.vocabulary) == 3 + 19 and not source.content_words
    for batch in source.split("test"):
        for image, (text,), boxes in zip(batch.images, batch.references, batch.boxes, strict=True):
            assert sum(seen(image)) == int(text) and boxes is None
        assert batch.words.shape[2] == 2, "the sum and END"


def test_training_depends_on_seed_and_epoch_alone_and_parts_are_the_batch(folder):
    source = pairs(folder)
    whole, skipped = [*source.train(1, seed=3)], next(source.train(1, seed=3, skip=1))
    assert torch.equal(whole[1].images, skipped.images) and whole[1].ids == skipped.ids == tuple(range(96, 128))
    parts = [next(source.train(1, seed=3, rank=rank, world=2)) for rank in (0, 1)]
    assert torch.equal(parts[1].words, whole[0].words[1::2]) and parts[1].ids == whole[0].ids[1::2]
    with pytest.raises(UserError, match="canvas=83 must be at least 84"):
        pairs(folder, canvas=83)

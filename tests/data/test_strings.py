"""Strings of digits: what a strip shows is what its transcript says, and every box holds its digit."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.fake_mnist import write_mnist
from vision_attn.data.digits.mnist import SIDE
from vision_attn.data.lines.characters import Characters
from vision_attn.data.lines.mnist_strings import ADVANCE, Strings
from vision_attn.system.errors import UserError
from vision_attn.task import Task

INTENSITY = 23
"""A digit d is drawn as a block of intensity 20 + 23 d, so that pixels say which digit they belong to."""


def blocks(count: int) -> np.ndarray:
    """Digits that are blocks of 10 x 16 pixels, whose intensity says which they are; digit 1 is 4 pixels wide."""
    images = np.zeros((count, SIDE, SIDE), np.uint8)
    for number in range(count):
        images[number, 6:22, 9 : 13 if number % 10 == 1 else 19] = 45 + INTENSITY * (number % 10)
    return images


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return write_mnist(tmp_path_factory.mktemp("blocks") / "mnist", {"train": blocks(5300), "test": blocks(120)})


def strings(folder: str, **options) -> Strings:
    sizes = {"batch_size": 12, "epoch_images": 36, "val_images": 20, "test_images": 20, "gap": (0, 8), "clutter": 0.0}
    return Strings(folder=folder, **{**sizes, **options})


def looked_up(image: torch.Tensor, box) -> str:
    """The digit whose intensity fills a box."""
    height, width = image.shape[1:]
    x0, x1 = (round((edge + 1) / 2 * width) for edge in box[::2])
    y0, y1 = (round((edge + 1) / 2 * height) for edge in box[1::2])
    inside = image[0, y0:y1, x0:x1].unique()
    assert len(inside) == 1, "the box is tight, and holds nothing else"
    return str((int(inside) - 45) // INTENSITY)


@pytest.mark.parametrize("say", ["read", "reverse", "sort"])
def test_the_boxes_of_a_strip_hold_what_is_said_in_its_order(folder, say):
    source = strings(folder, say=say)
    for batch in (next(source.train(0, seed=0)), *source.split("test")):
        for image, references, boxes in zip(batch.images, batch.references, batch.boxes, strict=True):
            (text,) = references
            numbers, places = dict.fromkeys(text, 0), []
            for digit in text:
                box = boxes[digit][numbers[digit]]
                numbers[digit] += 1
                assert looked_up(image, box) == digit
                places.append(box[0])
            assert numbers == {digit: len(several) for digit, several in boxes.items()}
            forward = [one < other for one, other in pairwise(places)]
            assert {"read": all(forward), "reverse": not any(forward), "sort": list(text) == sorted(text)}[say]
            assert (image == image[0]).all()


def test_lengths_and_gaps_are_those_that_were_asked_for(folder):
    source = strings(folder, lengths=(2, 5), test_lengths=(3, 9), test_images=60, gap=(-3, 4))
    seen = {split: {len(r[0]) for b in source.split(split) for r in b.references} for split in ("val", "test")}
    assert seen == {"val": {2, 3, 4, 5}, "test": set(range(3, 10))}
    batches = list(source.split("test"))
    widths = [batch.images.shape[-1] for batch in batches]
    assert widths == sorted(widths, reverse=True) and all(width % 8 == 0 for width in widths)
    gaps = []
    for batch in batches:
        for boxes in batch.boxes:
            row = sorted((x0 * batch.images.shape[-1] / 2, x1 * batch.images.shape[-1] / 2)
                         for several in boxes.values() for x0, _, x1, _ in several)  # fmt: skip
            gaps += [(two[0] - one[1], two[0] - one[0]) for one, two in pairwise(row)]
    assert min(gap for gap, _ in gaps) < 0 <= max(gap for gap, _ in gaps) <= 4.01
    assert min(advance for _, advance in gaps) >= ADVANCE - 0.01


def test_training_strings_grow_and_those_of_every_second_batch_are_of_similar_length(folder):
    source = strings(folder, lengths=(2, 8), grow=30, epoch_images=360)
    lengths = [[len(text) for (text,) in batch.references] for epoch in (0, 1) for batch in source.train(epoch, seed=0)]
    assert all(max(those) <= 2 + 6 * number // 30 for number, those in enumerate(lengths[:30]))
    assert all(max(those) - min(those) <= 2 for those in lengths[1::2])
    assert max(max(those) - min(those) for those in lengths[::2]) == 6
    assert {length for those in lengths[30:] for length in those} == set(range(2, 9))
    assert [len(text) for (text,) in next(source.train(0, seed=0, skip=7)).references] == lengths[7]


def test_slots_past_the_length_of_a_strip_may_lie_beyond_the_canvas(folder):
    source = strings(folder)
    layout = source.sample("train", (0, 0), 2)
    layout.length[:] = 12, 1
    layout.y[1] = source.height - SIDE  # the last row of the last strip: what lies beyond has no pixel
    drawn = source.draw("train", layout, 400)
    layout.x[1, 1:] = 10_000
    assert torch.equal(source.draw("train", layout, 400), drawn)


def test_words_are_sorted_targets(folder):
    batch = next(strings(folder).train(0, seed=1))
    lengths = (batch.words != 0).sum(dim=-1).flatten()
    assert (lengths.diff() <= 0).all() and batch.words.shape == (12, 1, int(lengths.max()))
    for row, (text,) in zip(batch.words, batch.references, strict=True):
        assert row[0, : len(text) + 1].tolist() == [*(int(digit) + 3 for digit in text), 1]


def test_batches_depend_on_seed_and_epoch_alone_and_parts_are_the_batch(folder):
    source = strings(folder, clutter=0.5, gap=(-2, 8))
    epoch, again = list(source.train(2, seed=7)), list(strings(folder, clutter=0.5, gap=(-2, 8)).train(2, seed=7))
    for one, other in zip(epoch, again, strict=True):
        assert torch.equal(one.images, other.images) and one[2:] == other[2:]
    assert torch.equal(next(source.train(2, seed=7, skip=2)).images, epoch[2].images)
    assert next(source.train(3, seed=7)).references != epoch[0].references
    assert len({image for batch in epoch for image in batch.ids}) == 36
    parts = [next(source.train(2, seed=7, rank=rank, world=2)) for rank in range(2)]
    joined = {i: image for part in parts for i, image in zip(part.ids, part.images, strict=True)}
    assert all(torch.equal(joined[i], image) for i, image in zip(epoch[0].ids, epoch[0].images, strict=True))


def test_processes_share_the_batches_of_a_split(folder):
    source = strings(folder)
    whole = list(source.split("test"))
    parts = [list(source.split("test", rank=rank, world=2)) for rank in range(2)]
    assert len(whole) > 1 and sum(map(len, parts)) == len(whole)
    for number, batch in enumerate(whole):
        other = parts[number % 2][number // 2]
        assert torch.equal(batch.images, other.images) and batch[2:] == other[2:]


def test_fixed_strips_do_not_depend_on_the_batches_and_clutter_is_added(folder):
    def strips(**options):
        batches = strings(folder, **options).split("test")
        return {i: (image, text) for b in batches for i, image, text in zip(b.ids, b.images, b.references, strict=True)}

    one, other, cluttered = strips(), strips(batch_size=5), strips(clutter=2.0)
    for i, (image, text) in one.items():
        width = min(image.shape[-1], other[i][0].shape[-1])
        assert torch.equal(image[..., :width], other[i][0][..., :width]) and text == other[i][1]
    assert sum((cluttered[i][0] > 0).sum() for i in one) > 1.02 * sum((image > 0).sum() for image, _ in one.values())


@pytest.mark.parametrize(
    "wrong", [{"lengths": (0, 3)}, {"test_lengths": (5, 2)}, {"height": 20}, {"gap": (3, 1)}, {"clutter": -1.0},
              {"epoch_images": 4}, {"test_images": 0}],
)  # fmt: skip
def test_mistakes_are_named(wrong):
    with pytest.raises(UserError, match=f"strings: .*{next(iter(wrong))}="):
        Strings(**wrong)


def test_an_encoder_of_another_height_is_refused(folder):
    class Taller(Task):
        resolution = 64

    with pytest.raises(UserError, match="height=32, but the encoder takes 64 pixels"):
        strings(folder).prepare(Taller())


def test_characters_are_any_and_keep_their_case(tmp_path):
    texts = ["Straße 5!", "e\u0301te\u0301", "שלום", "日本"]
    built = Characters.build(texts)
    for text in texts:
        assert built.decode([*built.encode(text), 1, 5]) == text.replace("e\u0301", "é")
    assert built.words[:3] == ["<pad>", "<end>", "<unk>"] and built.encode("x") == [2] and " " in built.words
    built.save(tmp_path / "vocabulary.json")
    assert Characters.load(tmp_path / "vocabulary.json").words == built.words
    more = built.extended(["x", "ß"])
    assert more.words == [*built.words, "x"]
    (tmp_path / "vocabulary.json").write_text('{"characters": ["ab"]}')
    with pytest.raises(UserError, match="not a file of characters"):
        Characters.load(tmp_path / "vocabulary.json")

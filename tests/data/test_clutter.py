"""Cluttered MNIST: the pixels and statistics of the original generator, on any device, resumed and shared exactly."""

import random
from itertools import islice

import numpy as np
import pytest
import torch
from fake_mnist import NUM_TEST, flat, write_mnist
from references_clutter import cluttered, random_cluttered
from torch import nn

from vision_attn.data.digits.clutter import Clutter, Placement, compose
from vision_attn.data.digits.mnist import SIDE, Digits
from vision_attn.system.errors import UserError
from vision_attn.task import Task


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    return write_mnist(tmp_path_factory.mktemp("data") / "mnist")


@pytest.fixture(params=["fake", "real"])
def folder(request, fake):
    return fake if request.param == "fake" else str(request.getfixturevalue("data_folder") / "mnist")


def same(one, other):
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.mark.parametrize("canvas, pieces, piece", [(60, 4, 8), (100, 8, 8), (28, 0, 8), (29, 12, 28), (45, 40, 5)])
def test_pixels_are_those_of_the_slow_generator(folder, canvas, pieces, piece):
    source = Clutter(folder=folder, canvas=canvas, pieces=pieces, piece=piece)
    samples = source.sample("train", (1, 2, 3), 12)
    batch = source.batch("train", samples)
    digits = source.digits["train"]
    at = Placement.of(samples)
    for image in range(12):
        parts = zip(at.source[image].tolist(), at.crop[image].tolist(), at.place[image].tolist(), strict=True)
        slow = cluttered(
            digits.images.numpy(), at.digit[image], at.corner[image].tolist(), list(parts), canvas=canvas, piece=piece
        )  # fmt: skip
        np.testing.assert_allclose(batch.images[image, 0].numpy(), slow, atol=1e-6)
    assert torch.equal(batch.labels, digits.labels[at.digit])
    assert batch.images.max() == 1 and batch.images.dtype == torch.float32


def test_statistics_are_those_of_the_slow_generator(folder):
    source = Clutter(folder=folder, epoch_images=3072)
    fast = torch.cat([batch.images[:, 0] for batch in source.train(0, seed=0)]).numpy()
    rng, digits = random.Random(0), source.digits["train"].images.numpy()
    slow = np.stack([random_cluttered(rng, digits, canvas=60, num_pieces=4, piece=8) for _ in range(1500)])
    measures = {
        "ink": lambda images: images.mean((1, 2)),
        "full ink": lambda images: (images >= 1).mean((1, 2)),
        "empty": lambda images: (images == 0).mean((1, 2)),
        "where": lambda images: images.reshape(-1, 6, 10, 6, 10).mean((2, 4)),
        "contrast": lambda images: images.std((1, 2)),
    }
    for name, measure in measures.items():
        one, other = measure(fast), measure(slow)
        error = np.sqrt(one.var(0) / len(one) + other.var(0) / len(other))
        assert (np.abs(one.mean(0) - other.mean(0)) < 4 * error).all(), name


def test_positions_are_uniform_and_everything_lies_inside(fake):
    source = Clutter(folder=fake, canvas=50, pieces=3, piece=10)
    samples = source.sample("train", (4,), 20000)
    num_digits = len(source.digits["train"].labels)
    piece = [num_digits, SIDE - 9, SIDE - 9, 50 - 9, 50 - 9]
    for column, choices in zip(samples.T, [num_digits, 50 - 27, 50 - 27, *piece * 3], strict=True):
        counts = column.bincount(minlength=choices)
        assert len(counts) == choices and counts.min() > 0
        expected = len(column) / choices
        chi_square = ((counts - expected) ** 2 / expected).sum().item()
        assert abs(chi_square - (choices - 1)) < 5 * (2 * (choices - 1)) ** 0.5
    correlation = np.corrcoef(samples.T.numpy()) - np.eye(samples.shape[1])
    assert np.abs(correlation).max() < 5 / 20000**0.5


def test_boxes_hold_the_digit(folder):
    source = Clutter(folder=folder, canvas=60, pieces=0, test_images=100)
    (batch,) = source.split("test")
    corners = ((batch.boxes + 1) * 30).round().long()
    rest = batch.images.clone()
    for image, (x0, y0, x1, y1) in enumerate(corners.tolist()):
        assert (x1 - x0, y1 - y0) == (SIDE, SIDE)
        expected = source.digits["test"].images[image] / 255
        torch.testing.assert_close(batch.images[image, 0, y0:y1, x0:x1], expected, atol=1e-6, rtol=0)
        rest[image, 0, y0:y1, x0:x1] = 0
    assert not rest.any() and batch.boxes.abs().max() <= 1
    assert torch.equal(batch.labels, source.digits["test"].labels[:100])


def test_splits_share_no_digit_and_no_piece(tmp_path):
    """Each split has ink of its own strength, so that any pixel tells from which split it comes."""
    folder = write_mnist(tmp_path / "mnist", flat(train=1, val=30, test=200))
    source = Clutter(folder=folder, batch_size=128, epoch_images=256, val_images=256, test_images=128)
    training = [*source.train(0, seed=0), *source.train(1, seed=0), *source.split("train")]
    for batches, possible in (
        (training, range(6)),
        (source.split("val"), range(0, 151, 30)),
        (source.split("test"), (0, 200, 255)),
    ):
        counts = sum((batch.images * 255).round().long().flatten().bincount(minlength=256) for batch in batches)
        pixels = set(counts.nonzero().flatten().tolist())
        assert pixels <= set(possible) and len(pixels) > 2


def test_processes_share_the_batches_of_a_split(fake):
    source = Clutter(folder=fake, batch_size=12, test_images=65, epoch_images=65)
    whole = list(source.split("test"))
    parts = [list(source.split("test", rank=rank, world=2)) for rank in range(2)]
    assert len(whole) > 2 and sum(map(len, parts)) == len(whole)
    for number, batch in enumerate(whole):
        same(batch, parts[number % 2][number // 2])


def test_skipped_batches_change_nothing_and_parts_make_the_batch(fake):
    source = Clutter(folder=fake, batch_size=12, epoch_images=65)
    epoch = list(source.train(2, seed=7))
    later = list(Clutter(folder=fake, batch_size=12, epoch_images=65).train(2, seed=7, skip=3))
    assert len(epoch) == len(source) == 5 and len(later) == 2
    for batch, again in zip(epoch[3:], later, strict=True):
        same(batch, again)
    parts = [list(source.train(2, seed=7, skip=1, rank=rank, world=3)) for rank in range(3)]
    for whole, *shares in zip(epoch[1:], *parts, strict=True):
        for rank, share in enumerate(shares):
            same([field[rank::3] for field in whole], share)
    others = [next(source.train(2, seed=8)), next(source.train(1, seed=7)), epoch[1]]
    assert all(not torch.equal(other.images, epoch[0].images) for other in others)
    with pytest.raises(UserError, match="a batch of 12 .* 5 processes"):
        next(source.train(0, seed=3, world=5))


def test_fixed_sets_do_not_depend_on_batches_and_grow_at_their_end(fake):
    def images(batch_size: int, number: int) -> torch.Tensor:
        source = Clutter(folder=fake, batch_size=batch_size, test_images=number)
        return torch.cat([batch.images for batch in source.split("test")])

    assert torch.equal(images(7, 150), images(64, 150)) and torch.equal(images(7, 150)[:20], images(64, 20))
    sums = {Clutter(folder=fake, batch_size=size, test_images=100).checksum("test") for size in (13, 100)}
    assert len(sums) == 1
    source = Clutter(folder=fake, test_images=2 * NUM_TEST)
    labels = torch.cat([batch.labels for batch in source.split("test")])
    assert torch.equal(labels, source.digits["test"].labels.repeat(2))  # in order, and again
    with pytest.raises(UserError, match="unknown split 'dev'.*train, val, test"):
        next(source.split("dev"))


@pytest.mark.parametrize(
    "setting, expected",
    [
        ({"canvas": 60, "pieces": 0}, "6b47567899463204"),
        ({"canvas": 60, "pieces": 4}, "ef8b9d70aaabe574"),
        ({"canvas": 100, "pieces": 8}, "2e880b82f00c9f7d"),
    ],
)
def test_test_sets_are_the_same_on_every_machine(data_folder, setting, expected):
    """A change of these sums is a change of the data set: results before and after cannot be compared."""
    source = Clutter(folder=str(data_folder / "mnist"), batch_size=1000, **setting)
    assert source.checksum("test") == expected
    assert expected in Clutter.__doc__


def test_nothing_is_fetched_from_the_device(fake):
    """On the meta device whatever looks at a value fails, as it would wait on a GPU."""
    source = Clutter(folder=fake, batch_size=8, epoch_images=8)
    samples = source.sample("train", (0,), 8).to("meta")
    digits = Digits(*(part.to("meta") for part in source.digits["train"]))
    assert compose(digits, Placement.of(samples), canvas=60, piece=8).shape == (8, 60, 60)
    task = Task()
    task.layer = nn.Linear(1, 1, device="meta")
    source.prepare(task)
    assert {part.device.type for part in next(source.train(0, seed=0))} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU is needed")
def test_a_gpu_makes_the_same_pixels_and_is_not_waited_for(fake):
    source = Clutter(folder=fake, pieces=40)
    expected = list(islice(source.train(0, seed=0), 3))
    task = Task()
    task.layer = nn.Linear(1, 1, device="cuda")
    source.prepare(task)
    batches = source.train(0, seed=0)
    made = [next(batches)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        made += [next(batches), next(batches)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for batch, again in zip(made, expected, strict=True):
        same([field.cpu() for field in batch], again)


@pytest.mark.parametrize(
    "wrong",
    [{"canvas": 20}, {"pieces": -1}, {"piece": 29}, {"epoch_images": 10}, {"test_images": 0}, {"batch_size": 0}],
)
def test_mistakes_are_named(wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        Clutter(**wrong)

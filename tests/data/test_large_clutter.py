"""Canvases that are drawn where they are read: their pixels are those of canvases that are drawn whole."""

import numpy as np
import pytest
import torch

from tests.fake_mnist import write_mnist
from tests.whole_runs import two_steps
from vision_attn.contracts import Classifier
from vision_attn.data.digits.clutter import Clutter
from vision_attn.data.digits.large_clutter import LargeClutter, Scattered, overlap
from vision_attn.models.draw import DRAWReader
from vision_attn.models.whole_image import Convolutional
from vision_attn.system.errors import UserError

SIZES = {"canvas": 60, "pieces": 4, "batch_size": 6, "epoch_images": 12, "val_images": 6, "test_images": 6}


def test_pixels_labels_and_boxes_are_those_of_clutter(tmp_path):
    folder = write_mnist(tmp_path / "mnist")
    large, small = LargeClutter(folder=folder, **SIZES), Clutter(folder=folder, **SIZES)
    for ours, theirs in (
        (next(large.train(3, seed=5, skip=1)), next(small.train(3, seed=5, skip=1))),
        (next(large.split("test")), next(small.split("test"))),
    ):
        drawn = torch.stack(ours.images.sampled(60)).float() * (1 / 255)
        torch.testing.assert_close(drawn, theirs.images, rtol=0, atol=1e-6)
        assert torch.equal(ours.labels, theirs.labels) and torch.equal(ours.boxes, theirs.boxes)


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_slices_of_a_canvas_are_those_of_the_whole(step):
    chance = np.random.default_rng(0)
    patches = [
        ((int(x), int(y)), chance.integers(0, 256, (4, 5), dtype=np.uint8)) for x, y in chance.integers(0, 16, (6, 2))
    ]
    canvas = Scattered(20, patches)
    whole = np.zeros((20, 20), int)
    for (x, y), patch in patches:
        whole[y : y + 4, x : x + 5] += patch
    assert whole.max() > 255
    for top, left, bottom, right in ((0, 0, 20, 20), (3, 5, 9, 6), (7, 0, 19, 13), (4, 4, 4, 4), (18, 2, 30, 11)):
        place = slice(top, bottom, step), slice(left, right, step)
        assert np.array_equal(canvas[place], whole.clip(max=255)[place])


def test_an_overlap_that_is_empty_selects_nothing():
    assert [range(10)[part] for part in overlap(range(3, 9), 20, 4)] == [range(6, 6), range(0)]
    assert overlap(range(3, 9), 0, 2)[0] == slice(0, 0)


def test_a_canvas_may_be_huge_and_says_how_large_it_may_be(tmp_path):
    source = LargeClutter(folder=write_mnist(tmp_path / "mnist"), **SIZES | {"canvas": 10**6})
    images = next(source.train(0, seed=0)).images
    assert images.extents.tolist() == [[10**6, 10**6]] * 6
    with pytest.raises(UserError, match="canvas is 1000001"):
        LargeClutter(canvas=10**6 + 1)


@pytest.mark.parametrize("model", [Convolutional, DRAWReader])
def test_a_model_of_one_size_says_that_images_differ(model: type[Classifier]):
    with pytest.raises(UserError, match=f"{model.__name__} takes images of one size"):
        model((1, 0, 0), 10)


def test_the_config_takes_two_steps(tmp_path):
    settings = {"batch_size": 8, "epoch_images": 16, "val_images": 8, "test_images": 8}
    metrics = two_steps("ram_cluttered2000", tmp_path, **{f"data.{name}": value for name, value in settings.items()})
    assert 0 <= metrics["last_glimpse_on_digit"] <= 1 and metrics["multiply_adds"] > 1e6

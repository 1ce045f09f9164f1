"""Two digits: a canvas holds two whole digits of one split, and depends on the seed alone."""

import torch

from tests.fake_mnist import flat, write_mnist
from vision_attn.data.digits.two_digits import TwoDigits


def test_two_whole_digits_of_the_split_are_added(tmp_path):
    """Digits of one intensity throughout: 40 in training, 90 in validation, 200 in the test, clipped at 255."""
    folder = write_mnist(tmp_path, flat(train=40, val=90, test=200))
    source = TwoDigits(batch_size=8, epoch_images=16, val_images=8, test_images=8, folder=folder)
    assert source.image_shape == (1, 60, 60) and len(source) == 2
    for name, level, both in (("train", 40, 80), ("val", 90, 180), ("test", 200, 255)):
        batch = next(iter(source.train(0, seed=0) if name == "train" else source.split(name)))
        levels = (batch.images * 255).round().int()
        assert set(levels.unique().tolist()) <= {0, level, both}
        covered = (levels == level).sum(dim=(1, 2, 3)) + 2 * (levels == both).sum(dim=(1, 2, 3))
        assert (covered == 2 * 28 * 28).all()  # both digits lie wholly inside
        assert (levels == both).any() and ((levels == both).sum(dim=(1, 2, 3)) < 28 * 28).any()


def test_training_images_follow_from_seed_and_epoch(tmp_path):
    source = TwoDigits(batch_size=4, epoch_images=8, folder=write_mnist(tmp_path))
    first, again = (torch.cat([batch.images for batch in source.train(3, seed=7)]) for _ in range(2))
    skipped = next(iter(source.train(3, seed=7, skip=1))).images
    assert torch.equal(first, again) and torch.equal(first[4:], skipped)
    assert not torch.equal(first[:4], first[4:])
    assert not torch.equal(first, torch.cat([batch.images for batch in source.train(4, seed=7)]))

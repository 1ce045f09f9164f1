"""Batches of decoded photographs, resized as Pillow resizes them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vision_attn.data.images.resizing import grouped, in_floats, resized, squares
from vision_attn.data.images.squares import AS_DECODED, encoder_input, seen_pixels

CPU = torch.device("cpu")
PHOTOGRAPHS = sorted((Path(__file__).parents[2] / "docs/photographs").glob("*.jpg"))


@pytest.mark.parametrize("resize", ["integers", "floats"])
@pytest.mark.parametrize("side", [56, 224, 448])
def test_pixels_are_pillows_within_a_level(side, resize):
    """Hardly any differs by two: where both passes round the other way. Only wide photographs: recent versions of
    Pillow resize the columns of others first, and do not agree with earlier ones."""
    for path in PHOTOGRAPHS:
        image = Image.open(path)
        image = image.crop((0, 0, image.width, min(image.size)))
        expected = np.asarray(image.resize((side, side), Image.Resampling.BICUBIC)).astype(int)
        pixels = torch.from_numpy(np.array(image))[None]
        found = resized(pixels, side) if resize == "integers" else in_floats(pixels.permute(0, 3, 1, 2), side)
        difference = np.abs(found[0].permute(1, 2, 0).numpy() - expected)
        assert difference.max() <= 2 and (difference > 1).mean() < 1e-4 and (difference > 0).mean() < 0.02


def test_a_batch_of_several_sizes_is_each_one_alone():
    dice = np.random.default_rng(0)
    sizes = [(20, 24), (30, 20), (20, 24), (16, 16), (30, 20)]
    pictures = [dice.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    groups = grouped(pictures)
    assert [group.places for group in groups] == [[0, 2], [1, 4], [3]]
    batch = squares(groups, 16, CPU)
    assert batch.is_contiguous(memory_format=torch.channels_last)
    for picture, image in zip(pictures, batch, strict=True):
        assert torch.equal(image, resized(torch.from_numpy(picture)[None], 16)[0])
    assert torch.equal(batch[3], torch.from_numpy(pictures[3]).permute(2, 0, 1))  # it has the size
    films = np.stack([pictures[0], pictures[2]])
    assert torch.equal(squares(grouped([films, films]), 16, CPU)[1], batch[[0, 2]])


def test_a_large_photograph_does_not_wait_in_its_own_size():
    """Its square is the same within a level, whether torch or Pillow resizes it."""
    image = Image.open(PHOTOGRAPHS[0]).convert("RGB").resize((1400, 900))
    square = seen_pixels(image, 64, "centre")
    assert AS_DECODED < 900**2 and square.shape == (64, 64, 3)
    assert seen_pixels(image, 700, "centre").shape == (900, 900, 3)
    pixels = torch.from_numpy(np.array(image.crop((250, 0, 1150, 900))))[None]
    assert (encoder_input(image, 64).int() - resized(pixels, 64)[0].int()).abs().max() <= 1

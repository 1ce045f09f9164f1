"""Crops of photographs: their arithmetic, pixel by pixel, and what they leave unchanged."""

import numpy as np
import pytest
import torch
from torch import Tensor

from vision_attn.data.images.crops import cropped, random_crops

WHOLE, MIRRORED = (-1.0, -1.0, 1.0, 1.0), (1.0, -1.0, -1.0, 1.0)


def photographs(number: int, size: int) -> Tensor:
    return torch.randint(0, 256, (number, 3, size, size), dtype=torch.uint8)


def weight(distance: float) -> float:
    """The cubic kernel of Keys (1981) with a = -0.75, as torch has it."""
    a, x = -0.75, abs(distance)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def reflected(pixel: int, size: int) -> int:
    """A pixel outside of an image is the one as far from its edge on the inside."""
    pixel %= 2 * size
    return min(pixel, 2 * size - 1 - pixel)


def slowly(image: Tensor, crop: tuple[float, ...]) -> Tensor:
    """One image, one pixel after the other."""
    size, (x0, y0, x1, y1) = image.shape[-1], crop
    found = torch.zeros(3, size, size, dtype=torch.uint8)
    for row in range(size):
        for column in range(size):
            x = (x0 + (x1 - x0) * (column + 0.5) / size + 1) / 2 * size - 0.5
            y = (y0 + (y1 - y0) * (row + 0.5) / size + 1) / 2 * size - 0.5
            total = torch.zeros(3, dtype=torch.double)
            for i in range(int(np.floor(y)) - 1, int(np.floor(y)) + 3):
                for j in range(int(np.floor(x)) - 1, int(np.floor(x)) + 3):
                    pixel = image[:, reflected(i, size), reflected(j, size)].double()
                    total += weight(y - i) * weight(x - j) * pixel
            found[:, row, column] = total.round().clamp(0, 255).byte()
    return found


def test_crops_are_interpolated_as_a_slow_reference_does():
    crops = [WHOLE, MIRRORED, (-1, -0.6, 0.6, 1), (0.9, -1, -0.7, 0.6), (-0.31, -0.4, 0.53, 0.44)]
    images = photographs(len(crops), 6)
    found = cropped(images, torch.tensor(crops))
    for image, crop, one in zip(images, crops, found, strict=True):
        assert (slowly(image, crop).int() - one.int()).abs().max() <= 1  # halves may be rounded either way


@pytest.mark.parametrize("size", [8, 224, 450])
def test_a_whole_photograph_is_itself_and_mirrored_its_mirror_image(size):
    """To the bit, also where products are rounded to bfloat16."""
    images = photographs(2, size)
    with torch.autocast("cpu", torch.bfloat16):
        found = cropped(images, torch.tensor([WHOLE, MIRRORED]))
    assert torch.equal(found[0], images[0]) and torch.equal(found[1], images[1].flip(-1))
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_random_crops_are_squares_within_the_photograph():
    mirrored = np.arange(1000) % 3 == 0
    crops = random_crops(0.8, mirrored, np.random.default_rng(0))
    left, right = np.minimum(crops[:, 0], crops[:, 2]), np.maximum(crops[:, 0], crops[:, 2])
    side = right - left
    assert np.array_equal(crops[:, 0] > crops[:, 2], mirrored) and np.abs(crops).max() <= 1
    np.testing.assert_allclose(side, crops[:, 3] - crops[:, 1], atol=1e-6)
    assert 1.6 <= side.min() < 1.605 and 1.995 < side.max() <= 2
    for start, end in ((left, right), (crops[:, 1], crops[:, 3])):  # anywhere between the edges
        place = (start + 1)[side < 1.8] / (2 - (end - start))[side < 1.8]
        assert place.min() < 0.01 and place.max() > 0.99 and abs(place.mean() - 0.5) < 0.05
    np.testing.assert_allclose(np.abs(random_crops(1.0, mirrored, np.random.default_rng(0))), 1)

"""The retina: against a slow, direct version, and against known results in simple cases."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests import pretend
from vision_attn.attention.glimpse import Retina
from vision_attn.fast import versions
from vision_attn.fast.glimpse import FastRetina
from vision_attn.system.errors import UserError


@pytest.fixture(params=["plain", "loops", "tensors"])
def kind(request: pytest.FixtureRequest) -> Iterator[type[Retina]]:
    """All ways of extracting glimpses: plain, by fused loops, and by the tensor operations that GPUs use."""
    if request.param == "loops":
        pytest.importorskip("vision_attn.fast.glimpse.cpu", reason="numba is not installed")
    with versions.without_loops(request.param == "tensors"):
        yield Retina if request.param == "plain" else FastRetina


def pixel(image: Tensor, y: int, x: int) -> Tensor:
    """(C,): one pixel of an image (C, Y, X), zero outside it."""
    inside = 0 <= y < image.shape[1] and 0 <= x < image.shape[2]
    return image[:, y, x] if inside else torch.zeros_like(image[:, 0, 0])


def interpolated(image: Tensor, y: float, x: float) -> Tensor:
    """(C,): the pixel whose top left corner is (y, x), interpolated between the four that it overlaps."""
    top, left = math.floor(y), math.floor(x)
    down, right = y - top, x - left
    upper = (1 - right) * pixel(image, top, left) + right * pixel(image, top, left + 1)
    lower = (1 - right) * pixel(image, top + 1, left) + right * pixel(image, top + 1, left + 1)
    return (1 - down) * upper + down * lower


def glimpse(image: Tensor, x: float, y: float, size: int, scale: int) -> Tensor:
    """(C, g, g): one patch of one image, cell by cell, each the mean of its 2^k x 2^k pixels."""
    (C, Y, X), side = image.shape, 2**scale
    left, top = (x + 1) / 2 * X - size * side / 2, (y + 1) / 2 * Y - size * side / 2
    patch = torch.zeros(C, size, size, dtype=image.dtype)
    for row in range(size):
        for column in range(size):
            for down in range(side):
                for right in range(side):
                    patch[:, row, column] += interpolated(image, top + row * side + down, left + column * side + right)
    return patch / side**2


def glimpses(images: Tensor, locations: Tensor, size: int, num_scales: int) -> Tensor:
    B, R, _ = locations.shape
    rows = [
        [[glimpse(images[b], *locations[b, r].tolist(), size, k) for k in range(num_scales)] for r in range(R)]
        for b in range(B)
    ]
    return torch.stack([torch.stack([torch.stack(scales) for scales in row]) for row in rows])


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("images", "rows", "size", "num_scales"),
    [
        ((2, 1, 9, 9), 2, 4, 1),
        ((1, 3, 11, 6), 2, 3, 2),
        ((2, 2, 7, 12), 1, 2, 3),
        ((1, 1, 5, 4), 1, 5, 3),
        ((1, 1, 1, 1), 2, 1, 2),
    ],
    ids=["one scale", "odd, colours, high", "wide", "wider than the image", "one pixel"],
)
def test_glimpses_are_those_of_the_slow_version(kind, images, rows, size, num_scales):
    pictures = draw(*images)
    locations = 2.6 * draw(images[0], rows, 2, seed=1) - 1.3  # some beyond the image
    retina = kind(size=size, num_scales=num_scales)
    ours = retina(retina.pyramid(pictures), locations)
    assert ours.shape == (images[0], rows, num_scales, images[1], size, size)
    torch.testing.assert_close(ours, glimpses(pictures, locations, size, num_scales), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("Y", "X", "size", "num_scales"), [(28, 28, 8, 1), (60, 60, 12, 3), (100, 84, 12, 4)])
def test_windows_on_whole_pixels_are_slices_averaged(kind, Y, X, size, num_scales):
    """At every corner between pixels of a few rows and columns, including the corners of the image."""
    image = draw(1, 2, Y, X).float()
    places = [(x, y) for x in (0, 1, X // 2 - 1, X - 3, X) for y in (0, 2, Y // 2, Y // 2 + 3, Y)]
    locations = torch.tensor([[(2 * x / X - 1, 2 * y / Y - 1) for x, y in places]])
    retina = kind(size=size, num_scales=num_scales)
    ours = retina(retina.pyramid(image), locations)[0]
    for k in range(num_scales):
        width = size * 2**k
        padded = functional.pad(image, (width // 2,) * 4)
        for (x, y), patch in zip(places, ours[:, k], strict=True):
            expected = functional.avg_pool2d(padded[0, :, y : y + width, x : x + width], 2**k)
            torch.testing.assert_close(patch, expected, rtol=0, atol=2e-5)


def test_an_odd_patch_around_a_pixels_centre_is_a_slice(kind):
    image = draw(1, 1, 9, 14).float()
    locations = torch.tensor([[((2 * 4 + 1) / 14 - 1, (2 * 6 + 1) / 9 - 1)]])  # pixel x = 4, y = 6
    retina = kind(size=5)
    patch = retina(retina.pyramid(image), locations)
    torch.testing.assert_close(patch[0, 0, 0], image[0, :, 4:9, 2:7], rtol=0, atol=1e-5)


def test_cells_weight_a_pixel_by_the_area_inside(kind):
    """One bright pixel, and a window shifted by a quarter of a pixel: each cell has the share of the pixel in it."""
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 4, 4] = 1
    retina = kind(size=2, num_scales=2)
    patch = retina(retina.pyramid(image), torch.tensor([[[0.25 * 2 / 8, 0.0]]]))
    torch.testing.assert_close(patch[0, 0, 0, 0], torch.tensor([[0.0, 0], [0.25, 0.75]]))
    torch.testing.assert_close(patch[0, 0, 1, 0], torch.tensor([[0.0, 0], [0.0625, 0.1875]]))


def test_rows_are_independent_and_images_are_not_repeated(kind):
    images, locations = draw(3, 1, 20, 20).float(), 2 * draw(3, 4, 2).float() - 1
    retina = kind(size=6, num_scales=2)
    pyramid = retina.pyramid(images)
    assert pyramid.averages.shape[:2] == (2, 3)
    together = retina(pyramid, locations)
    for r in range(4):
        torch.testing.assert_close(together[:, r : r + 1], retina(pyramid, locations[:, r : r + 1]), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_changes_the_inputs_and_nothing_else(kind, dtype):
    images, locations = draw(2, 1, 30, 30).to(dtype), (2 * draw(2, 2, 2) - 1).to(dtype)
    retina = kind(size=6, num_scales=3)
    expected = retina(retina.pyramid(images.float()), locations.float())
    with torch.autocast("cpu", dtype):
        ours = retina(retina.pyramid(images), locations)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def test_any_number_of_threads_gives_the_same_glimpses(kind, monkeypatch):
    pytest.importorskip("vision_attn.fast.loops", reason="numba is not installed")
    pretend.threads_that_share_little(monkeypatch)
    images, locations, retina = draw(5, 2, 20, 13), 2 * draw(5, 2, 2) - 1, kind(size=6, num_scales=3)
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 7):
            torch.set_num_threads(number)
            results.append(retina(retina.pyramid(images), locations))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_loops_stay_inside_the_image_whatever_the_location(kind):
    loops = pytest.importorskip("vision_attn.fast.glimpse.cpu", reason="numba is not installed")
    locations = torch.tensor([[[torch.nan, 0], [torch.inf, 0], [0, -torch.inf], [1e30, -1e30]]])
    corners = kind(size=4, num_scales=2)._corners(locations.double(), torch.tensor([[8, 8]]))
    assert not loops.glimpses(torch.ones(1, 1, 8, 8), corners, 4, torch.zeros(1, 2, dtype=torch.long)).any()


def test_nothing_has_a_gradient(kind):
    images, locations = torch.rand(2, 1, 8, 8, requires_grad=True), torch.zeros(2, 1, 2, requires_grad=True)
    retina = kind(size=4, num_scales=2)
    pyramid = retina.pyramid(images)
    assert not pyramid.averages.requires_grad
    assert not retina(pyramid, locations).requires_grad


@pytest.mark.parametrize("wrong", [{"size": 0}, {"num_scales": 0}])
def test_a_retina_without_cells_says_so(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Retina(**wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_custom_operator_of_the_averages_is_declared_correctly(dtype):
    """Its shape, dtype and mutations, which `torch.compile` assumes without running it."""
    torch.library.opcheck(torch.ops.vision_attn.averages.default, (torch.rand(2, 3, 7, 5, dtype=dtype), 3))

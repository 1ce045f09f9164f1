"""Glimpses of images that are read in crops: the same as of a tensor of pixels, and of sizes that no tensor has."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vision_attn.attention import glimpse as module
from vision_attn.attention.glimpse import Retina
from vision_attn.attention.images import LUMA, SAMPLES, Images, converted, overview
from vision_attn.fast.glimpse import FastRetina
from vision_attn.fast.versions import without_loops
from vision_attn.system.errors import UserError


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """(1, C, Y, X), from 0 to 1."""
    return torch.from_numpy(array).permute(2, 0, 1)[None].float() * (1 / 255)


def everywhere(number: int, X: int, Y: int) -> torch.Tensor:
    """(1, R, 2): random locations, some beyond the image, and its corners, centre, and borders of pixels."""
    anywhere = 2.6 * torch.rand(number, 2, generator=torch.Generator().manual_seed(1)) - 1.3
    pixels = torch.cartesian_prod(torch.tensor([0, 1, X // 2, X - 1, X]), torch.tensor([0, 2, Y // 2, Y]))
    exact = 2 * pixels / torch.tensor([X, Y]) - 1
    far = torch.tensor([[1e30, 0], [0, -torch.inf], [torch.nan, 0]])
    return torch.cat([anywhere, exact, far])[None]


class Counted:
    """The pixels of an array, and how many were read."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype, self.read = array, array.shape, array.dtype, 0

    def __getitem__(self, place):
        part = self.array[place]
        self.read += part.shape[0] * part.shape[1]
        return part


@pytest.mark.parametrize("size, num_scales", [(4, 1), (12, 3), (5, 4), (3, 2)])
@pytest.mark.parametrize("Y, X, C", [(60, 60, 1), (37, 90, 3), (5, 3, 1)])
def test_crops_give_exactly_the_glimpses_of_the_whole_image(size, num_scales, Y, X, C):
    """With loops bit for bit: at any place of the image and beyond it, at all scales."""
    pytest.importorskip("vision_attn.fast.glimpse.cpu", reason="numba is not installed")
    array, retina = noise(Y, X, C), FastRetina(size=size, num_scales=num_scales)
    locations = everywhere(40, X, Y)
    whole = retina(retina.pyramid(as_tensor(array)), locations)
    assert whole.any() and torch.equal(retina(retina.pyramid(Images([array], C)), locations), whole)


@pytest.mark.parametrize("kind", [Retina, FastRetina])
@pytest.mark.parametrize("size, num_scales", [(12, 3), (5, 4), (4, 1)])
@pytest.mark.parametrize("C", [1, 3])
def test_crops_give_the_glimpses_of_a_pyramid(kind, size, num_scales, C, monkeypatch):
    """With tensor operations, which GPUs use, up to the rounding of places; of a tensor, too, where it is large."""
    array, retina = noise(45, 70, C), kind(size=size, num_scales=num_scales)
    locations, tensor = everywhere(40, 70, 45)[:, :-3], as_tensor(array)
    with without_loops():
        assert isinstance(retina.pyramid(tensor), module.Pyramid)
        pyramid = retina(retina.pyramid(tensor), locations)
        crops = retina(retina.pyramid(Images([array], C)), locations)
        monkeypatch.setattr(module, "LARGE", 45 * 70 - 1)  # of an image above it there is no pyramid
        assert isinstance(retina.pyramid(tensor), module.Uncut)
        large = retina(retina.pyramid(tensor), locations)
    torch.testing.assert_close(crops, pyramid, rtol=0, atol=3e-5)
    torch.testing.assert_close(large, pyramid, rtol=0, atol=3e-5)


@pytest.mark.parametrize("kind, loops", [(Retina, False), (FastRetina, True), (FastRetina, False)])
def test_images_of_a_batch_may_differ_in_size_and_colour(kind, loops):
    """Each is seen as if it were alone; grey images have three equal channels."""
    arrays = [noise(30, 41, 3), noise(8, 9, 3, seed=1), noise(200, 20, seed=2)]
    retina, locations = kind(size=6, num_scales=2), torch.rand(3, 4, 2) * 2 - 1
    with without_loops(not loops):
        together = retina(retina.pyramid(Images(arrays, 3)), locations)
        for number, array in enumerate(arrays):
            colours = as_tensor(array if array.ndim == 3 else np.stack([array] * 3, axis=-1))
            alone = retina(retina.pyramid(colours), locations[number : number + 1])
            torch.testing.assert_close(together[number : number + 1], alone, rtol=0, atol=3e-5)


@pytest.mark.parametrize("kind", [Retina, FastRetina])
def test_the_pixels_that_are_read_do_not_depend_on_the_size(kind):
    retina, read = kind(size=12, num_scales=3), []
    for side in (60, 3000):
        image = Counted(np.broadcast_to(np.uint8(9), (side, side)))
        retina(retina.pyramid(Images([image], 1)), torch.zeros(1, 5, 2))
        read.append(image.read)
    assert read == [5 * 49**2] * 2


@pytest.mark.parametrize("kind", [Retina, FastRetina])
def test_an_image_of_a_terabyte_is_looked_at(kind):
    image = np.broadcast_to(np.uint8(255), (1_000_000, 1_000_000))
    retina = kind(size=12, num_scales=4)
    locations = torch.tensor([[[0.9, -0.9], [1.0, 1.0]]])
    patches = retina(retina.pyramid(Images([image], 1)), locations)
    torch.testing.assert_close(patches[0, 0], torch.ones(4, 1, 12, 12))
    assert torch.equal(patches[0, 1, 0, 0, :6, :6], torch.ones(6, 6)) and not patches[0, 1, :, :, 7:].any()


def test_colours_become_grey_as_in_pillow():
    from PIL import Image

    array = noise(7, 5, 3)
    assert np.array_equal(converted(array, 1)[..., 0], np.asarray(Image.fromarray(array).convert("L")))
    assert LUMA.sum() == 2**16 and converted(array, 3) is array
    assert np.array_equal(converted(array[..., 0], 3), np.stack([array[..., 0]] * 3, axis=-1))


def test_an_overview_is_the_mean_of_all_pixels_or_of_evenly_spaced_ones():
    array = noise(90, 70, 1)
    whole = F.adaptive_avg_pool2d(as_tensor(array), 6)
    images = Images([array, np.repeat(np.repeat(array, 5, axis=0), 5, axis=1)], 1)
    found = overview(images, 6)
    torch.testing.assert_close(found[:1], whole)
    torch.testing.assert_close(overview(as_tensor(array), 6), whole)
    assert images.overview(6) is found
    image = Counted(noise(5000, 3000, 1))
    once = Images([image], 1)
    assert (once.overview(6) - 0.5).abs().max() < 0.15 and image.read <= (6 * SAMPLES) ** 2
    ramp = np.repeat(np.arange(4000, dtype=np.uint32)[None] * 256 // 4000, 4000, axis=0).astype(np.uint8)
    expected = F.adaptive_avg_pool2d(as_tensor(ramp[..., None]), 6)
    torch.testing.assert_close(Images([ramp], 1).overview(6), expected, rtol=0, atol=4e-3)


@pytest.mark.parametrize("wrong", [(4, 4, 2), (0, 4), (4,), "float"])
def test_what_is_no_image_is_refused(wrong):
    array = np.zeros((4, 4)) if wrong == "float" else np.zeros(wrong, np.uint8)
    with pytest.raises(UserError, match="an image is"):
        Images([array], 1)
    with pytest.raises(UserError, match="1 or 3 channels"):
        Images([], 2)

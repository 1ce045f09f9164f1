"""What stands in the place of regions that are gone."""

import pytest
import torch
from torch import Tensor

from vision_attn.fast.holes import closed
from vision_attn.fast.versions import without_loops
from vision_attn.metrics.perturbations import FILLS, NOISE, noisy_interpolation, on_pixels, ranks

IMAGE = torch.nn.functional.interpolate(
    torch.rand(1, 3, 5, 5, generator=torch.Generator().manual_seed(0)), (20, 24), mode="bicubic"
)[0]


def interpolated(image: Tensor, gone: Tensor) -> Tensor:
    """The equations of Rong et al. 2022, section 4, solved exactly."""
    C, Y, X = image.shape
    holes = {int(pixel): number for number, pixel in enumerate(gone.flatten().nonzero()[:, 0])}
    matrix, right = torch.zeros(len(holes), len(holes), dtype=torch.float64), torch.zeros(len(holes), C).double()
    for pixel, number in holes.items():
        y, x = divmod(pixel, X)
        for down, across in ((a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)):
            if 0 <= y + down < Y and 0 <= x + across < X:
                weight, other = (1 / 6 if 0 in (down, across) else 1 / 12), (y + down) * X + x + across
                matrix[number, number] += weight
                if other in holes:
                    matrix[number, holes[other]] -= weight
                else:
                    right[number] += weight * image[:, y + down, x + across]
    found = image.double().flatten(1).clone()
    found[:, list(holes)] = torch.linalg.solve(matrix, right).T
    return found.view_as(image).to(image.dtype)


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("side", [1, 4])
def test_holes_are_closed_from_their_borders(loops: bool, share: float, side: int) -> None:
    """As the equations say, solved exactly, and with noise, whatever the shapes of holes: cells, or single pixels."""
    if loops:
        pytest.importorskip("vision_attn.fast.holes.cpu", reason="numba is not installed")
    cells = torch.rand(3, 20 // side, 24 // side, generator=torch.Generator().manual_seed(1)) < share
    cells[0, 0, 0], cells[:, -1, -1] = True, False  # corners that are gone, and that are not
    gone = on_pixels(cells, (20, 24))
    torch.manual_seed(2)
    with without_loops(not loops):
        found = noisy_interpolation(IMAGE, gone)
    torch.manual_seed(2)
    contrast = IMAGE.max() - IMAGE.min()
    noise = NOISE * contrast * torch.randn_like(found)
    for one, holes, added in zip(found, gone, noise, strict=True):
        expected = interpolated(IMAGE, holes) + added * holes
        torch.testing.assert_close(one, expected, rtol=0, atol=1e-6 * float(contrast))


@pytest.mark.parametrize("size", [(37, 70), (1, 9), (6, 1), (65, 64)])
def test_loops_close_holes_as_tensor_operations_do(size: tuple[int, int]) -> None:
    """Of images of any size; large holes, and one that is small."""
    pytest.importorskip("vision_attn.fast.holes.cpu", reason="numba is not installed")
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(2, *size, generator=generator).double()
    gone = torch.rand(4, *size, generator=generator) < torch.tensor([0.02, 0.5, 0.99, 2])[:, None, None]
    gone[1] = False
    gone[1, 0, 0] = True
    with without_loops():
        plain = closed(image, gone)
    fast = closed(image, gone)
    torch.testing.assert_close(fast, plain, rtol=0, atol=1.5e-6)
    assert fast[1][:, ~gone[1]].equal(image[:, ~gone[1]])
    torch.testing.assert_close(fast[3], image.mean(dim=(1, 2))[:, None, None].expand_as(image))


def test_what_fills_holes_has_a_little_noise() -> None:
    gone = on_pixels(torch.eye(4, dtype=torch.bool)[None], (20, 24))
    noise = noisy_interpolation(IMAGE, gone)[0] - noisy_interpolation(IMAGE, gone)[0]
    assert noise[:, gone[0]].std() > 0 and not noise[:, ~gone[0]].any()


@pytest.mark.parametrize("name", FILLS)
def test_what_is_not_gone_stays(name: str) -> None:
    gone = on_pixels(torch.eye(4, dtype=torch.bool)[None], (20, 24)).repeat(2, 1, 1)
    gone[1] = True
    found = FILLS[name](IMAGE, gone)
    assert found.shape == (2, 3, 20, 24) and torch.equal(found[0][:, ~gone[0]], IMAGE[:, ~gone[0]])
    assert (found[0] - IMAGE)[:, gone[0]].abs().mean() > 0.01 and found.isfinite().all()
    fine = torch.rand(3, 20, 24, generator=torch.Generator().manual_seed(0))
    assert FILLS[name](fine, gone)[1].std() < fine.std() / 3  # without anything to go by, little is left


def test_equal_weights_are_in_random_order() -> None:
    torch.manual_seed(0)
    weights = torch.tensor([0.0, 2.0, 0.0, 1.0]).expand(200, 4)
    found = ranks(weights)
    assert (found[:, 1] == 0).all() and (found[:, 3] == 1).all()
    assert 60 < int((found[:, 0] == 2).sum()) < 140

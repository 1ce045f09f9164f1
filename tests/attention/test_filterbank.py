"""DRAW's filterbank: against the paper's equations written out, and against known results in simple cases."""

import numpy as np
import pytest
import references_filterbank as reference
import torch

from tests.ways import prepared
from vision_attn.attention.filterbank import Filterbank
from vision_attn.contracts import Window
from vision_attn.fast import versions
from vision_attn.system.errors import UserError

pytestmark = pytest.mark.usefixtures("both_ways")

B, R, C, Y, X, N, H = 2, 3, 2, 9, 13, 4, 6


def build(shape=(C, Y, X), size=N, dtype=torch.float64, **options) -> Filterbank:
    torch.manual_seed(0)
    return prepared(Filterbank(H, shape, size=size, **options).to(dtype))


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def at(x: float, y: float, stride: float = 1.0, sigma: float = 0.01, intensity: float = 1.0, dtype=torch.float64):
    """A window of one row, centred at pixel (x, y); the first pixel is (1, 1)."""
    one = torch.ones(1, 1, dtype=dtype)
    return Window(torch.tensor([[[x, y]]], dtype=dtype), one * stride, one * sigma, one * intensity)


@pytest.mark.parametrize("shape", [(C, Y, X), (1, X, Y)], ids=["wide", "high"])
def test_it_follows_the_papers_equations(shape):
    """Windows, filters, reads and writes, for each image, row and channel separately."""
    C, Y, X = shape
    bank, state, images, patches = build(shape), random(B, R, H), random(B, *shape), random(B, R, C, N, N)
    window = bank.window(state)
    F_x, F_y = bank.filters(window)
    seen, drawn = bank.read(images, window), bank.write(patches, window)
    numbers = bank.numbers(state).detach().numpy()
    for b, r in np.ndindex(B, R):
        g_x, g_y, delta, sigma, gamma = reference.window(numbers[b, r], X, Y, N)
        ours = [*window.centre[b, r], window.stride[b, r], window.sigma[b, r], window.intensity[b, r]]
        np.testing.assert_allclose([number.item() for number in ours], [g_x, g_y, delta, sigma, gamma])
        f_x, f_y = reference.filters(g_x, delta, sigma, N, X), reference.filters(g_y, delta, sigma, N, Y)
        np.testing.assert_allclose(F_x[b, r].detach(), f_x, atol=1e-12)
        np.testing.assert_allclose(F_y[b, r].detach(), f_y, atol=1e-12)
        for c in range(C):
            read = reference.read(images[b, c].numpy(), f_x, f_y, gamma)
            write = reference.write(patches[b, r, c].numpy(), f_x, f_y, gamma)
            np.testing.assert_allclose(seen[b, r, c].detach(), read, atol=1e-12)
            np.testing.assert_allclose(drawn[b, r, c].detach(), write, atol=1e-12)


@pytest.mark.parametrize(("size", "x", "y"), [(4, 6.5, 3.5), (5, 4, 7), (1, 2, 9)])
def test_narrow_filters_a_pixel_apart_crop(size, x, y):
    """An even grid is centred between two pixels, an odd one at a pixel; counted from 1."""
    bank, images = build(size=size), random(1, C, Y, X)
    left, top = round(x - size / 2 - 0.5), round(y - size / 2 - 0.5)
    crop = images[:, :, top : top + size, left : left + size]
    torch.testing.assert_close(bank.read(images, at(x, y))[:, 0], crop)
    box = bank.boxes(at(x, y))[0, 0] + 1
    sides = torch.tensor([X, Y, X, Y]) / 2
    torch.testing.assert_close(box * sides, torch.tensor([left, top, left + size, top + size], dtype=box.dtype))


def test_centres_are_symmetric_around_the_centre_of_the_grid():
    """Some replications use i - N/2 for i = 1..N or i - N/2 - 0.5 for i = 0..N-1, which lie to one side of g."""
    bank, columns = build(size=4), torch.arange(1.0, X + 1, dtype=torch.float64).expand(1, 2, Y, X)
    seen = bank.read(columns, at(7, 5, stride=3, sigma=0.01))[0, 0, 0, 0]  # at 2.5, 5.5, 8.5 and 11.5
    torch.testing.assert_close(seen, torch.tensor([2.5, 5.5, 8.5, 11.5], dtype=torch.float64))
    torch.testing.assert_close(bank.locations(at(7, 5)), torch.zeros(1, 1, 2, dtype=torch.float64))


@pytest.mark.parametrize("relative", [False, True])
def test_the_initial_grid_spans_the_image(relative):
    """For a state of 0 it spans the first to the last pixel, with a sigma of half a stride: no pixel is missed."""
    bank = build((1, 60, 60), size=12, dtype=torch.float32, relative=relative)
    window = bank.window(torch.zeros(1, 1, H))
    assert (bank.numbers.weight != 0).any()
    torch.testing.assert_close(window, at(30.5, 30.5, 59 / 11, 59 / 22, dtype=torch.float32))
    seen = bank.filters(window)[0].sum(dim=2)
    assert seen.min() > 0.5 * seen.mean()


@pytest.mark.parametrize("x", [-1e6, -30.0, 0.4, 13.6, 60.0, 1e6])
@pytest.mark.parametrize("sigma", [0.007, 1.0, 1e4])
def test_rows_sum_to_one_wherever_they_lie(x, sigma):
    """Narrow filters wholly outside read the border, although the Gaussian itself underflows to 0 there in float32."""
    bank = build(dtype=torch.float32)
    for filters in bank.filters(at(x, -x, stride=0.5, sigma=sigma, dtype=torch.float32)):
        torch.testing.assert_close(filters.sum(dim=-1), torch.ones(1, 1, N))
    if sigma == 0.007 and not 1 < x < X:
        border = bank.filters(at(x, 5, stride=0.0, sigma=sigma, dtype=torch.float32))[0][..., 0 if x < 1 else -1]
        torch.testing.assert_close(border, torch.ones(1, 1, N))


def test_a_relative_window_moves_with_the_previous_one():
    """The same numbers cause the same relative move and zoom wherever the window was, and however wide."""
    bank, state = build(relative=True), random(B, R, H)
    for x, y, stride in [(5.0, 4.0, 1.5), (-3.0, 20.0, 1.0)]:
        one = at(x, y, stride, sigma=7.0, intensity=3.0)
        before = Window(*(number.expand(B, R, *number.shape[2:]) for number in one))
        window, numbers = bank.window(state, before), bank.numbers(state).detach().numpy()
        for b, r in np.ndindex(B, R):
            ours = [*window.centre[b, r], window.stride[b, r], window.sigma[b, r], window.intensity[b, r]]
            expected = reference.moved(numbers[b, r], (x, y, stride), X, Y, N)
            np.testing.assert_allclose([number.item() for number in ours], expected)


def test_a_relative_window_is_kept_from_vanishing():
    """However often the same number zooms in."""
    for zoom, stride in ((-1.0, 0.25), (1.0, 2 * 12 / 3)):
        bank, window = build(relative=True), None
        with torch.no_grad():
            bank.numbers.bias[3] = zoom
        for _ in range(9):
            window = bank.window(torch.zeros(1, 1, H, dtype=torch.float64), window)
        assert window.stride.item() == stride and window.sigma.item() == stride / 2


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("extreme", [-200.0, 200.0])
def test_extreme_numbers_stay_finite(extreme, relative):
    bank = build(dtype=torch.float32, relative=relative)
    with torch.no_grad():
        bank.numbers.bias[2:] = extreme
    images = random(B, C, Y, X).float().requires_grad_()
    window = bank.window(random(B, R, H).float().requires_grad_())
    patches = bank.read(images, window)
    bank.write(patches, window).square().mean().backward()
    assert patches.isfinite().all() and images.grad.isfinite().all() and bank.numbers.weight.grad.isfinite().all()


def test_what_was_read_is_written_back():
    """Where filters do not overlap, write inverts read: exactly at whole pixels, and for any intensity."""
    bank, images = build(), random(1, C, Y, X)
    window = at(6.5, 3.5, intensity=1.7)
    patch = bank.read(images, window)
    expected = torch.zeros(1, 1, C, Y, X, dtype=torch.float64)
    expected[..., 1:5, 4:8] = images[:, None, :, 1:5, 4:8]
    torch.testing.assert_close(bank.write(patch, window), expected)
    torch.testing.assert_close(bank.read(bank.write(patch, window)[:, 0], window), patch)


def test_gradients():
    """With respect to states, images, patches and weights, in random directions: one by one there are thousands."""
    bank, state = build(), random(B, R, H).requires_grad_()
    images, patches = random(B, C, Y, X).requires_grad_(), random(B, R, C, N, N).requires_grad_()
    weights = tuple(bank.parameters())
    assert torch.autograd.gradcheck(
        lambda state, images, *_: bank.read(images, bank.window(state)), (state, images, *weights), fast_mode=True
    )
    assert torch.autograd.gradcheck(
        lambda state, patches, *_: bank.write(patches, bank.window(state)), (state, patches, *weights), fast_mode=True
    )


@pytest.mark.parametrize("x", [6.5, -40.0], ids=["between two pixels", "outside"])
def test_gradients_of_filters_where_the_nearest_pixel_changes(x):
    bank, window = build(size=2), at(x, 5.0, stride=1.0, sigma=0.8)
    numbers = [number.clone().requires_grad_() for number in window]
    assert torch.autograd.gradcheck(lambda *numbers: bank.filters(Window(*numbers)), numbers)


def test_autocast_keeps_float32():
    """bfloat16 has eight bits: near pixel 100, a centre would move by half a pixel."""
    bank = build((1, 100, 100), dtype=torch.float32)
    state, images, patches = random(B, R, H).float(), random(B, 1, 100, 100).float(), random(B, R, 1, N, N).float()
    window = bank.window(state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = bank.window(state)
        torch.testing.assert_close(tuple(again), tuple(window))
        torch.testing.assert_close(bank.read(images, again), bank.read(images, window))
        assert bank.write(patches.bfloat16(), again).dtype == torch.float32
        assert bank.window(state.bfloat16()).centre.dtype == torch.float32


def test_rows_share_an_image():
    """Each reads what it would read from a copy of the image."""
    bank, state, images = build(), random(1, R, H), random(1, C, Y, X)
    together = bank.read(images, bank.window(state))
    apart = bank.read(images.expand(R, -1, -1, -1), bank.window(state.transpose(0, 1)))
    torch.testing.assert_close(together[0], apart[:, 0])


@pytest.mark.parametrize("shape", [(C, Y, X), (1, 28, 28), (1, 100, 60)], ids=["wide", "square", "high"])
@pytest.mark.parametrize("relative", [False, True])
def test_fused_loops_equal_tensor_operations(shape, relative, monkeypatch):
    """Reads, writes and the gradients of states, images and patches, with windows inside and outside the image."""
    pytest.importorskip("vision_attn.fast.filterbank.cpu", reason="numba is not installed")
    results = []
    for dtype in (torch.float32, torch.float64):  # loops serve float32 alone
        bank = build(shape, dtype=dtype, relative=relative)
        state = random(B, R, H).mul(2).to(dtype).requires_grad_()
        images, patches = random(B, *shape).to(dtype), random(B, R, shape[0], N, N).to(dtype)
        inputs = state, images.requires_grad_(), patches.requires_grad_()
        window = bank.window(state)
        assert bool(versions.fast_version("filterbank", images, window.stride)) == (dtype == torch.float32)
        outputs = bank.read(images, window), bank.write(patches, window)
        loss = sum((output * random(*output.shape, seed=3).to(dtype)).sum() for output in outputs)
        found = (*outputs, *torch.autograd.grad(loss, (*inputs, *bank.parameters())))
        results.append([number.detach().double() for number in found])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=2e-4, atol=2e-5 * expected.abs().max().item())


def test_without_numba_tensor_operations_do_the_same():
    bank, state, images = build(dtype=torch.float32), random(B, R, H).float(), random(B, C, Y, X).float()
    ours = bank.read(images, bank.window(state))
    with versions.without_loops():
        torch.testing.assert_close(ours, bank.read(images, bank.window(state)))


def test_a_window_at_no_number_reads_no_numbers():
    bank, images = build(dtype=torch.float32), random(1, C, Y, X).float()
    assert bank.read(images, at(torch.nan, 3.0, dtype=torch.float32)).isnan().all()


def test_an_empty_grid_is_refused():
    with pytest.raises(UserError, match="size is 0"):
        Filterbank(H, (1, 8, 8), size=0)


def test_patches_that_do_not_fit_the_window_are_refused():
    with pytest.raises(UserError, match=r"patches must be a tensor \(1, 1, C, 4, 4\)"):
        build().write(torch.zeros(3, 1, C, N, N), at(3, 3, dtype=torch.float64))

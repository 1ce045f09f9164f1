"""Dropout: the share that is dropped, its scale, shared masks, gradients and repeatability."""

import pytest
import torch
from torch import Tensor

from tests.ways import prepared
from vision_attn.layers.dropout import Dropout

pytestmark = pytest.mark.usefixtures("both_ways")


def dropout(input: Tensor, p: float, training: bool, shared: int = 1) -> Tensor:
    return prepared(Dropout(p)).train(training)(input, shared=shared)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_the_share_that_is_dropped_and_the_scale_of_the_rest(p: float) -> None:
    torch.manual_seed(0)
    output = dropout(torch.ones(1000, 1000), p, True)
    share = (output == 0).double().mean().item()
    assert abs(share - p) < 5 * (p * (1 - p) / output.numel()) ** 0.5 + 2**-16
    torch.testing.assert_close(
        output[output != 0], torch.full_like(output[output != 0], 1 / (1 - p)), rtol=1e-4, atol=0
    )
    torch.testing.assert_close(output.mean(), torch.tensor(1.0), rtol=0.01 + p / 50, atol=0)


def test_all_bits_of_a_random_number_are_independent() -> None:
    """Four masks share a 64-bit number: neighbours must not be correlated, and each position must be fair."""
    torch.manual_seed(0)
    kept = (dropout(torch.ones(250_000, 4), 0.5, True) != 0).double()
    assert (kept.mean(dim=0) - 0.5).abs().max() < 5 * 0.5 / 250_000**0.5
    assert (torch.corrcoef(kept.T) - torch.eye(4)).abs().max() < 5 / 250_000**0.5


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (0, 4), (2, 3, 5)])
def test_any_shape_keeps_its_shape_and_type(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        output = dropout(torch.ones(shape, dtype=dtype), 0.5, True)
        assert output.shape == shape and output.dtype == dtype


def test_neighbours_share_a_mask() -> None:
    torch.manual_seed(0)
    output = dropout(torch.ones(2, 6, 50), 0.5, True, shared=3)
    runs = output.view(2, 2, 3, 50)
    assert (runs == runs[:, :, :1]).all()
    assert (runs[:, 0] != runs[:, 1]).any() and (output == 0).any() and (output == 2).any()


def test_nothing_is_dropped_at_test_time_and_everything_at_one() -> None:
    input = torch.randn(3, 4)
    assert dropout(input, 0.5, False) is input and dropout(input, 0.0, True) is input
    assert not dropout(input, 1.0, True).any()


def test_the_gradient_passes_through_what_is_kept_and_a_seed_repeats_it() -> None:
    input = torch.randn(5, 6, requires_grad=True)
    torch.manual_seed(3)
    output = dropout(input, 0.4, True)
    (grad,) = torch.autograd.grad(output.sum(), input)
    torch.testing.assert_close(grad * input, output)
    torch.manual_seed(3)
    assert torch.equal(dropout(input, 0.4, True), output)

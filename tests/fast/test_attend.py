"""Weighted sums of vectors, by fused loops and by matrix products: values and gradients against einsum's."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from vision_attn.fast import versions
from vision_attn.fast.accumulate import accumulating
from vision_attn.fast.attend import FEW, _loops, _WeightedSum, weighted_sum


@pytest.fixture(params=["loops", "products"], autouse=True)
def ways(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "loops":
        pytest.importorskip("vision_attn.fast.attend.cpu", reason="numba is not installed")
    with versions.without_loops(request.param == "products"):
        yield


def inputs(images: int, rows: int, length: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    sizes = (images, rows, length), (images, length, size)
    return tuple(torch.randn(sizes_, generator=generator).requires_grad_() for sizes_ in sizes)


def einsum(weights: Tensor, vectors: Tensor) -> Tensor:
    return torch.einsum("brl,bld->brd", weights.double(), vectors.double())


def accumulated(weights: Tensor, vectors: Tensor) -> Tensor:
    return weighted_sum(weights, accumulating(vectors))


@pytest.mark.parametrize("function", [weighted_sum, accumulated])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 2, 7, 5), (2, 5, 196, 64), (1, FEW, 3, 9), (2, FEW + 1, 6, 4)])
def test_values_and_gradients_equal_those_of_einsum(function, shape) -> None:
    weights, vectors = inputs(*shape)
    factors = torch.linspace(-1, 2, shape[0] * shape[1] * shape[3]).view(shape[0], shape[1], shape[3])
    ours, wanted = function(weights, vectors), einsum(weights, vectors)
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-5)
    gradients = (torch.autograd.grad((each * factors).sum(), (weights, vectors)) for each in (ours, wanted))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_tensors_in_any_order_in_memory() -> None:
    weights, vectors = (each.detach() for each in inputs(3, 2, 7, 5))
    strided = weights.mT.contiguous().mT, vectors.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    torch.testing.assert_close(weighted_sum(*strided).double(), einsum(weights, vectors), rtol=1e-5, atol=1e-5)
    one = vectors[:1].expand(3, -1, -1)  # the same vectors for all images, without a copy
    torch.testing.assert_close(weighted_sum(weights, one).double(), einsum(weights, one), rtol=1e-5, atol=1e-5)


def test_loops_do_not_read_beyond_the_vectors() -> None:
    weights, vectors = inputs(3, 2, 7, 5)
    for wrong in (vectors[:, :6], vectors[:2]):
        with pytest.raises(RuntimeError, match="size"):
            _WeightedSum.apply(weights, wrong, _loops(weights, wrong))


def test_nan_is_not_lost() -> None:
    weights, vectors = (each.detach() for each in inputs(2, 3, 9, 4))
    vectors[1, 8, 2] = torch.nan
    found = weighted_sum(weights, vectors).isnan()
    assert found.nonzero().tolist() == [[1, 0, 2], [1, 1, 2], [1, 2, 2]]


def test_autocast_multiplies_in_half_precision() -> None:
    weights, vectors = inputs(3, 2, 7, 5)
    with torch.autocast("cpu", torch.bfloat16):
        context = weighted_sum(weights, vectors)
    assert context.dtype == torch.bfloat16
    torch.testing.assert_close(context.double(), einsum(weights, vectors), rtol=0.02, atol=0.05)

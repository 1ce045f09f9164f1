"""Gradients that time steps add to one sum, against those that autograd adds up."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vision_attn.fast.accumulate import accumulating, leading, total_of
from vision_attn.fast.additive import additive_score, gradient_of_keys
from vision_attn.fast.attend import weighted_sum

IMAGES = (4, 4, 3, 1)


def loop(vectors: Tensor, weights: Tensor, *, accumulate: bool) -> Tensor:
    """Weighted sums of the vectors of ever fewer images, each with weights that depend on the one before."""
    vectors = accumulating(vectors) if accumulate else vectors
    total = vectors.new_zeros(())
    for images in IMAGES:
        vectors = leading(vectors, images) if accumulate else vectors[:images]
        context = weighted_sum(weights[:images], vectors) if accumulate else weights[:images] @ vectors
        weights = weights[:images] * context.mean(dim=-1, keepdim=True).tanh()
        total = total + context.square().sum()
    return total + vectors[0].sum()  # and a gradient that autograd computes


def gradients(function: Callable[..., Tensor], *inputs: Tensor, **options: bool) -> tuple[Tensor, ...]:
    return torch.autograd.grad(function(*inputs, **options), inputs)


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True), torch.rand(
        4, 2, 5, dtype=torch.float64, requires_grad=True
    )


def test_the_sum_is_what_autograd_adds_up(inputs) -> None:
    for ours, other in zip(
        gradients(loop, *inputs, accumulate=True), gradients(loop, *inputs, accumulate=False), strict=True
    ):
        torch.testing.assert_close(ours, other)


def test_half_precision_of_the_products_is_near(inputs) -> None:
    """As under autocast with an encoder that is trained: vectors in float32, their weighted sums in bfloat16."""
    single = [part.detach().float().requires_grad_() for part in inputs]

    def half(*inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loop(*inputs, accumulate=True)

    for ours, other in zip(gradients(half, *single), gradients(loop, *inputs, accumulate=False), strict=True):
        assert ours.dtype == torch.float32 and (ours - other).norm() < 0.02 * other.norm()


def test_every_backward_pass_starts_at_zero(inputs) -> None:
    vectors, weights = inputs
    value = loop(vectors, weights, accumulate=True)
    (once,) = torch.autograd.grad(value, vectors, retain_graph=True)
    torch.autograd.grad(value, weights, retain_graph=True)  # adds to a sum that nobody takes
    (twice,) = torch.autograd.grad(value, vectors)
    torch.testing.assert_close(once, twice, rtol=0, atol=0)


def test_the_leading_images_of_leading_images_share_the_sum(inputs) -> None:
    vectors = accumulating(inputs[0])
    assert total_of(leading(leading(vectors, 3), 2)) is total_of(leading(vectors, 3)) is total_of(vectors) is not None
    assert total_of(vectors).of(2).shape == (2, 5, 3)
    assert total_of(inputs[0]) is None and total_of(leading(inputs[0], 2)) is None


def test_without_a_gradient_nothing_accumulates(inputs) -> None:
    assert accumulating(inputs[0].detach()) is not None and total_of(accumulating(inputs[0].detach())) is None
    with torch.no_grad():
        assert total_of(accumulating(inputs[0])) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # by fused loops, and by tensor operations
def test_keys_of_the_additive_score_accumulate_slopes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    keys, query, weight = (
        torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in ((4, 9, 6), (4, 2, 6), (6,))
    )

    def scores(keys: Tensor, query: Tensor, weight: Tensor, *, accumulate: bool) -> Tensor:
        keys = (2 * keys).exp()
        keys = accumulating(keys, weight, finish=gradient_of_keys) if accumulate else keys
        total = keys.new_zeros(())
        for images in IMAGES:
            part = leading(keys, images) if accumulate else keys[:images]
            total = total + additive_score((2 * query[:images]).exp(), part, weight).square().sum()
        return total

    ours, others = (gradients(scores, keys, query, weight, accumulate=each) for each in (True, False))
    for one, other in zip(ours, others, strict=True):
        torch.testing.assert_close(one, other)

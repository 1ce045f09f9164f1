"""A layer in a loop: results and gradients are those of the layer itself, however often it is called."""

import pytest
import torch

from vision_attn.models.linear import Linear
from vision_attn.models.repeated import repeated


def run(layer: Linear, turns: int, wrapped: bool) -> list[torch.Tensor]:
    """A recurrence that also drops its first output, then the gradients of all that it was made of."""
    torch.manual_seed(1)
    first = torch.randn(3, 1, 5, requires_grad=True)
    state, step = first, repeated(layer, first) if wrapped else layer
    step(first)  # on which nothing depends
    for _ in range(turns):
        state = step(state.tanh())
    return [state.detach(), *torch.autograd.grad(state.square().sum(), [first, layer.weight, layer.bias])]


@pytest.mark.parametrize("turns", [1, 4])
def test_gradients_are_those_of_the_layer(turns):
    torch.manual_seed(0)
    layer = Linear(5, 5)
    for one, other in zip(run(layer, turns, True), run(layer, turns, False), strict=True):
        torch.testing.assert_close(one, other)


def test_a_second_backward_pass_gives_the_same_again():
    layer, seen = Linear(5, 4), torch.randn(3, 5)
    step = repeated(layer, seen)
    loss = (step(seen).square() + step(2 * seen)).sum()
    first, second = (torch.autograd.grad(loss, layer.weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_nothing_is_kept_where_nothing_learns():
    seen, frozen, plain = torch.randn(3, 5), Linear(5, 4).requires_grad_(False), Linear(5, 4, bias=False)
    assert repeated(frozen, seen) is frozen and repeated(plain, seen) is plain
    double = Linear(5, 4).double()
    assert repeated(double, seen.double()) is double
    with torch.no_grad():
        layer = Linear(5, 4)
        assert repeated(layer, seen) is layer

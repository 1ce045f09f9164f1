"""Log-probabilities of words in one buffer, against log_softmax."""

import pytest
import torch

from vision_attn.layers.likelihood import word_log_prob

N, E, V = 6, 4, 9


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    return torch.nn.Linear(E, V).double(), torch.randn(N, E).double().requires_grad_(), torch.randint(0, V, (N,))


def by_log_softmax(output, deep, words):
    return output(deep).log_softmax(-1).gather(-1, words[:, None]).squeeze(-1).where(words != 0, 0)


def test_value_and_gradient_are_those_of_log_softmax(inputs):
    output, deep, words = inputs
    everything = [deep, *output.parameters()]
    seed = torch.randn(N).double()
    fast = word_log_prob(output, deep, words)
    slow = by_log_softmax(output, deep, words)
    torch.testing.assert_close(fast, slow)
    for one, other in zip(
        torch.autograd.grad(fast, everything, seed), torch.autograd.grad(slow, everything, seed), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("rows", [0, 1, 512, 1100])
def test_any_number_of_rows(inputs, rows):
    output, _, _ = inputs
    deep, words = torch.randn(rows, E).double().requires_grad_(), torch.randint(0, V, (rows,))
    slow = by_log_softmax(output, deep, words)
    fast = word_log_prob(output, deep, words)
    torch.testing.assert_close(fast, slow)
    gradients = (torch.autograd.grad(part.sum(), [deep, *output.parameters()]) for part in (fast, slow))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_half_precision_keeps_float32_sums(inputs):
    output, deep, words = inputs
    output, deep = output.float(), deep.detach().float().requires_grad_()
    exact = word_log_prob(output, deep, words)
    (slope,) = torch.autograd.grad(exact.sum(), deep)
    with torch.autocast("cpu", torch.bfloat16):
        rough = word_log_prob(output, deep, words)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.02, atol=0.02)
    torch.testing.assert_close(torch.autograd.grad(rough.sum(), deep)[0], slope, rtol=0.05, atol=0.02)


def test_a_second_backward_pass_is_refused_rather_than_wrong(inputs):
    output, deep, words = inputs
    total = word_log_prob(output, deep, words).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        total.backward()

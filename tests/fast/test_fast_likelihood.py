"""Log-probabilities of words in one buffer, against log_softmax."""

import pytest
import torch

from tests import pretend
from vision_attn.fast import likelihood
from vision_attn.fast.likelihood import FastWordLogProb, weighted_words, word_log_prob
from vision_attn.fast.versions import without_loops
from vision_attn.layers.likelihood import WordLogProb

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loops", [True, False])
def test_slopes_of_some_logits_are_those_of_log_softmax(dtype, loops):
    if loops:
        pytest.importorskip("vision_attn.fast.likelihood.cpu", reason="numba is not installed")
    torch.manual_seed(0)
    logits, words = (5 * torch.randn(70, 300)).to(dtype), torch.randint(0, 300, (70,))
    factor = torch.rand(70)
    logits[0, 3], factor[1] = torch.nan, 0
    logits[2] = torch.arange(300) * 100.0
    exact = logits.float().requires_grad_()
    chosen = exact.log_softmax(dim=-1).gather(-1, words[:, None]).squeeze(-1)
    (slopes,) = torch.autograd.grad(chosen, exact, factor)
    found = logits.clone()
    with without_loops(not loops):
        log_prob, found, total = likelihood._log_prob_and_slopes(found, words, factor)
    torch.testing.assert_close(log_prob, chosen.detach(), rtol=1e-5, atol=1e-5, equal_nan=True)
    digits = {"rtol": 2e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2**-8, "atol": 1e-6}
    torch.testing.assert_close(found.float(), slopes, equal_nan=True, **digits)
    torch.testing.assert_close(total, slopes.sum(dim=0), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("way", ["same factor", "other factors", "kept", "nothing said"])
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_in_parts(way, autocast, monkeypatch):
    """Several parts of rows; words that count the same, that do not, and that are known not to."""
    pretend.several_parts(monkeypatch)
    torch.manual_seed(0)
    output, deep, words = torch.nn.Linear(E, V), torch.randn(20, E, requires_grad=True), torch.randint(0, V, (20,))
    words = torch.zeros_like(words) if way == "nothing said" else words
    seed = torch.full((20,), -0.3) if way == "same factor" else torch.randn(20)
    everything, loose = [deep, *output.parameters()], {"rtol": 0.05, "atol": 0.05} if autocast else {}
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        fast = word_log_prob(output, deep, words, weighted=way == "kept")
    slow = by_log_softmax(output, deep, words)
    torch.testing.assert_close(fast, slow, **loose)
    assert (fast[words == 0] == 0).all()
    gradients = (torch.autograd.grad(part, everything, seed) for part in (fast, slow))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, **loose)


def test_frozen_layers_get_no_gradient(inputs):
    output, deep, words = inputs
    output.weight.requires_grad_(False)
    word_log_prob(output, deep, words).sum().backward()
    assert output.weight.grad is None and output.bias.grad is not None and deep.grad is not None


@pytest.mark.parametrize("word", [V, -V - 1])
def test_what_is_no_word_is_refused(word):
    """Compiled loops check no index."""
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        word_log_prob(torch.nn.Linear(E, V), torch.randn(1, E), torch.tensor([word]))


@pytest.mark.parametrize("options", [{}, {"with_mean": True}, {"bars_pad": True}])
@pytest.mark.parametrize("bias", [True, False])
def test_the_class_gives_what_the_plain_one_gives(options, bias):
    """Of captions with padding, in any order; the gradient too."""
    torch.manual_seed(0)
    output = torch.nn.Linear(E, V, bias=bias).double()
    deep = torch.randn(2, 3, 4, E).double().requires_grad_()
    words = torch.randint(1, V, (2, 3, 4)) * (torch.arange(4) < torch.tensor([[4, 1, 0], [2, 3, 3]])[..., None])
    found = []
    for version in (FastWordLogProb(), WordLogProb()):
        parts = [part for part in version(output, deep, words, **options) if part is not None]
        loss = sum((part * torch.linspace(-1, 2, words.numel()).view(words.shape)).sum() for part in parts)
        found.append([*parts, *torch.autograd.grad(loss, [deep, *output.parameters()])])
    assert len(found[0]) == 3 + bias + ("with_mean" in options)
    torch.testing.assert_close(*found)
    if options.get("bars_pad"):
        with without_loops(False):
            single = output.float(), deep.detach().float()
            torch.testing.assert_close(
                *(version(*single, words, bars_pad=True)[0] for version in (FastWordLogProb(), WordLogProb()))
            )


def test_words_are_weighted_within_a_context():
    part = FastWordLogProb()
    model = torch.nn.ModuleList([part, WordLogProb()])
    with pytest.raises(RuntimeError, match="any"), weighted_words(model):
        assert part.weighted
        raise RuntimeError("any")
    assert not part.weighted

"""The references must be right before anything is compared with them: against values worked out by hand."""

import math

import pytest
import references
import torch


def test_additive_attention_by_hand():
    a = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    h = torch.tensor([0.5], dtype=torch.float64)
    W_a, W_h = torch.tensor([[0.1, 0.2]]).double(), torch.tensor([[0.4]]).double()
    e = references.additive_scores(a, h, W_a, W_h, b=torch.tensor([0.3]).double(), v=torch.tensor([2.0]).double())
    assert e.tolist() == pytest.approx([2 * math.tanh(0.1 + 0.2 + 0.3), 2 * math.tanh(0.4 + 0.2 + 0.3)])
    alpha = references.softmax(e)
    assert (alpha[1] / alpha[0]).item() == pytest.approx(math.exp(e[1] - e[0]))
    assert references.expected_context(alpha, a).tolist() == pytest.approx([alpha[0].item(), 2 * alpha[1].item()])


def test_doubly_stochastic_by_hand():
    assert references.doubly_stochastic(torch.full((4, 4), 0.25)).item() == pytest.approx(0)  # every region seen once
    assert references.doubly_stochastic(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).item() == pytest.approx(0.25 + 0.25)


def test_every_caption_is_all_there_is():
    probability = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)  # of the words 0, END and 2, whatever came before
    said = {one.words: one.log_prob for one in references.every_caption(lambda _: probability.log(), (0, 2), 3)}
    assert len(said) == 1 + 2 + 4 + 8
    assert sum(math.exp(sum(log_prob)) for log_prob in said.values()) == pytest.approx(1)
    assert said[2, 0, 1] == pytest.approx([math.log(0.3), math.log(0.5), math.log(0.2)])

"""Top-down attention against the paper's equations in loops, and its two ways of running against each other."""

from functools import partial

import pytest
import torch

from tests import pretend, references
from tests.models import test_show_attend_tell as show_attend_tell
from tests.models.test_show_attend_tell import SORTED, UNSORTED, B, D, R, V, draw
from tests.ways import prepared
from vision_attn.attention.hard import Hard
from vision_attn.attention.soft import Soft
from vision_attn.fast import accelerate
from vision_attn.models.top_down import TopDown

pytestmark = pytest.mark.usefixtures("both_ways")

build = partial(show_attend_tell.build, TopDown)


@pytest.mark.parametrize("lengths", [SORTED, UNSORTED, [[4, 0], [0, 3]]])
def test_forward_is_the_papers_equations(lengths) -> None:
    model = build()
    regions, words = draw(lengths)
    caption = model(regions, words)
    log_prob, alpha = references.top_down(model, regions, words)
    torch.testing.assert_close(caption.log_prob, log_prob, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(caption.alpha, alpha, rtol=1e-10, atol=1e-10)


def test_step_and_forward_agree() -> None:
    model = build()
    regions, words = draw(UNSORTED)
    caption = model(regions, words)
    memory, state = model.start(regions, words.shape[1])
    before = torch.zeros_like(words[..., 0])
    for t in range(words.shape[2]):
        logits, state, look = model.step(before, state, memory)
        before, said = words[..., t], words[..., t] != 0
        log_prob = logits.log_softmax(-1).gather(-1, before[..., None]).squeeze(-1)
        torch.testing.assert_close(caption.log_prob[..., t][said], log_prob[said])
        torch.testing.assert_close(caption.alpha[:, :, t][said], look.alpha[said])


@pytest.mark.parametrize("attention", [Soft, Hard])
def test_all_captions_in_all_time_steps_give_the_same(attention, monkeypatch) -> None:
    """As on a GPU, where nothing is packed."""
    model = build(attention=attention)
    accelerate(model)
    regions, words = draw(UNSORTED)
    weights, found = torch.randn(B, R, words.shape[2]).double(), []
    for unpacked in (False, True):
        if unpacked:
            pretend.unread_words(monkeypatch)
        model.zero_grad()
        caption = model(regions, words)
        (caption.log_prob * weights).sum().backward()
        found.append([caption.log_prob.detach(), caption.alpha.detach(), *(one.grad for one in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert model.embedding.weight.grad[0].abs().max() == 0, "the first word's embedding must stay zero"


def test_forget_gates_start_open_and_dropout_is_for_training_alone() -> None:
    model = prepared(TopDown(V, D, hidden_size=6, word_size=8, dropout=0.5)).eval()
    for layer in (model.word_to_lstm, model.to_language):
        assert (layer.bias[6:12] == 1).all() and (layer.bias[:6] != 1).all()
    regions, words = draw(SORTED)
    once = model(regions.float(), words).log_prob
    assert torch.equal(model(regions.float(), words).log_prob, once)
    assert not torch.equal(model.train()(regions.float(), words).log_prob, once)


def test_a_sampled_region_is_scored_from_the_state_of_the_attention_lstm() -> None:
    """A map depends on the word before it: the baseline of a sample sees what its map was computed from."""
    model = build(attention=partial(Hard, expectation_probability=0.0)).train()
    regions, words = draw([[2]])
    caption = model(regions, words, runs=3)
    memory, state = model.start(regions, 1)
    first = model.look(model.word_to_lstm(model.embedding(torch.zeros(1, 1, dtype=torch.long))), state, memory)
    torch.testing.assert_close(caption.choice.state[0, 0, 0], first.query[0, 0])
    score = model.score(first.query, memory.keys)[0]
    torch.testing.assert_close(caption.alpha[0, 0, 0], score.softmax(dim=-1)[0, 0])

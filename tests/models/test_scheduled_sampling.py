"""Scheduled sampling: in training, words before that the captioner samples itself."""

from functools import partial

import pytest
import torch
from torch import Tensor

from tests import pretend
from tests.models.test_show_attend_tell import UNSORTED, D, V, draw
from tests.ways import prepared
from vision_attn.attention.scores import Additive
from vision_attn.models import recurrent
from vision_attn.models.recurrent import RecurrentCaptioner
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.system.errors import UserError

pytestmark = pytest.mark.usefixtures("both_ways")

SIZES = {"hidden_size": 6, "word_size": 8, "score": partial(Additive, attention_size=7), "dropout": 0.0}
MODELS = {"Show, Attend and Tell": partial(ShowAttendTell, V, D, **SIZES), "top-down": partial(TopDown, V, D, **SIZES)}


def build(name: str, probability: float, batches: int = 0) -> RecurrentCaptioner:
    torch.manual_seed(0)
    model = MODELS[name](scheduled_sampling=probability, scheduled_sampling_batches=batches).double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return prepared(model)


def after_own_words(model: RecurrentCaptioner, regions: Tensor, words: Tensor) -> Tensor:
    """log p of given words, each after the words that the captioner finds most likely."""
    memory, state = model.start(regions, words.shape[1])
    before, found = torch.zeros_like(words[..., 0]), []
    for word in words.unbind(dim=2):
        logits, state, _ = model.step(before, state, memory)
        found.append(logits.log_softmax(dim=-1).gather(-1, word[..., None]).squeeze(-1))
        before = logits[..., 1:].argmax(dim=-1) + 1
    return torch.stack(found, dim=2) * (words != 0)


@pytest.mark.parametrize("unpacked", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_with_a_probability_of_1_all_words_but_the_first_are_its_own(name: str, unpacked: bool, monkeypatch) -> None:
    pretend.likeliest_samples(monkeypatch)
    if unpacked:  # as on a GPU, when accelerated
        pretend.unread_words(monkeypatch)
    model, (regions, words) = build(name, 1.0), draw(UNSORTED)
    found, expected = model(regions, words).log_prob.sum(), after_own_words(model, regions, words).sum()
    torch.testing.assert_close(found, expected)
    weights = list(model.parameters())
    for one, other in zip(*(torch.autograd.grad(part, weights) for part in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)
    other = model.eval()(regions, words).log_prob.sum()
    assert not torch.isclose(found, other)
    torch.testing.assert_close(other, build(name, 0.0)(regions, words).log_prob.sum())


def test_samples_follow_the_distribution_and_are_never_padding() -> None:
    model = build("top-down", 1.0)
    with torch.no_grad():
        model.output.bias[0] += 5
    own = recurrent.OwnWords(model, 1)
    hidden = torch.randn(6).double()
    own.sample(hidden.new_zeros(20_000, 8), (hidden.expand(20_000, 6),))
    p = model.output(hidden).softmax(dim=-1)
    share = torch.bincount(own.sampled, minlength=V) / 20_000
    torch.testing.assert_close(share[1:], (p[1:] / p[1:].sum()).float(), atol=0.02, rtol=0)
    assert share[0] == 0


def test_the_probability_rises_and_a_checkpoint_keeps_it() -> None:
    model, (regions, words) = build("Show, Attend and Tell", 0.5, 4), draw(UNSORTED)
    found = []
    for _ in range(6):
        model(regions, words)
        found.append(float(recurrent.OwnWords(model, 1).probability))
    assert found == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
    other = build("Show, Attend and Tell", 0.5, 4)
    other.load_state_dict(model.state_dict())
    assert float(other.batches) == 6
    other.restart()
    assert float(other.batches) == 0
    with pytest.raises(UserError, match="TopDown: scheduled_sampling is 1.5"):
        TopDown(V, D, scheduled_sampling=1.5)

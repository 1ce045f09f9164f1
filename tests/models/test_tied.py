"""Embeddings that are the weights of the output layer too."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model
from torch import nn

from tests.models.test_show_attend_tell import UNSORTED, D, V, draw
from tests.ways import prepared
from vision_attn.attention.scores import Additive
from vision_attn.configuration.weights import save_weights
from vision_attn.criteria.likelihood import Likelihood
from vision_attn.models.recurrent import RecurrentCaptioner
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.system.errors import UserError

pytestmark = pytest.mark.usefixtures("both_ways")

SIZES = {"hidden_size": 6, "word_size": 6, "score": partial(Additive, attention_size=7)}
MODELS: dict[str, Callable[..., RecurrentCaptioner]] = {
    "Show, Attend and Tell": partial(ShowAttendTell, V, D, **SIZES, dropout=0.0),
    "top-down": partial(TopDown, V, D, **SIZES),
}


def pair(name: str) -> tuple[RecurrentCaptioner, RecurrentCaptioner]:
    """A tied model, and one with two weights that computes the same."""
    torch.manual_seed(0)
    tied, apart = MODELS[name](tied=True).double(), MODELS[name]().double()
    found = tied.state_dict()
    scale = found.pop("word_scale")
    found["embedding.weight"] = scale * found["embedding.weight"]
    found["embedding.weight"][0] = 0
    apart.load_state_dict(found)
    return prepared(tied), prepared(apart)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_the_sum_of_both_uses(name: str) -> None:
    """Row 0 is of the output alone, and the first word's embedding is zero whatever it holds."""
    (tied, apart), (regions, words) = pair(name), draw(UNSORTED)
    losses = [Likelihood(model, smoothing=0.2)(model(regions, words), words)["loss"] for model in (tied, apart)]
    torch.testing.assert_close(losses[0], losses[1])
    for loss in losses:
        loss.backward()
    expected = apart.output.weight.grad + tied.word_scale * apart.embedding.weight.grad
    torch.testing.assert_close(tied.embedding.weight.grad, expected)
    assert tied.embedding.weight.grad[0].abs().max() > 0 and not tied.embed(torch.zeros(2, dtype=torch.long)).any()
    memory, state = tied.start(regions, 2)
    logits = [model.step(words[..., 0], state, memory)[0] for model in (tied, apart)]
    torch.testing.assert_close(logits[0], logits[1])


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_saved_once_and_stay_tied(name: str, tmp_path: Path) -> None:
    model, other = MODELS[name](tied=True), MODELS[name](tied=True)
    plain = MODELS[name]()
    assert sum(one.numel() for one in plain.parameters()) - sum(one.numel() for one in model.parameters()) == V * 6
    save_weights(model, tmp_path / "weights.safetensors")
    assert (tmp_path / "weights.safetensors").stat().st_size < 4 * sum(one.numel() for one in model.parameters()) + 4000
    load_model(other, str(tmp_path / "weights.safetensors"))
    assert other.output.weight is other.embedding.weight and torch.equal(other.output.weight, model.output.weight)


@pytest.mark.parametrize("name", MODELS)
def test_a_temperature_changes_the_logits_alone(name: str) -> None:
    (model, _), (regions, words) = pair(name), draw(UNSORTED)
    memory, state = model.start(regions, 2)
    before, after, _ = model.step(words[..., 0], state, memory)
    model.sharpen(0.5)
    sharper, same, _ = model.step(words[..., 0], state, memory)
    torch.testing.assert_close(sharper, 2 * before)
    torch.testing.assert_close(same.hidden, after.hidden)


def test_other_sizes_cannot_be_tied() -> None:
    with pytest.raises(UserError, match="TopDown: tied embeddings need a word_size of 6"):
        TopDown(V, D, hidden_size=6, word_size=8, tied=True)


def test_both_uses_begin_at_their_usual_scale() -> None:
    torch.manual_seed(0)
    model = ShowAttendTell(2000, D, hidden_size=64, word_size=64, tied=True)
    usual = nn.Linear(64, 2000).weight.std()
    assert 0.9 < model.embed(torch.arange(1, 2000)).std() < 1.1 and 0.5 < model.output.weight.std() / usual < 2

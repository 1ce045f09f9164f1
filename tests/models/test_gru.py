"""GRU cells: against torch's, and in every captioner that has the option."""

from functools import partial

import pytest
import torch
from torch import nn

from tests.models.test_show_attend_tell import UNSORTED, D, L, R, V, draw
from tests.ways import prepared
from vision_attn.attention.scores import Additive
from vision_attn.decode import beam_search
from vision_attn.layers.cells import gru, over_steps
from vision_attn.models.encoder_decoder import EncoderDecoder, RNNsearch
from vision_attn.models.show_and_tell import ShowAndTell
from vision_attn.models.show_attend_tell import ShowAttendTell

pytestmark = pytest.mark.usefixtures("both_ways")

H = 6
SIZES = {"hidden_size": H, "word_size": 5, "dropout": 0.0}
SCORE = partial(Additive, attention_size=4)
MODELS = {
    "Show, Attend and Tell": partial(ShowAttendTell, V, D, score=SCORE, **SIZES),
    "Show and Tell": partial(ShowAndTell, V, D, **SIZES),
    "RNNsearch": partial(RNNsearch, V, D, score=SCORE, encoder_size=3, encoder="gru", **SIZES),
    "one vector": partial(EncoderDecoder, V, D, encoder_size=3, encoder="gru", **SIZES),
}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name](cell="gru").double().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(2)
    return prepared(model)


def test_a_step_is_torchs():
    torch.manual_seed(0)
    cell, x, hidden = nn.GRUCell(3, H).double(), torch.randn(4, 3).double(), torch.randn(4, H).double()
    from_input, from_hidden = x @ cell.weight_ih.T + cell.bias_ih, hidden @ cell.weight_hh.T + cell.bias_hh
    torch.testing.assert_close(gru(from_input, from_hidden, hidden), cell(x, hidden))
    assert gru(from_input.bfloat16(), from_hidden.bfloat16(), hidden.bfloat16()).dtype == torch.float32
    network = nn.GRU(3, H, batch_first=True).double()
    outputs, last, none = over_steps(network, x[:, None], hidden)
    torch.testing.assert_close((outputs, last), (network(x[:, None], hidden[None])[0], outputs[:, 0]))
    assert none is None


def test_show_attend_and_tell_runs_torchs_cell_over_word_and_context():
    model = build("Show, Attend and Tell")
    cell = nn.GRUCell(5 + D, H).double()
    with torch.no_grad():
        cell.weight_ih.copy_(torch.cat([model.word_to_lstm.weight, model.context_to_lstm.weight], dim=1))
        cell.bias_ih.copy_(model.word_to_lstm.bias)
        cell.weight_hh.copy_(model.hidden_to_lstm.weight)
        cell.bias_hh.copy_(model.hidden_to_lstm.bias)
    memory, state = model.start(torch.randn(2, L, D).double(), R)
    for word in (0, 3, 4):
        embedded = model.embed(torch.full((2, R), word))
        turn = model.look(model.word_to_lstm(embedded), state, memory)
        given = torch.cat([embedded, turn.outputs[1]], dim=-1).flatten(0, 1)
        torch.testing.assert_close(turn.state.hidden.flatten(0, 1), cell(given, state.hidden.flatten(0, 1)))
        assert turn.state.cell is None
        state = turn.state


@pytest.mark.parametrize("name", MODELS)
def test_step_equals_forward_and_every_weight_learns(name):
    model = build(name)
    regions, words = draw(UNSORTED)
    caption = model(regions, words)
    memory, state = model.start(regions, R)
    before = torch.zeros_like(words[..., 0])
    for t in range(words.shape[2]):
        logits, state, _ = model.step(before, state, memory)
        before = words[..., t]
        said = before != 0
        log_prob = logits.log_softmax(-1).gather(-1, before[..., None]).squeeze(-1)
        torch.testing.assert_close(caption.log_prob[..., t][said], log_prob[said])
    caption.log_prob.sum().backward()
    assert all(weights.grad.any() for weights in model.parameters())
    smaller, larger = (sum(map(torch.numel, MODELS[name](cell=cell).parameters())) for cell in ("gru", "lstm"))
    assert smaller < larger


@pytest.mark.parametrize("name", MODELS)
def test_beams_reorder_a_state_without_a_cell(name):
    model, regions = build(name).float(), torch.randn(4, L, D)
    decoded = beam_search(model, regions, beams=3, max_words=7)
    log_prob = model(regions, decoded.words).log_prob
    torch.testing.assert_close(decoded.log_prob, log_prob, rtol=1e-4, atol=1e-5)

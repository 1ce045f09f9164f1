"""Show and Tell against an LSTM written out, and its two ways of running against each other."""

import pytest
import torch

from tests.models.test_show_attend_tell import SORTED, UNSORTED, D, L, R, V, draw
from tests.ways import prepared
from vision_attn.decode import beam_search
from vision_attn.models.show_and_tell import ShowAndTell

pytestmark = pytest.mark.usefixtures("both_ways")


def build(**options) -> ShowAndTell:
    torch.manual_seed(0)
    model = ShowAndTell(V, D, hidden_size=6, word_size=8, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return prepared(model)


def slow(model: ShowAndTell, regions: torch.Tensor, words: list[int]) -> list[torch.Tensor]:
    """log p of each word of one caption, by the equations of an LSTM (input, forget, candidate, output)."""
    hidden = cell = torch.zeros(6).double()

    def turn(x: torch.Tensor) -> None:
        nonlocal hidden, cell
        weights = model.lstm
        gates = weights.weight_ih_l0 @ x + weights.bias_ih_l0 + weights.weight_hh_l0 @ hidden + weights.bias_hh_l0
        i, f, g, o = gates.chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()

    turn(model.image(regions.mean(0)))
    log_prob = []
    for before, word in zip([0, *words], words, strict=False):
        turn(model.embedding.weight[before])
        log_prob.append((model.output.weight @ hidden + model.output.bias).log_softmax(0)[word])
    return log_prob


@pytest.mark.parametrize("lengths", [SORTED, UNSORTED, [[1, 1]], [[4, 0], [0, 3]]])
def test_forward_is_the_papers_equations(lengths):
    model = build()
    regions, words = draw(lengths)
    caption = model(regions, words)
    assert caption.alpha is None and caption.choice is None
    for b, row in enumerate(words):
        for r, ids in enumerate(row):
            said = ids[ids != 0].tolist()
            expected = torch.stack(slow(model, regions[b], said)) if said else torch.zeros(0).double()
            torch.testing.assert_close(caption.log_prob[b, r, : len(said)], expected)
            assert not caption.log_prob[b, r, len(said) :].any()


def test_step_and_forward_agree():
    model = build()
    regions, words = draw(UNSORTED)
    caption = model(regions, words)
    memory, state = model.start(regions, R)
    before = torch.zeros_like(words[..., 0])
    for t in range(words.shape[2]):
        logits, state, look = model.step(before, state, memory)
        assert look is None
        before = words[..., t]
        said = before != 0
        log_prob = logits.log_softmax(-1).gather(-1, before[..., None]).squeeze(-1)
        torch.testing.assert_close(caption.log_prob[..., t][said], log_prob[said])


def test_decoded_captions_are_what_the_model_says():
    model = build().float()
    regions = torch.randn(4, L, D)
    decoded = beam_search(model, regions, beams=3, max_words=7)
    assert decoded.alpha is None and decoded.region is None
    torch.testing.assert_close(decoded.log_prob, model(regions, decoded.words).log_prob, rtol=1e-4, atol=1e-5)


def test_only_the_mean_of_the_regions_is_seen():
    model = build()
    regions, words = draw(SORTED)
    torch.testing.assert_close(model(regions, words).log_prob, model(regions.flip(1), words).log_prob)

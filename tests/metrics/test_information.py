"""What a map tells: against cases that can be computed by hand, enumeration, and gates written out."""

from functools import partial
from math import log

import pytest
import torch
from torch import nn

from tests.ways import prepared
from vision_attn.attention.hard import Hard
from vision_attn.contracts import DecodedCaption, Results
from vision_attn.layers.lstm import LSTMCell, recording_updates
from vision_attn.metrics.information import (
    ExpectationGap,
    MapInformation,
    answer_entropy,
    cell_parts,
    cell_shares,
    gap,
    mutual_information,
    shares_of_glimpses,
)
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.models.transformer import Transformer

V, D, L, H = 7, 4, 5, 6


def test_mutual_information_of_a_case_by_hand():
    """P(0, 0) = P(1, 1) = 3/8 and P(0, 1) = P(1, 0) = 1/8: I = 2 * 3/8 log(3/2) + 2 * 1/8 log(1/2)."""
    x, y = torch.tensor([0, 0, 0, 1, 1, 1, 0, 1]), torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])
    found = mutual_information(x, y)
    assert found.plug_in == pytest.approx(0.75 * log(1.5) + 0.25 * log(0.5))
    assert found.miller_madow == pytest.approx(found.plug_in + (1 + 1 - 3) / (2 * 8))
    assert mutual_information(x, x).plug_in == pytest.approx(log(2))
    assert mutual_information(x[:0], y[:0]).plug_in == 0


def test_corrections_remove_most_of_what_independent_pairs_seem_to_tell():
    generator = torch.Generator().manual_seed(0)
    found = [mutual_information(*(torch.randint(8, (1000,), generator=generator) for _ in range(2))) for _ in range(50)]
    plug_in, corrected = (torch.tensor(each).mean().item() for each in zip(*found, strict=True))
    assert plug_in > 0.02 and abs(corrected) < 0.1 * plug_in


def told(pairs: list[tuple[int, str]]) -> dict[str, float]:
    """What the evaluator says of words and the regions that they saw, in captions of ten words."""
    evaluator = MapInformation(min_count=2)
    for start in range(0, len(pairs), 10):
        regions, words = zip(*pairs[start : start + 10], strict=True)
        alpha = torch.full((len(words) + 1, 2, 4), 0.1)  # the last row is that of END
        alpha.flatten(1)[range(len(words)), list(regions)] = 0.3
        caption = DecodedCaption(" ".join(words), list(words), [0.0] * len(words), alpha)
        evaluator.update(None, Results(None, [caption, DecodedCaption("a", ["a"], [0.0])], {}, frozenset()))
    return evaluator.compute()


def test_a_word_that_has_its_place_tells_its_entropy_and_permuted_maps_tell_nothing():
    generator = torch.Generator().manual_seed(1)
    regions = torch.randint(8, (2000,), generator=generator).tolist()
    named = told([(region, f"word{region}") for region in regions])
    assert named["information_plug_in"] == pytest.approx(log(8), abs=0.01)
    assert named["information"] == pytest.approx(log(8), abs=0.05)
    words = torch.randint(8, (2000,), generator=generator).tolist()
    chance = told([(region, f"word{word}") for region, word in zip(regions, words, strict=True)])
    assert chance["information_low"] < 0 < chance["information_high"] < 0.02 < named["information"]
    assert chance["information_low"] <= chance["information"] <= chance["information_high"]
    assert abs(chance["information_miller_madow"]) < 0.01
    assert told([(0, "once"), (1, "other")]) == {} == MapInformation().compute()


def test_one_pass_is_the_geometric_mean_where_logits_are_linear_in_the_context():
    torch.manual_seed(0)
    output, regions, alpha = (
        nn.Linear(D, V).double().requires_grad_(False),
        3 * torch.randn(L, D).double(),
        torch.rand(L).double().softmax(0),
    )
    found = gap(output(alpha @ regions), output(regions), alpha, 2)
    assert abs(found.nwgm) < 1e-12 < 1e-3 < found.expectation
    one_hot = torch.eye(L).double()[1]
    sharp = gap(output(one_hot @ regions), output(regions), one_hot, 2)
    assert max(map(abs, sharp)) < 1e-12, "a map of one region leaves nothing out"


def captioner(kind=ShowAttendTell, **options):
    torch.manual_seed(0)
    model = kind(V, D, hidden_size=H, word_size=H, **options).double().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(3)
    return prepared(model)


@pytest.mark.parametrize("kind", [ShowAttendTell, TopDown])
def test_the_gap_is_that_of_an_enumeration_of_regions(kind, both_ways):
    """Each region seen alone: a captioner whose scores of all others are lower by 10,000."""
    model, regions = captioner(kind), torch.randn(2, L, D).double()
    words = torch.tensor([[[3, 4, 1]], [[5, 1, 0]]])
    found = ExpectationGap().probe(model, regions, words, [])
    expected, forward = [], model.score.forward
    for image in range(2):
        memory, state = model.start(regions[image, None], 1)
        before = torch.zeros(1, 1, dtype=torch.long)
        for word in words[image, 0][words[image, 0] != 0]:
            logits, after, look = model.step(before, state, memory)
            each = []
            for region in range(L):
                only = torch.full((1, 1, L), -1e4).double()
                only[..., region] = 0
                model.score.forward = lambda *_, only=only: (only, None)
                each.append(model.step(before, state, memory)[0][0, 0])
                model.score.forward = forward
            p, q = torch.stack(each).softmax(1), logits[0, 0].softmax(0)
            mean = look.alpha[0, 0] @ p
            nwgm = (look.alpha[0, 0] @ torch.stack(each)).softmax(0)
            kl = [(one * (one / q).log()).sum() for one in (nwgm, mean)]
            expected.append((*kl, mean[word].log() - q[word].log()))
            before, state = word.view(1, 1), after
    assert len(found) == 5
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected, dtype=torch.double).to(torch.float32))
    evaluator = ExpectationGap()
    evaluator.update(None, Results(None, [], {}, frozenset(), found))
    assert evaluator.compute()["expectation_gap"] == pytest.approx(sum(each.expectation for each in found) / 5)


def test_captioners_that_mix_no_regions_have_no_gap():
    regions, words = torch.randn(1, L, D).double(), torch.tensor([[[3, 1]]])
    hard = captioner(attention=partial(Hard, at_test="argmax"))
    assert ExpectationGap().probe(hard, regions, words, []) == []
    transformer = Transformer(V, D, hidden_size=8, num_heads=2, num_layers=1, feedforward_size=8).double().eval()
    assert ExpectationGap().probe(transformer, regions, words, []) == []
    assert ExpectationGap().compute() == {}
    soft = captioner()
    attention = soft.attention
    ExpectationGap().probe(soft, regions, words, [])
    assert soft.attention is attention


def test_the_entropy_of_an_answer_is_that_of_the_mean_of_its_copies():
    log_prob = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]]).log()[None]  # two copies
    torch.testing.assert_close(answer_entropy(log_prob), torch.full((1, 2), log(2)).double())


def test_parts_of_the_last_cell_state_are_written_out_by_gates(both_ways):
    torch.manual_seed(0)
    T, B, R = 4, 2, 3
    gates, before = torch.randn(T, B, R, 4 * H).double(), torch.randn(B, R, H).double()
    more, cell = torch.randn(T, B, R, 4 * H).double(), before
    lstm = prepared(LSTMCell())
    with recording_updates(lstm) as updates:
        for one, other in zip(gates, more, strict=True):
            _, cell = lstm(cell, one, other)
    lstm(cell, gates[0])
    assert len(updates) == T, "nothing is recorded outside"
    i, f, _, g = (gates + more).chunk(4, dim=-1)
    parts = [before * f.sigmoid().prod(dim=0)]
    parts += [i[t].sigmoid() * g[t].tanh() * f[t + 1 :].sigmoid().prod(dim=0) for t in range(T)]
    torch.testing.assert_close(cell_parts(updates), torch.stack(parts))
    torch.testing.assert_close(cell_parts(updates).sum(dim=0), cell)
    shares = cell_shares(updates)
    torch.testing.assert_close(shares.sum(dim=0), torch.ones(B, R).double())
    torch.testing.assert_close(shares[2], (parts[2] * cell).sum(-1) / cell.square().sum(-1))
    torch.testing.assert_close(shares_of_glimpses(updates, T), shares.mean(dim=2).sum(dim=1))
    assert shares_of_glimpses([], T) is None

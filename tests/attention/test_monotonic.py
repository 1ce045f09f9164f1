"""Monotonic attention against dynamic programming and enumeration; its samples against the exact gradient."""

from functools import partial

import pytest
import torch

from tests.ways import prepared
from vision_attn.attention.hard import log_prob
from vision_attn.attention.monotonic import HardMonotonic, Monotonic, first_column, stopping
from vision_attn.attention.reinforce import LeaveOneOut
from vision_attn.attention.scores import Additive
from vision_attn.criteria.reinforce_attention import ReinforceAttention
from vision_attn.models.encoder_decoder import RNNsearch

L = 7


def programmed(p: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The recurrence of Raffel et al. (2017), eq. 13 and 14, column by column."""
    reached, alpha = 0.0, []
    for column in range(len(p)):
        reached = (1 - p[column - 1] if column else 0.0) * reached + before[column]
        alpha.append(reached * (p[column] if column < len(p) - 1 else 1.0))
    return torch.stack(alpha)


def searched(p: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The same by enumeration: where it starts, which columns it passes, where it stops."""
    alpha = torch.zeros_like(p)
    for start in range(len(p)):
        for stop in range(start, len(p)):
            passed = torch.prod(1 - p[start:stop])
            alpha[stop] += before[start] * passed * (p[stop] if stop < len(p) - 1 else 1.0)
    return alpha


def test_the_expectation_is_that_of_dynamic_programming_and_of_enumeration() -> None:
    torch.manual_seed(0)
    p, before = torch.rand(5, L).double(), torch.rand(5, L).double().softmax(-1)
    alpha = stopping(p, before)
    for row in range(5):
        torch.testing.assert_close(alpha[row], programmed(p[row], before[row]))
        torch.testing.assert_close(alpha[row], searched(p[row], before[row]))
    torch.testing.assert_close(alpha.sum(-1), torch.ones(5).double())


def test_the_whole_sequence_of_maps_is_that_of_all_alignments() -> None:
    """Two characters: alpha_2 by enumeration of both columns."""
    torch.manual_seed(1)
    p = torch.rand(2, L).double()
    start = torch.zeros(L).double()
    start[0] = 1
    first = searched(p[0], start)
    second = sum(first[column] * searched(p[1], torch.eye(L).double()[column]) for column in range(L))
    torch.testing.assert_close(stopping(p[1], stopping(p[0], start)), second)


@pytest.mark.parametrize("energy", [60.0, -60.0])
def test_it_is_stable_where_a_product_of_probabilities_underflows(energy) -> None:
    scores = torch.full((1, 2000), energy, requires_grad=True)
    alpha = stopping(scores.sigmoid(), torch.eye(2000)[:1])
    assert alpha.argmax().item() == (0 if energy > 0 else 1999) and alpha.sum().item() == pytest.approx(1)
    alpha[0, 3].backward()
    assert scores.grad.isfinite().all()
    long = torch.full((1, 2000), 0.2).double()
    torch.testing.assert_close(stopping(long.float(), torch.eye(2000)[:1])[0, :50], 0.2 * 0.8 ** torch.arange(50.0))


def test_sharp_decisions_are_the_online_search() -> None:
    """Weights become one-hot, and the gradient of the parallel scan is that of the recurrence."""
    torch.manual_seed(2)
    scores, regions = 60 * torch.randn(2, 3, L).sign(), torch.randn(2, L, 4)
    attention = Monotonic(offset=0.0, noise=0.0)
    online = attention.eval()(scores, regions)
    expectation = attention.train()(scores, regions)
    assert set(online.alpha.flatten().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(online.alpha, expectation.alpha)
    later = attention.eval()(scores.flip(1), regions, None, online.carry)
    assert (later.alpha.argmax(-1) >= online.alpha.argmax(-1)).all()
    p = torch.rand(L, dtype=torch.double, requires_grad=True)
    weights, before = torch.randn(L).double(), torch.rand(L).double()
    mine = torch.autograd.grad(stopping(p, before) @ weights, p)[0]
    torch.testing.assert_close(mine, torch.autograd.grad(programmed(p, before) @ weights, p)[0])


def build(attention, hidden: int = 5) -> RNNsearch:
    torch.manual_seed(3)
    model = RNNsearch(
        6, 4, encoder_size=3, hidden_size=hidden, word_size=4, score=partial(Additive, attention_size=5),
        attention=attention,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return prepared(model)


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_attention_advances_by_columns_up_to_the_last(columns) -> None:
    """All alignments of two characters by enumeration; online, no column of the last `columns` is read twice."""
    torch.manual_seed(6)
    first, second, regions = torch.randn(1, 1, L).double(), torch.randn(1, 1, L).double(), torch.randn(1, L, 2).double()
    for attention in (Monotonic(noise=0.0, offset=0.0, advance=columns), HardMonotonic(offset=0.0, advance=columns)):
        attention = attention.double().eval()
        with attention.in_mode("expectation"):
            one = attention(first, regions)
            other = attention(second, regions, None, one.carry)
        p, wanted = second[0, 0].sigmoid(), torch.zeros(L).double()
        for column, probability in enumerate(one.alpha[0, 0]):
            wanted += probability * searched(p, torch.eye(L).double()[min(column + columns, L - 1)])
        torch.testing.assert_close(other.alpha[0, 0], wanted)
        carry, read = None, []
        for _ in range(4):
            seen = attention(torch.full((1, 1, L), 9.0).double(), regions, None, carry)
            carry = seen.carry
            read.append(int(seen.alpha.argmax()))
        assert read == [min(number * columns, L - 1) for number in range(4)]


@pytest.mark.parametrize("attention", [partial(Monotonic, noise=0.0), HardMonotonic, partial(HardMonotonic, advance=2)])
@pytest.mark.parametrize("mode", ["expectation", "online"])
def test_step_and_forward_agree_and_columns_that_are_passed_are_never_read_again(attention, mode, both_ways) -> None:
    model = build(attention).double().eval()
    regions, words = torch.randn(2, L, 4).double(), torch.tensor([[[3, 4, 5, 1], [4, 3, 1, 0]]]).expand(2, 2, 4)
    with model.in_mode(mode), torch.no_grad():
        caption = model(regions, words)
        memory, state = model.start(regions, 2)
        before = torch.zeros_like(words[..., 0])
        for t in range(4):
            logits, state, look = model.step(before, state, memory)
            before, said = words[..., t], words[..., t] != 0
            found = logits.log_softmax(-1).gather(-1, before[..., None]).squeeze(-1)
            torch.testing.assert_close(caption.log_prob[..., t][said], found[said])
            torch.testing.assert_close(caption.alpha[..., t, :][said], look.alpha[said])
    if mode == "online":
        places = caption.alpha[:, 0].argmax(dim=-1)
        assert (places.diff(dim=-1) >= 0).all() and set(caption.alpha.flatten().tolist()) == {0.0, 1.0}


def test_sampled_columns_have_the_distribution_of_the_expectation() -> None:
    torch.manual_seed(4)
    attention = HardMonotonic(expectation_probability=0.0, offset=0.0).train()
    scores, regions = torch.randn(1, 1, L).expand(1, 20_000, L), torch.randn(1, L, 2)
    again = torch.randn(1, 1, L).expand(1, 20_000, L)
    first = attention(scores, regions)
    second = attention(again, regions, None, first.carry)
    start = first_column(regions, 1)
    wanted = stopping(scores[:, :1].sigmoid(), start)
    for seen, expected in ((first, wanted), (second, stopping(again[:, :1].sigmoid(), wanted))):
        share = torch.nn.functional.one_hot(seen.region, L).double().mean(dim=1)
        torch.testing.assert_close(share, expected[:, 0].double(), atol=0.015, rtol=0)
    # the log-probability of a column is that of its Bernoulli decisions
    p = scores[0, 0].sigmoid()
    column = int(first.region[0, 0])
    decisions = (1 - p[:column]).log().sum() + (p[column].log() if column < L - 1 else 0)
    torch.testing.assert_close(log_prob(first.alpha, first.region)[0, 0], decisions)


def test_the_mean_of_reinforce_is_the_exact_gradient_within_its_standard_error(both_ways) -> None:
    """The bound E[log p(y | columns)] of a transcript of two characters, over all pairs of columns."""
    model = build(partial(HardMonotonic, expectation_probability=0.0)).double().train()
    regions, words = torch.randn(1, 4, 4).double(), torch.tensor([[[3, 1]]])
    weights = [model.attention.offset, model.score.weight]
    pairs = [(one, two) for one in range(4) for two in range(one, 4)]

    def forced(pair) -> tuple[torch.Tensor, torch.Tensor]:
        """log p(y | columns) and log p(columns)."""
        memory, state = model.start(regions, 1)
        before, total, chance = torch.zeros(1, 1, dtype=torch.long), 0.0, 0.0
        for word, column in zip((3, 1), pair, strict=True):
            scores, carry = model.score(state.hidden, memory.keys, state.carry)
            alpha = stopping((scores + model.attention.offset).sigmoid(), state.seen_before)
            chance = chance + alpha[0, 0, column].log()
            seen = torch.eye(4).double()[column][None, None]
            context = model.gate(state.hidden, seen @ memory.regions)
            gates = model.word_to_lstm(model.embedding(before)) + model.hidden_to_lstm(state.hidden)
            hidden, cell = model.lstm(state.cell, gates, model.context_to_lstm(context))
            logits = model.output(model.deep(model.embedding(before), hidden, context))
            total = total + logits.log_softmax(-1)[0, 0, word]
            state = state._replace(hidden=hidden, cell=cell, carry=carry, seen_before=seen)
            before = torch.full((1, 1), word)
        return total, chance

    found = [forced(pair) for pair in pairs]
    torch.testing.assert_close(sum(chance.exp() for _, chance in found), torch.ones(()).double())
    bound = sum(chance.exp() * total for total, chance in found)
    exact = torch.autograd.grad(-bound, weights)

    criterion = ReinforceAttention(model, baseline=partial(LeaveOneOut, num_runs=2), entropy_weight=0.0)
    samples = []
    for _ in range(40):
        caption = model(regions, words.expand(1, 100, 2), 2)
        loss = criterion(caption, words.expand(1, 200, 2))["loss"] - caption.log_prob.sum() / 200
        samples.append(torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, weights)]))
    samples = torch.stack(samples)
    error = samples.std(dim=0) / len(samples) ** 0.5
    exact = torch.cat([grad.flatten() for grad in exact])
    assert ((samples.mean(dim=0) - exact).abs() < 4.5 * error).all() and (exact.abs() > 2 * error).any()

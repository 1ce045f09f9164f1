"""REINFORCE against the exact gradient, which is known for tiny captions by enumerating every path of regions."""

from functools import partial

import pytest
import torch

from tests import references
from tests.ways import prepared
from vision_attn.attention.hard import Hard, StraightThrough
from vision_attn.attention.reinforce import (
    Choice,
    Learned,
    LeaveOneOut,
    MovingAverage,
    Reinforce,
    gradient_variance,
)
from vision_attn.attention.scores import Additive
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.system.errors import UserError

L, D, H, V = 3, 4, 5, 6
WORDS = torch.tensor([[[4, 3, 1]]])
ROWS, REPEATS = 512, 24
BASELINES = {
    "moving average": MovingAverage,
    "learned": Learned,
    "leave one of two out": partial(LeaveOneOut, num_runs=2),
    "leave one of four out": LeaveOneOut,
}
ESTIMATORS = [
    pytest.param(way, baseline, credit, id=f"{way}, {name}, {credit}")
    for credit in ("all", "to go")
    for name, baseline in BASELINES.items()
    for way in ("plain", "fast")
    if way == "plain" or name == "learned" or (name, credit) == ("leave one of four out", "all")
]
"""With fast models where the baseline has a fast version, and once where it has none."""


ALWAYS = partial(Hard, expectation_probability=0.0)


def build(attention=ALWAYS) -> tuple[ShowAttendTell, torch.Tensor]:
    torch.manual_seed(0)
    model = ShowAttendTell(
        V,
        D,
        hidden_size=H,
        word_size=4,
        score=partial(Additive, attention_size=4),
        attention=attention,
        dropout=0.0,
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return prepared(model).train(), 2 * torch.randn(1, L, D).double()


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat(
        [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()]
    )


def exact(model: ShowAttendTell, regions: torch.Tensor) -> torch.Tensor:
    """The gradient of -sum_s p(s | a) log p(y | s, a), by enumeration."""
    model.zero_grad()
    (-references.expected_log_prob(references.paper_weights(model), regions[0], WORDS[0, 0].tolist())).backward()
    return flat(model).clone()


def estimates(model: ShowAttendTell, regions: torch.Tensor, reinforce: Reinforce | None) -> torch.Tensor:
    """(REPEATS, weights): the gradients of -log p(y | s, a) and of REINFORCE's loss, if any, over ROWS samples each."""
    gradients = []
    for _ in range(REPEATS):
        model.zero_grad()
        caption = model(regions, WORDS.repeat(1, ROWS, 1))
        looked = reinforce(caption.choice, caption.log_prob).loss if reinforce else 0
        (looked - caption.log_prob.sum(-1)).mean().backward()
        gradients.append(flat(model).clone())
    return torch.stack(gradients)


def test_paths_are_all_the_paths():
    model, regions = build()
    paths = list(references.every_path(references.paper_weights(model), regions[0], WORDS[0, 0].tolist()))
    assert len(paths) == L**3
    torch.testing.assert_close(sum(path.look.sum().exp() for path in paths).item(), 1.0)


def off(found: torch.Tensor, truth: torch.Tensor) -> tuple[float, float]:
    """How many standard errors the worst weight is off, and the squared distance of the mean to the exact gradient in
    units of its expectation under sampling noise alone."""
    error = found.std(0) / REPEATS**0.5
    away = found.mean(0) - truth
    kept = error > 1e-9 * truth.abs().max()
    assert kept.sum() > 100
    return (away / error)[kept].abs().max().item(), (away.square().sum() / error.square().sum()).item()


@pytest.mark.parametrize("both_ways, baseline, credit", ESTIMATORS, indirect=["both_ways"])
def test_every_estimator_has_the_exact_gradient_for_a_mean(both_ways, baseline, credit, record_property):
    model, regions = build()
    reinforce = Reinforce(H, baseline=baseline, credit=credit, entropy_weight=0.0).double()
    reinforce = prepared(reinforce)
    truth = exact(model, regions)
    found = estimates(model, regions, reinforce)
    variance = (found.var(0).sum() * ROWS).item()
    record_property("variance", variance)
    print(f"variance of one sample's gradient, {type(reinforce.baseline).__name__}, {credit}: {variance:.1f}")
    worst, distance = off(found, truth)
    assert worst < 5.5 and distance < 8
    assert (found.mean(0) - truth).norm() < 0.1 * truth.norm()


def test_without_the_score_function_the_gradient_is_wrong():
    """The test above can fail: without REINFORCE, the gradient of the map is far from the exact one."""
    model, regions = build()
    truth = exact(model, regions)
    found = estimates(model, regions, Reinforce(H, reward_weight=0.0, entropy_weight=0.0).double())
    worst, distance = off(found, truth)
    assert worst > 20 and distance > 50


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_straight_through_is_biased_and_yet_points_the_right_way(temperature):
    """It needs no score function and has little variance, but its mean is not the exact gradient."""
    model, regions = build(partial(StraightThrough, temperature=temperature))
    truth = exact(model, regions)
    found = estimates(model, regions, None)
    variance = (found.var(0).sum() * ROWS).item()
    away = ((found.mean(0) - truth).norm() / truth.norm()).item()
    likeness = torch.cosine_similarity(found.mean(0), truth, dim=0).item()
    print(f"straight-through, {temperature}: variance {variance:.1f}, off by {away:.3f}, cos {likeness:.3f}")
    worst, _ = off(found, truth)
    assert worst > 8 and likeness > 0.9


def choice(sampled=None, log_prob=None) -> Choice:
    torch.manual_seed(3)
    sampled = torch.ones(2, 4, 3, dtype=torch.bool) if sampled is None else sampled
    log_prob = torch.randn(2, 4, 3).requires_grad_() if log_prob is None else log_prob
    return Choice(log_prob, torch.ones(2, 4, 3), sampled, torch.randn(2, 4, 3, H))


def test_credit_goes_to_what_could_cause_it():
    reward = torch.arange(24.0).view(2, 4, 3)
    returns = Reinforce(H, credit="to go")._returns(choice(), reward)
    torch.testing.assert_close(returns[0][0, 0], torch.tensor([3.0, 3.0, 2.0]))  # 0+1+2, 1+2, 2
    torch.testing.assert_close(returns[1][0, 0], torch.tensor([3.0, 2.0, 1.0]))
    every, terms = Reinforce(H, credit="all")._returns(choice(), reward)
    torch.testing.assert_close(every[0, 1], torch.full((3,), 12.0))
    torch.testing.assert_close(terms[0, 1], torch.full((3,), 3.0))


def test_a_reward_at_the_end_counts_for_every_sample():
    """As in RAM, where it is 1 for a correct answer."""
    reward = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
    made = choice()
    estimate = Reinforce(H, baseline=partial(LeaveOneOut, num_runs=4), entropy_weight=0.0)(made, reward)
    others = (reward.sum(1, keepdim=True) - reward) / 3
    torch.testing.assert_close(estimate.advantage, (reward - others)[..., None].expand(2, 4, 3))
    torch.testing.assert_close(estimate.loss, -(estimate.advantage * made.log_prob).sum(-1))


def test_what_was_not_sampled_has_no_gradient():
    sampled = torch.ones(2, 4, 3, dtype=torch.bool)
    sampled[0] = False
    made = choice(sampled)
    Reinforce(H)(made, torch.randn(2, 4, 3)).loss.mean().backward()
    assert (made.log_prob.grad[0] == 0).all() and (made.log_prob.grad[1] != 0).all()


def test_the_moving_average_is_the_papers_and_lives_in_the_checkpoint():
    """b_k = 0.9 b_{k-1} + 0.1 R_k, used before it is updated; the first R stands for those before it."""
    baseline, ones = MovingAverage(H), torch.ones(2, 4, 3)
    used = [baseline(ones * reward, ones, choice())[0, 0, 0].item() for reward in (-3.0, -1.0, -2.0, 5.0)]
    second = (0.9 * -3 + -1) / 1.9
    third = (0.81 * -3 + 0.9 * -1 + -2) / 2.71
    torch.testing.assert_close(used, [-3.0, -3.0, second, third])
    again = MovingAverage(H)
    again.load_state_dict(baseline.state_dict())
    before = again.eval()(ones, ones, choice())
    torch.testing.assert_close(before, baseline.eval()(7 * ones, ones, choice()))
    torch.testing.assert_close(before, again(ones, ones, choice()))  # evaluation learns nothing


def test_where_nothing_is_sampled_the_moving_average_stays_finite():
    baseline, nothing = MovingAverage(H), torch.zeros(2, 4, 3, dtype=torch.bool)
    assert baseline(torch.randn(2, 4, 3), torch.zeros(2, 4, 3), choice(nothing)).isfinite().all()
    torch.testing.assert_close(baseline(torch.full((2, 4, 3), 2.0), torch.ones(2, 4, 3), choice())[0, 0, 0].item(), 2.0)


def test_the_learned_baseline_learns_the_return_and_leaves_the_state_alone():
    torch.manual_seed(0)
    baseline = Learned(H)
    optimizer = torch.optim.Adam(baseline.parameters(), 1e-2)
    reinforce = Reinforce(H, baseline=lambda size: baseline, entropy_weight=0.0)
    first = None
    for _ in range(200):
        state = torch.randn(2, 4, 3, H, requires_grad=True)
        made = choice()._replace(state=state)
        estimate = reinforce(made, state.detach()[..., 0])
        first = estimate.advantage.square().mean() if first is None else first
        optimizer.zero_grad()
        estimate.loss.mean().backward()
        optimizer.step()
        assert state.grad is None
    assert estimate.advantage.square().mean() < first / 2


def test_the_variance_that_is_logged_is_that_of_samples():
    """R (1[s] - alpha) over many samples with R = 1: its mean squared length is 1 - sum alpha^2."""
    torch.manual_seed(0)
    alpha = torch.tensor([0.6, 0.3, 0.1]).expand(1, 20_000, 1, -1)
    region = torch.multinomial(alpha[0, 0, 0], 20_000, replacement=True).view(1, -1, 1)
    ones = torch.ones(1, 20_000, 1)
    made = Choice(alpha.gather(-1, region[..., None]).squeeze(-1).log(), ones, ones.bool(), ones[..., None])
    torch.testing.assert_close(gradient_variance(ones, alpha, made).item(), 1 - 0.46, rtol=0.02, atol=0)


def test_one_run_alone_cannot_be_compared():
    with pytest.raises(UserError, match="num_runs=1"):
        LeaveOneOut(H, num_runs=1)

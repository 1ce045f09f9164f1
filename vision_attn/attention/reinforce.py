"""REINFORCE (Williams 1992): an estimate of the gradient of an expected reward with respect to the distribution of
samples. Hard attention, RAM and self-critical training use it.

grad E[R] = E[(R - b) grad log p(s)] for any baseline b that does not depend on the sample s. The variance of the
estimate depends on b and on the credit: a sample cannot change earlier rewards, so they need not count for it.

A baseline is constructed with the size of the state that samples are computed from, and called as
`baseline(returns, terms, choice)`. It returns one value for each return. `terms` is the number of rewards in the sum of
each return.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.contracts import Choice
from vision_attn.layers.buffers import value_before
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError

Returns = Float[Tensor, "B R T"]


class MovingAverage(nn.Module):
    """Exponential moving average of rewards, b_k = 0.9 b_{k-1} + 0.1 R_k (Xu et al. 2015, section 4.1).

    decay: the weight of b_{k-1}, 0.9.

    Differs from the paper: the weights of the batches so far are normalised to sum to 1, so that the first batch does
    not count more than later ones. The difference vanishes after a few dozen batches.

    Kept in buffers, so that checkpoints contain it. Averages the reward per term, so that it serves long and short
    captions. Returns the value before the update, because b may not depend on the sample; only the first call, which
    has no earlier value, uses the mean of its own batch.
    """

    num_runs = 1
    total: Tensor
    number: Tensor

    def __init__(self, state_size: int, *, decay: float = 0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("number", torch.zeros(()))

    def forward(self, returns: Returns, terms: Returns, choice: Choice) -> Returns:
        total = (returns / terms.clamp(min=1)).where(choice.sampled, 0).sum()
        number = choice.sampled.sum().to(total.dtype)
        total_before, number_before = value_before(self.total), value_before(self.number)
        mean_before = total_before / number_before
        value = torch.where(number_before > 0, mean_before, total / number.clamp(min=1))
        if self.training:  # sums, not means, so that the sums of two processes average to those of one process
            self.total.lerp_(total.to(self.total), 1 - self.decay)
            self.number.lerp_(number.to(self.number), 1 - self.decay)
        return value * terms


class Learned(nn.Module):
    """Learned baseline, b_t = f(state_t) per term, trained by squared error against the returns (b_t in
    Mnih et al. 2014, eq. 3). The state gets no gradient.

    hidden_size: the size of the hidden layer of f; None makes f linear.

    Fast version: `fast.models.over_time.FastLearned`.
    """

    num_runs = 1

    def __init__(self, state_size: int, *, hidden_size: int | None = 128):
        super().__init__()
        hidden = [] if hidden_size is None else [nn.Linear(state_size, hidden_size), nn.ReLU()]
        self.value = nn.Sequential(*hidden, nn.Linear(hidden_size or state_size, 1))

    def forward(self, returns: Returns, terms: Returns, choice: Choice) -> Returns:
        return self.value(choice.state.detach()).squeeze(-1).to(returns) * terms


class LeaveOneOut(nn.Module):
    """Leave-one-out baseline: the mean return of the other sampled runs of the same row (Kool et al. 2019).

    Has no parameters and no state; each run costs as much as a row. Of the baselines here it has the lowest variance,
    both per gradient of a caption and per unit of time (docs/results_runs.md), so it is the default.

    num_runs: the number of neighbouring rows that are runs of the same row.
    """

    def __init__(self, state_size: int, *, num_runs: int = 4):
        super().__init__()
        if num_runs < 2:
            raise UserError(f"LeaveOneOut: num_runs={num_runs} must be at least 2, to compare a run with another")
        check_range("LeaveOneOut", 2, 1000, num_runs=num_runs)
        self.num_runs = num_runs

    def forward(self, returns: Returns, terms: Returns, choice: Choice) -> Returns:
        runs = returns.unflatten(1, (-1, self.num_runs))
        return ((runs.sum(dim=2, keepdim=True) - runs) / (self.num_runs - 1)).flatten(1, 2)


class Estimate(NamedTuple):
    """The output of `Reinforce`. Minimise the mean of `loss`."""

    loss: Float[Tensor, "B R"]
    """A loss whose gradient estimates that of -(expected return + entropy bonus). It includes the squared error of a
    learned baseline."""
    advantage: Float[Tensor, "B R T"]
    """Return minus baseline, for each sample."""


class Reinforce(nn.Module):
    """The REINFORCE loss. Its gradient is -sum_t (lambda_r (R_t - b_t) grad log p(s_t) + lambda_e grad H[s_t]), where
    s_t is the sample of time step t. A learned baseline adds the gradient of its squared error.

    For hard attention this is Xu et al. 2015, eq. 12 with baseline and entropy term; it estimates the gradient of the
    bound of eq. 10, whose exact form is eq. 11. For RAM it is Mnih et al. 2014, eq. 2, or with a baseline eq. 3.

    baseline: b_t, constructed with the size of the state.
    credit: which rewards count for a sample: "all" rewards of its row, as in the papers, or the rewards "to go", from
        its own time step on.
    reward_weight: lambda_r, the weight of rewards; 1 gives the gradient of the expected reward.
    entropy_weight: lambda_e, the weight of the entropy.

    Differs from the authors' code (Xu et al.): rewards are summed over words, and the loss is a mean over captions.
    Their cost is a mean over the batch too, but the gradient that they pass to alpha is not divided by the batch size
    B: it is the mean reward of T words divided by 10, plus the entropy term with a weight of 0.002. In our units
    lambda_r is B / (10 T), about 0.5 for 64 captions of 12 words, and lambda_e is 0.002 B, about 0.13.
    """

    baseline: Any
    """`LeaveOneOut`, `MovingAverage`, `Learned`, or a module like these."""

    def __init__(
        self,
        state_size: int,
        *,
        baseline: Callable[[int], nn.Module] = LeaveOneOut,
        credit: Literal["all", "to go"] = "to go",
        reward_weight: float = 1.0,
        entropy_weight: float = 0.002,
    ):
        super().__init__()
        self.baseline = baseline(state_size)
        self.credit = credit
        self.reward_weight, self.entropy_weight = reward_weight, entropy_weight

    @property
    def num_runs(self) -> int:
        """The number of neighbouring rows that must be sampled runs of the same row."""
        return self.baseline.num_runs

    def forward(self, choice: Choice, reward: Float[Tensor, "B R"] | Float[Tensor, "B R T"]) -> Estimate:
        """Return the loss of each row, and the advantage of each sample.

        reward: one for each row, given after its last time step, or one for each time step, 0 past a row's end.
        """
        float32_or_wider = torch.promote_types(reward.dtype, torch.float32)
        returns, terms = self._returns(choice, reward.detach().to(float32_or_wider))
        value = self.baseline(returns, terms, choice)
        difference = returns - value
        advantage = (difference * choice.sampled).detach()
        objective = self.reward_weight * advantage * choice.log_prob + self.entropy_weight * choice.entropy
        loss = -objective.sum(dim=-1)
        if value.requires_grad:
            error = (difference / terms.clamp(min=1) * choice.sampled).square()
            loss = loss + error.sum(dim=-1)
        return Estimate(loss, advantage)

    def _returns(self, choice: Choice, reward: Tensor) -> tuple[Returns, Returns]:
        """Return for each sample the sum of the rewards that count for it, and their number."""
        if reward.dim() == 2:
            returns = reward[..., None].expand_as(choice.log_prob)
            return returns, torch.ones_like(returns)
        return self._reward_sums(reward), self._reward_sums(choice.sampled.to(reward.dtype))

    def _reward_sums(self, reward: Tensor) -> Tensor:
        if self.credit == "all":
            return reward.sum(dim=-1, keepdim=True).expand_as(reward)
        return reward.flip(-1).cumsum(dim=-1).flip(-1)


def gradient_variance(
    advantage: Float[Tensor, "B R T"], alpha: Float[Tensor, "B R T L"], choice: Choice
) -> Float[Tensor, ""]:
    """Return the mean squared length of R (1[s] - alpha), the gradient of a sample's loss with respect to the scores e,
    alpha = softmax(e). For attention without a softmax, such as `HardMonotonic`, e is log alpha.

    This is nearly the variance of that gradient, whose mean is small in comparison. A better baseline lowers it.
    """
    p = choice.log_prob.exp()
    length = 1 - 2 * p + alpha.square().sum(dim=-1)
    return (advantage.square() * length * choice.sampled).sum() / choice.sampled.sum().clamp(min=1)

"""REINFORCE: the gradient of an expected reward with regard to what was drawn (Williams 1992), for hard attention and
RAM alike.

grad E[R] = E[(R - b) grad log p(s)], for any b that does not depend on the draw. The baseline b decides the variance;
which of the rewards count for which draw decides it too: a draw cannot change what came before it.

A baseline is built with the size of the state that draws are made from, and called as `baseline(returns, terms,
choice)`; it returns one value for each return. `terms` is how many rewards are summed in each return.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vision_attn.ranges import check_range

Returns = Float[Tensor, "B R T"]


class Choice(NamedTuple):
    """What a sampling model drew at each turn, for a score-function estimator. Zero where nothing was drawn."""

    log_prob: Float[Tensor, "B R T"]
    """log p of each draw, in nats."""
    entropy: Float[Tensor, "B R T"]
    """Of what was drawn from, in nats; also where an expectation took the draw's place."""
    drawn: Bool[Tensor, "B R T"]
    """Where there was a draw: not past a row's end, nor where an expectation took its place."""
    state: Float[Tensor, "B R T H"]
    """What the draw was made from, without a gradient: a learned baseline sees it."""


class MovingAverage(nn.Module):
    """b_k = 0.9 b_{k-1} + 0.1 R_k (Xu et al. 2015, section 4.1), in buffers, so that it is in every checkpoint.

    It averages the reward per term, so that long captions and short ones share it, and the gradient uses the value
    before the update: b may not depend on the draw. Only the first call must do with its own mean.
    """

    num_runs = 1

    def __init__(self, state_size: int, *, decay: float = 0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("number", torch.zeros(()))

    def forward(self, returns: Returns, terms: Returns, choice: Choice) -> Returns:
        total = (returns / terms.clamp(min=1)).where(choice.drawn, 0).sum()
        number = choice.drawn.sum().to(total.dtype)
        value = torch.where(self.number > 0, self.total / self.number, total / number.clamp(min=1))
        if self.training:  # sums, not means: those of two processes then average to those of one
            self.total.lerp_(total.to(self.total), 1 - self.decay)
            self.number.lerp_(number.to(self.number), 1 - self.decay)
        return value * terms


class Learned(nn.Module):
    """b_t = f(state_t) per term, fitted to the returns by squared error; the state gets no gradient. f has one hidden
    layer, or is linear (`hidden_size: null`)."""

    num_runs = 1

    def __init__(self, state_size: int, *, hidden_size: int | None = 128):
        super().__init__()
        hidden = [] if hidden_size is None else [nn.Linear(state_size, hidden_size), nn.ReLU()]
        self.value = nn.Sequential(*hidden, nn.Linear(hidden_size or state_size, 1))

    def forward(self, returns: Returns, terms: Returns, choice: Choice) -> Returns:
        return self.value(choice.state.detach()).squeeze(-1).to(returns) * terms


class LeaveOneOut(nn.Module):
    """The mean return of the other sampled runs of the same row (Kool et al. 2019): `num_runs` neighbouring rows.

    Nothing to learn and nothing to remember; each run costs what a row costs. Of all baselines here it leaves the least
    variance, in a caption's gradient and for the time it takes (docs/results.md), so it is the default.
    """

    def __init__(self, state_size: int, *, num_runs: int = 4):
        super().__init__()
        if num_runs < 2:
            raise ValueError(f"LeaveOneOut: num_runs={num_runs}, but there must be another run to compare with")
        check_range("LeaveOneOut", 2, 1000, num_runs=num_runs)
        self.num_runs = num_runs

    def forward(self, returns: Returns, terms: Returns, choice: Choice) -> Returns:
        runs = returns.unflatten(1, (-1, self.num_runs))
        return ((runs.sum(dim=2, keepdim=True) - runs) / (self.num_runs - 1)).flatten(1, 2)


class Estimate(NamedTuple):
    """What `Reinforce` makes of rewards: minimise the mean of `loss`."""

    loss: Float[Tensor, "B R"]
    """Its gradient is the estimated one of minus the expected return, minus that of the entropy bonus; with it, what a
    learned baseline minimises."""
    advantage: Float[Tensor, "B R T"]
    """Return less baseline, of each draw."""


class Reinforce(nn.Module):
    """lambda_r (R - b) grad log p(s | a) + lambda_e grad H[s] (Xu et al. 2015, eq. 12), as a loss.

    `credit`: the rewards that count for a draw: all of the row's, as in the paper, or only those to go.
    `reward_weight` is lambda_r: 1 gives the gradient of the expected reward. `entropy_weight` is lambda_e.

    Differs from the authors' code: rewards are summed over words, and the loss is a mean over captions. There the cost
    is a mean over the batch too, but the gradient handed to alpha is not divided by the batch size B: it is the mean
    reward of T words over 10, and the entropy term with a weight of 0.002. In our units lambda_r is B / (10 T), about
    0.5 for 64 captions of 12 words, and lambda_e is 0.002 B, about 0.13.
    """

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
        """How many neighbouring rows must be sampled runs of the same row."""
        return self.baseline.num_runs

    def forward(self, choice: Choice, reward: Float[Tensor, "B R"] | Float[Tensor, "B R T"]) -> Estimate:
        """`reward`: one for each row, given after its last turn, or one for each turn, zero past a row's end."""
        precise = torch.promote_types(reward.dtype, torch.float32)
        returns, terms = self._returns(choice, reward.detach().to(precise))
        value = self.baseline(returns, terms, choice)
        advantage = ((returns - value) * choice.drawn).detach()
        score = self.reward_weight * advantage * choice.log_prob + self.entropy_weight * choice.entropy
        loss = -score.sum(dim=-1)
        if value.requires_grad:
            error = ((returns - value) / terms.clamp(min=1) * choice.drawn).square()
            loss = loss + error.sum(dim=-1)
        return Estimate(loss, advantage)

    def _returns(self, choice: Choice, reward: Tensor) -> tuple[Returns, Returns]:
        """The rewards that count for each draw, summed; and how many they are."""
        if reward.dim() == 2:
            returns = reward[..., None].expand_as(choice.log_prob)
            return returns, torch.ones_like(returns)
        return self._summed(reward), self._summed(choice.drawn.to(reward.dtype))

    def _summed(self, reward: Tensor) -> Tensor:
        if self.credit == "all":
            return reward.sum(dim=-1, keepdim=True).expand_as(reward)
        return reward.flip(-1).cumsum(dim=-1).flip(-1)


def look_variance(
    advantage: Float[Tensor, "B R T"], alpha: Float[Tensor, "B R T L"], choice: Choice
) -> Float[Tensor, ""]:
    """Mean squared length of a draw's gradient with regard to its scores, R (1[s] - alpha): nearly its variance, since
    its mean is small beside it. What a better baseline lowers."""
    p = choice.log_prob.exp()
    length = 1 - 2 * p + alpha.square().sum(dim=-1)
    return (advantage.square() * length * choice.drawn).sum() / choice.drawn.sum().clamp(min=1)

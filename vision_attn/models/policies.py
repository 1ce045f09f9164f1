"""Where to look next: RAM's location network, and looking anywhere.

A policy is built with the size of the state it sees. All that chance decides comes first, from `noise`. `place(state,
noise)` then gives a location for each row, not clipped; `choice(states, draws)` gives log p of all draws at once.
`reinforced` says whether there is anything to learn.
"""

from math import log, pi
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.attention.reinforce import Choice
from vision_attn.layers.linear import Linear, Rectified
from vision_attn.layers.precise import precise

Look = Literal["draw", "mean"]


class Gaussian(nn.Module):
    """l ~ N(tanh(f_l(state)), sigma^2 I), the location network of Mnih et al. (2014).

    `first_sigma`: sigma falls from it to `sigma`, by equal factors, in the first `batches_to_sigma` batches trained.

    Differs from the paper: f_l has a hidden layer, without which replications did not reach the paper's numbers (None:
    the paper's linear f_l).
    """

    reinforced = True

    def __init__(
        self,
        state_size: int,
        *,
        hidden_size: int | None = 128,
        sigma: float = 0.1,
        first_sigma: float | None = None,
        batches_to_sigma: int = 0,
    ):
        super().__init__()
        first_sigma = sigma if first_sigma is None else first_sigma
        if min(sigma, first_sigma) <= 0 or batches_to_sigma < 0:
            raise ValueError(
                f"Gaussian: sigma={sigma} and first_sigma={first_sigma} must be positive, "
                f"batches_to_sigma={batches_to_sigma} not negative"
            )
        self.mean = Linear(state_size, 2)
        if hidden_size is not None:
            self.mean = nn.Sequential(Rectified(state_size, hidden_size), Linear(hidden_size, 2))
        self.final, self.first, self.batches_to_sigma = sigma, first_sigma, batches_to_sigma
        self.register_buffer("batches", torch.zeros(()))

    @property
    def sigma(self) -> Float[Tensor, ""]:
        """The standard deviation of each coordinate now."""
        left = (1 - self.batches / max(1, self.batches_to_sigma)).clamp(min=0)
        return self.final * (self.first / self.final) ** left

    def restart(self) -> None:
        """Let sigma fall anew."""
        self.batches.zero_()

    def noise(self, turns: Float[Tensor, "T B R 2"], look: Look) -> Float[Tensor, "T B R 2"]:
        """For as many turns and rows as `turns` has."""
        return torch.randn_like(turns) * self.sigma if look == "draw" else torch.zeros_like(turns)

    def place(self, state: Float[Tensor, "B R P"], noise: Float[Tensor, "B R 2"]) -> Float[Tensor, "B R 2"]:
        return self._mean(state) + noise

    def choice(self, states: Float[Tensor, "B R T P"], draws: Float[Tensor, "B R T 2"]) -> Choice:
        """Counts the batch, when training: to be called once for each."""
        sigma = self.sigma
        squares = ((draws - self._mean(states)) / sigma).square().sum(dim=-1)
        log_prob = -0.5 * squares - 2 * sigma.log() - log(2 * pi)
        if self.training:
            self.batches += 1
        entropy = (1 + log(2 * pi) + 2 * sigma.log()).expand_as(log_prob)  # does not depend on the state
        return Choice(log_prob, entropy, torch.ones_like(log_prob, dtype=torch.bool), states.detach())

    def _mean(self, state: Tensor) -> Tensor:
        """In float32 at least: under autocast, rounding would be coarse beside sigma."""
        mean = self.mean(state)
        return precise(mean).tanh()


class Anywhere(nn.Module):
    """Uniformly anywhere, at every glimpse: what is learned is not where to look, but what to make of it."""

    reinforced = False

    def __init__(self, state_size: int):
        super().__init__()

    def restart(self) -> None:
        """Nothing here changes with training."""

    def noise(self, turns: Float[Tensor, "T B R 2"], look: Look) -> Float[Tensor, "T B R 2"]:
        return torch.empty_like(turns).uniform_(-1, 1)

    def place(self, state: Float[Tensor, "B R P"], noise: Float[Tensor, "B R 2"]) -> Float[Tensor, "B R 2"]:
        return noise

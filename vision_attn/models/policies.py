"""Policies that choose the location of the next glimpse: RAM's location network, and uniformly random locations.

A policy is constructed with the size of the state that it sees. `noise` generates all random numbers of a batch in
advance; `locate(state, noise)` then returns a location for each row, not clipped to the image. `reinforced` says
whether the policy learns from REINFORCE; then `choice(states, samples)` returns log p of all sampled locations at once.
"""

from math import log, pi

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.contracts import Choice, LocationMode
from vision_attn.layers.buffers import value_before
from vision_attn.layers.linear import Linear, Rectified
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.errors import UserError


class Gaussian(nn.Module):
    """The location network of RAM (Mnih et al. 2014): l_t ~ N(tanh(f_l(h_t)), sigma^2 I).

    hidden_size: the size of the hidden layer of f_l; null makes f_l linear.
    sigma: the standard deviation of locations at test time, and in training after `batches_to_sigma` batches.
    first_sigma: the standard deviation in the first training batch; it decays exponentially to `sigma`.
    batches_to_sigma: training batches in which the standard deviation decays from `first_sigma` to `sigma`.

    Differs from the paper: f_l has a hidden layer, because replications with the paper's linear f_l (`hidden_size`
    null) did not reach its numbers; a tanh keeps the means inside the image.
    """

    reinforced = True
    batches: Tensor

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
            raise UserError(
                f"Gaussian: sigma={sigma} and first_sigma={first_sigma} must be positive, "
                f"batches_to_sigma={batches_to_sigma} not negative"
            )
        self.mean: nn.Module = Linear(state_size, 2)
        if hidden_size is not None:
            self.mean = nn.Sequential(Rectified(state_size, hidden_size), Linear(hidden_size, 2))
        self.final, self.first, self.batches_to_sigma = sigma, first_sigma, batches_to_sigma
        self.register_buffer("batches", torch.zeros(()))

    @property
    def sigma(self) -> Float[Tensor, ""]:
        """The current standard deviation of each coordinate; at test time, its value after the schedule."""
        if not self.training:
            return torch.full_like(self.batches, self.final)
        remaining = (1 - value_before(self.batches) / max(1, self.batches_to_sigma)).clamp(min=0)
        return self.final * (self.first / self.final) ** remaining

    def restart(self) -> None:
        """Restart the sigma schedule."""
        self.batches.zero_()

    def noise(self, like: Float[Tensor, "T B R 2"], mode: LocationMode) -> Float[Tensor, "T B R 2"]:
        """Generate the deviations from the mean of each time step and row, in the shape of `like`."""
        return torch.randn_like(like) * self.sigma if mode == "sample" else torch.zeros_like(like)

    def locate(self, state: Float[Tensor, "B R P"], noise: Float[Tensor, "B R 2"]) -> Float[Tensor, "B R 2"]:
        return self._mean(state) + noise

    def choice(self, states: Float[Tensor, "B R T P"], samples: Float[Tensor, "B R T 2"]) -> Choice:
        """Return log p and entropy of sampled locations. Call it once per training batch: it advances the sigma
        schedule."""
        sigma = self.sigma
        mean = self._mean(states)
        squares = ((samples - mean) / sigma).square().sum(dim=-1)
        scale = 2 * sigma.log() + log(2 * pi)
        log_prob = -0.5 * squares - scale
        if self.training:
            self.batches += 1
        entropy = (1 + scale).expand_as(log_prob)  # does not depend on the state
        return Choice(log_prob, entropy, torch.ones_like(log_prob, dtype=torch.bool), states.detach(), mean)

    def _mean(self, state: Tensor) -> Tensor:
        """Return tanh(f_l(state)) in float32 or wider: half precision would round too coarsely, compared with sigma."""
        mean = self.mean(state)
        return at_least_float32(mean).tanh()


class Anywhere(nn.Module):
    """Uniformly random locations for every glimpse: a baseline that learns to classify glimpses, but not where to look
    (Mnih et al. 2014, table 2)."""

    reinforced = False

    def __init__(self, state_size: int):
        super().__init__()

    def restart(self) -> None:
        """Do nothing: there is no schedule."""

    def noise(self, like: Float[Tensor, "T B R 2"], mode: LocationMode) -> Float[Tensor, "T B R 2"]:
        return torch.empty_like(like).uniform_(-1, 1)

    def locate(self, state: Float[Tensor, "B R P"], noise: Float[Tensor, "B R 2"]) -> Float[Tensor, "B R 2"]:
        return noise

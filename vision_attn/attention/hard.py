"""Hard attention: one region is drawn at each word, and nothing else is seen of the image.

An attention is called once per turn with the map `alpha` and returns what is seen, z_t, and which region that is (None
when it is all of them). `reinforced` says whether its draws need a score-function estimator (`reinforce.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vision_attn.attention.soft import expected_context

Look = Literal["expectation", "mode", "draw"]


class Hard(nn.Module):
    """s_t ~ Multinoulli(alpha_t), z_t = a_{s_t} (Xu et al. 2015, eqs. 8 and 9).

    In training, all looks at an image are the expected ones with probability `expected`, as in section 4.1: one coin
    per image and batch. When not training, `at_test` says what a look is: the expectation (the authors' choice), the
    most likely region, or a draw.

    `soft_start`: the number of batches before the first coin, in which every look is the expected one. Differs from the
    paper, where it is 0: while maps are even a draw tells nothing, and a short training may end before they are not.
    """

    reinforced = True

    def __init__(self, *, expected: float = 0.5, soft_start: int = 0, at_test: Look = "expectation"):
        super().__init__()
        if not 0 <= expected <= 1:
            raise ValueError(f"Hard: expected={expected} is a probability, and must lie between 0 and 1")
        if soft_start < 0:
            raise ValueError(f"Hard: soft_start={soft_start} is a number of batches, and must not be negative")
        self.expected, self.soft_start, self.at_test = expected, soft_start, at_test
        self.register_buffer("batches", torch.zeros(()))

    @contextmanager
    def looking(self, look: Look) -> Iterator[None]:
        """Within, `look` is what a look is at test time."""
        before, self.at_test = self.at_test, look
        try:
            yield
        finally:
            self.at_test = before

    @property
    def look(self) -> Look:
        """What a look is now."""
        return "draw" if self.training else self.at_test

    def coins(self, num_images: int, like: Tensor) -> Bool[Tensor, "B"] | None:
        """Which images are seen as expected, tossed once for all of their words; None: every image is drawn from."""
        if not self.training or self.expected == self.soft_start == 0:
            return None
        soft = self.batches < self.soft_start
        self.batches += 1
        return (torch.rand(num_images, device=like.device) < self.expected) | soft

    def forward(
        self,
        alpha: Float[Tensor, "B R L"],
        regions: Float[Tensor, "B L D"],
        expected: Bool[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B R D"], Int[Tensor, "B R"] | None]:
        if self.look == "expectation":
            return expected_context(alpha, regions), None
        region = alpha.argmax(dim=-1) if self.look == "mode" else draw(alpha.detach())
        if expected is None:
            return at(regions, region), region
        # One product serves both: a drawn look is the expectation of a map with a single one in it.
        weights = torch.zeros_like(alpha).scatter_(-1, region[..., None], 1)
        return expected_context(torch.where(expected[:, None, None], alpha, weights), regions), region


class StraightThrough(Hard):
    """The same draw with a continuous gradient in place of REINFORCE's: the single one on the way forward,
    softmax((log alpha + Gumbel) / tau) on the way back (Jang et al. 2017, "straight-through Gumbel-softmax"). Biased.
    """

    reinforced = False

    def __init__(self, *, temperature: float = 1.0, at_test: Look = "expectation"):
        super().__init__(expected=0.0, at_test=at_test)
        if temperature <= 0:
            raise ValueError(f"StraightThrough: temperature={temperature} must be positive")
        self.temperature = temperature

    def forward(
        self,
        alpha: Float[Tensor, "B R L"],
        regions: Float[Tensor, "B L D"],
        expected: Bool[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B R D"], Int[Tensor, "B R"] | None]:
        if not self.training:
            return super().forward(alpha, regions)
        noisy = (_log(alpha) - _arrival(alpha).log()) / self.temperature
        near, region = noisy.softmax(dim=-1), noisy.argmax(dim=-1)
        one = torch.zeros_like(near).scatter_(-1, region[..., None], 1)
        return expected_context(one + near - near.detach(), regions), region


def draw(alpha: Float[Tensor, "*rows L"]) -> Int[Tensor, "*rows"]:
    """One region of each row with probability alpha: the first to arrive when region i comes after Exp(1) / alpha_i.

    The same draw as Gumbel-max, without waiting for the device as `torch.multinomial` may.
    """
    return (alpha / _arrival(alpha)).argmax(dim=-1)


def at(regions: Float[Tensor, "B L D"], region: Int[Tensor, "B R"]) -> Float[Tensor, "B R D"]:
    """z_t = a_{s_t}: the annotation vector of each row's region."""
    first = torch.arange(len(regions), device=regions.device)[:, None] * regions.shape[1]
    return regions.flatten(0, 1)[first + region]


def log_prob(alpha: Float[Tensor, "*rows L"], region: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """log p(s_t | a) of the regions drawn, in nats."""
    return _log(alpha.gather(-1, region[..., None]).squeeze(-1))


def entropy(alpha: Float[Tensor, "*rows L"]) -> Float[Tensor, "*rows"]:
    """H[s_t] = -sum_i alpha_i log alpha_i, in nats; 0 for a map of zeros."""
    return -(alpha * _log(alpha)).sum(dim=-1)


def _arrival(alpha: Tensor) -> Tensor:
    """Draws from Exp(1), none of them 0."""
    return torch.empty_like(alpha).exponential_().clamp_(min=torch.finfo(alpha.dtype).tiny)


def _log(alpha: Tensor) -> Tensor:
    """log alpha, finite and without a gradient where alpha has underflown."""
    return alpha.clamp(min=torch.finfo(alpha.dtype).tiny).log()

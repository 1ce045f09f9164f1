"""Hard attention: each word sees one sampled region and nothing else of the image (Xu et al. 2015, section 4.1)."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vision_attn.attention.soft import Attention, AttentionOutput, fits, normalised
from vision_attn.contracts import Choice, Forced, check_mode
from vision_attn.contracts.nested import Nested
from vision_attn.layers.buffers import value_before
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError

Mode = Literal["expectation", "argmax", "sample"]


class Hard(Attention):
    """Hard attention, s_t ~ Multinoulli(alpha_t), z_t = a_{s_t} (Xu et al. 2015, eq. 8 and eq. 9), trained by
    REINFORCE.

    expectation_probability: in training, the probability that an image's samples are replaced by their expectation,
        decided once per image and batch (section 4.1).
    soft_start: the number of batches at the start in which every sample is replaced by its expectation. Differs from
        the paper, where it is 0: a sample from a uniform map carries no information, and a short training may end
        before maps sharpen.
    at_test: what a word sees at test time: the expectation over regions ("expectation", the authors' choice), the most
        likely region ("argmax"), or a sampled region ("sample").

    Fast version: `fast.attend.FastHard`.
    """

    reinforced = True
    steerable = True
    modes: tuple[str, ...] = ("expectation", "argmax", "sample")
    at_test: str
    batches: Tensor

    def __init__(self, *, expectation_probability: float = 0.5, soft_start: int = 0, at_test: Mode = "expectation"):
        super().__init__()
        if not 0 <= expectation_probability <= 1:
            raise UserError(f"Hard: {expectation_probability=} must lie between 0 and 1")
        if soft_start < 0:
            raise UserError(f"Hard: soft_start={soft_start} is a number of batches, and must not be negative")
        check_mode(self, at_test)
        self.expectation_probability, self.soft_start, self.at_test = expectation_probability, soft_start, at_test
        self.register_buffer("batches", torch.zeros(()))

    def restart(self) -> None:
        self.batches.zero_()

    @property
    def mode(self) -> str:
        """The current mode: "sample" in training, `at_test` otherwise."""
        return "sample" if self.training else self.at_test

    def sample_expectation_mask(self, num_images: int, like: Tensor) -> Bool[Tensor, "B"] | None:
        if not self.training or self.expectation_probability == self.soft_start == 0:
            return None
        soft = value_before(self.batches) < self.soft_start
        self.batches += 1
        return (torch.rand(num_images, device=like.device) < self.expectation_probability) | soft

    def forward(
        self,
        scores: Float[Tensor, "B R L"],
        regions: Float[Tensor, "B L D"],
        expectation_mask: Bool[Tensor, "B"] | None = None,
        carry: Nested = None,
        forced: Forced | None = None,
    ) -> AttentionOutput:
        fits(scores, regions)
        if self.mode == "expectation":
            return AttentionOutput(*self.attended(scores, regions, forced=forced))
        alpha = normalised(scores, forced)
        region = alpha.argmax(dim=-1) if self.mode == "argmax" else sample(alpha.detach())
        if expectation_mask is None:
            return AttentionOutput(at(regions, region), alpha, region)
        # One product serves both: a sampled region is the expectation of a one-hot map.
        one_hot = torch.zeros_like(alpha).scatter_(-1, region[..., None], 1)
        weights = torch.where(expectation_mask[:, None, None], alpha, one_hot)
        return AttentionOutput(self.expected(weights, regions), alpha, region)

    def choice(
        self,
        alpha: Float[Tensor, "B R T L"],
        region: Int[Tensor, "B R T"] | None,
        word_mask: Bool[Tensor, "B R T"],
        expectation_mask: Bool[Tensor, "B"] | None,
        state: Float[Tensor, "B R T H"],
    ) -> Choice | None:
        if region is None or self.mode != "sample":
            return None
        sampled = word_mask if expectation_mask is None else word_mask & ~expectation_mask[:, None, None]
        return Choice(log_prob(alpha, region) * sampled, entropy(alpha), sampled, state)


class StraightThrough(Hard):
    """Straight-through Gumbel-softmax (Jang et al. 2017): the same samples, with a gradient that needs no REINFORCE.

    The forward pass sees the one-hot argmax of log alpha + Gumbel (Jang et al. 2017, eq. 1), the backward pass
    softmax((log alpha + Gumbel) / tau) (Jang et al. 2017, eq. 2). The gradient is biased.

    Fast version: `fast.attend.FastStraightThrough`.
    """

    reinforced = False

    def __init__(self, *, temperature: float = 1.0, at_test: Mode = "expectation"):
        super().__init__(expectation_probability=0.0, at_test=at_test)
        check_range("StraightThrough", 0.001, 1000.0, temperature=temperature)
        self.temperature = temperature

    def forward(
        self,
        scores: Float[Tensor, "B R L"],
        regions: Float[Tensor, "B L D"],
        expectation_mask: Bool[Tensor, "B"] | None = None,
        carry: Nested = None,
        forced: Forced | None = None,
    ) -> AttentionOutput:
        if not self.training:
            return super().forward(scores, regions, forced=forced)
        fits(scores, regions)
        alpha = normalised(scores, forced)
        noisy = (_log(alpha) - _exponential(alpha).log()) / self.temperature
        if self.pads:
            noisy = noisy.masked_fill(scores.isneginf(), -torch.inf)  # or a high temperature would see padding
        soft, region = noisy.softmax(dim=-1), noisy.argmax(dim=-1)
        one_hot = torch.zeros_like(soft).scatter_(-1, region[..., None], 1)
        return AttentionOutput(self.expected(one_hot + soft - soft.detach(), regions), alpha, region)

    def choice(self, *_: Tensor | None) -> None:
        """Return None: the gradient passes through the samples, so no estimator is needed."""


def sample(alpha: Float[Tensor, "*rows L"]) -> Int[Tensor, "*rows"]:
    """Sample one region of each row, s ~ Multinoulli(alpha) (Xu et al. 2015, eq. 8).

    Takes the region with the smallest Exp(1) / alpha_i, which is equivalent to Gumbel-max. Unlike `torch.multinomial`,
    it never synchronises with the device.
    """
    return (alpha / _exponential(alpha)).argmax(dim=-1)


def at(regions: Float[Tensor, "B L D"], region: Int[Tensor, "B R"]) -> Float[Tensor, "B R D"]:
    """Return z_t = a_{s_t} (Xu et al. 2015, eq. 9): the annotation vector of each row's region."""
    first = torch.arange(regions.shape[0], device=regions.device)[:, None] * regions.shape[1]
    return regions.flatten(0, 1)[first + region]


def log_prob(alpha: Float[Tensor, "*rows L"], region: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """Return log p(s_t | a) of the sampled regions, in nats."""
    return _log(alpha.gather(-1, region[..., None]).squeeze(-1))


def entropy(alpha: Float[Tensor, "*rows L"]) -> Float[Tensor, "*rows"]:
    """Return H[s_t] = -sum_i alpha_i log alpha_i, in nats; 0 for a map of zeros."""
    return -(alpha * _log(alpha)).sum(dim=-1)


def _exponential(alpha: Tensor) -> Tensor:
    """Sample Exp(1) in the shape of `alpha`; no sample is 0."""
    return torch.empty_like(alpha).exponential_().clamp_(min=torch.finfo(alpha.dtype).tiny)


def _log(alpha: Tensor) -> Tensor:
    """Return log alpha, finite and without a gradient where alpha has underflowed."""
    return alpha.clamp(min=torch.finfo(alpha.dtype).tiny).log()

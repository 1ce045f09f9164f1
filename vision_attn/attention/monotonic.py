"""Monotonic attention, which only moves forward along a line of columns.

For each character, a search starts at the column that the previous character has read, or `advance` columns after it.
It stops at column j with probability p_ij = sigmoid(e_ij), else it goes on to the next column. The character reads the
column where the search stops.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.hard import Hard, sample
from vision_attn.attention.soft import Attention, AttentionOutput
from vision_attn.contracts import Forced, check_mode
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError

Mode = Literal["expectation", "online"]


class Monotonic(Attention):
    """Monotonic attention trained by its exact expectation (Raffel et al., ICML 2017).

    In training, alpha_ij is the probability that the search for character i stops at column j (eq. 14), and the weight
    of column j in the context. At test time ("online") the search itself runs: it stops at the first column with
    p_ij > 1/2, and never reads a passed column again (algorithm 1).

    offset: the initial r, a learned number that is added to scores. The more negative it is, the further a search
        reaches at the start of training (section 2.4).
    noise: standard deviation of the Gaussian noise that is added to scores in training, so that the model learns values
        of p near 0 or 1.
    advance: the smallest number of columns from one character to the next; 0 in the paper. With 1 or more, the content
        of a column alone can decide to stop there. With 0, only its position tells a column from the one that was just
        read, and positions are not learned beyond the lengths of training.
    at_test: the mode at test time: "online" searches; "expectation" attends as in training.

    Differs from the paper: a search that reaches the last column stops there, so that weights sum to 1. In the paper
    the character then reads nothing.

    Fast version: `fast.attend.FastMonotonic`.
    """

    modes = ("expectation", "online")
    steerable = True

    def __init__(self, *, offset: float = -2.0, noise: float = 1.0, advance: int = 0, at_test: Mode = "online"):
        super().__init__()
        check_range("Monotonic", 0, 1000, advance=advance)
        if noise < 0:
            raise UserError(f"Monotonic: noise={noise} is a standard deviation, and must not be negative")
        check_mode(self, at_test)
        self.offset, self.noise, self.at_test = nn.Parameter(torch.tensor(float(offset))), noise, at_test
        self.advance = advance

    @property
    def mode(self) -> Mode:
        return "expectation" if self.training else self.at_test

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> Float[Tensor, "B R L"]:
        """Return the map of the first column, where the first search starts."""
        return first_column(regions, rows)

    def forward(
        self,
        scores: Float[Tensor, "B R L"],
        regions: Float[Tensor, "B L D"],
        expectation_mask: Bool[Tensor, "B"] | None = None,
        carry: Float[Tensor, "B R L"] | None = None,
        forced: Forced | None = None,
    ) -> AttentionOutput:
        """Compute the map of a character and its context.

        carry: the probability that the search starts at each column: alpha_{i-1}, moved by `advance`.
        """
        carry = first_column(regions, scores.shape[1]) if carry is None else carry
        energy = at_least_float32(scores) + self.offset
        if self.training and self.noise:
            energy = energy + self.noise * torch.randn_like(energy)
        stops = energy.sigmoid() if self.mode == "expectation" else (energy > 0).to(energy.dtype)
        alpha = stopping(stops, carry)
        alpha = before_padding(alpha, scores) if self.pads else alpha
        alpha = alpha if forced is None else forced.mixed(alpha)
        return AttentionOutput(self.expected(alpha, regions), alpha, carry=moved(alpha, self.advance))


class HardMonotonic(Hard):
    """Monotonic attention whose columns are sampled, trained by REINFORCE (Luo et al. 2016, arXiv:1608.01281).

    The decisions to stop or to go on are Bernoulli samples (section 2). All decisions of a character together are one
    sample of its column, from alpha_ij: `stopping` with the sampled column of the previous character. Their
    log-probability is log alpha_ij, so that the criterion `ReinforceAttention` serves as for hard attention.

    expectation_probability, soft_start: as for `Hard`; the expectation is that of `Monotonic`.
    offset: the initial r, a learned number that is added to scores.
    advance: as for `Monotonic`.
    at_test: the mode at test time: "online" stops at the first column with p_ij > 1/2; "expectation" and "sample"
        attend as in training.

    Differs from the paper: each character stops once, and decisions are computed from annotations by a score. The
    paper's network runs along the columns and may emit a character at each.

    Fast version: `fast.attend.FastHardMonotonic`.
    """

    modes = ("expectation", "online", "sample")

    def __init__(
        self,
        *,
        expectation_probability: float = 0.5,
        soft_start: int = 0,
        offset: float = -2.0,
        advance: int = 0,
        at_test: Literal["expectation", "online", "sample"] = "online",
    ):
        super().__init__(expectation_probability=expectation_probability, soft_start=soft_start)
        check_range("HardMonotonic", 0, 1000, advance=advance)
        check_mode(self, at_test)
        self.at_test, self.advance = at_test, advance
        self.offset = nn.Parameter(torch.tensor(float(offset)))

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> Float[Tensor, "B R L"]:
        return first_column(regions, rows)

    def forward(
        self,
        scores: Float[Tensor, "B R L"],
        regions: Float[Tensor, "B L D"],
        expectation_mask: Bool[Tensor, "B"] | None = None,
        carry: Float[Tensor, "B R L"] | None = None,
        forced: Forced | None = None,
    ) -> AttentionOutput:
        """Compute the map of a character, its sampled column and its context.

        carry: where the search starts: the map that the previous character has seen, moved by `advance`.
        """
        carry = first_column(regions, scores.shape[1]) if carry is None else carry
        energy = at_least_float32(scores) + self.offset
        stops = (energy > 0).to(energy.dtype) if self.mode == "online" else energy.sigmoid()
        alpha = stopping(stops, carry)
        alpha = before_padding(alpha, scores) if self.pads else alpha
        alpha = alpha if forced is None else forced.mixed(alpha)
        if self.mode == "expectation":
            return AttentionOutput(self.expected(alpha, regions), alpha, carry=moved(alpha, self.advance))
        region = alpha.argmax(dim=-1) if self.mode == "online" else sample(alpha.detach())
        seen = torch.zeros_like(alpha).scatter_(-1, region[..., None], 1)
        if expectation_mask is not None:
            seen = torch.where(expectation_mask[:, None, None], alpha, seen)
        return AttentionOutput(self.expected(seen, regions), alpha, region, moved(seen, self.advance))


def before_padding(alpha: Float[Tensor, "B R L"], scores: Float[Tensor, "B R L"]) -> Float[Tensor, "B R L"]:
    """Move the weight on padding to the last column that is not padding. Padding has scores of -inf, so that no search
    stops there."""
    padding = scores.isneginf()
    last = (~padding).sum(dim=-1, keepdim=True) - 1
    passed = alpha.masked_fill(~padding, 0).sum(dim=-1, keepdim=True)
    return alpha.masked_fill(padding, 0).scatter_add(-1, last, passed)


def first_column(regions: Float[Tensor, "B L D"], rows: int) -> Float[Tensor, "B R L"]:
    """Return the map of the first column, in float32 or wider."""
    zeros = at_least_float32(regions.new_zeros(len(regions), rows, regions.shape[1]))
    return torch.cat([torch.ones_like(zeros[..., :1]), zeros[..., 1:]], dim=-1)


def moved(alpha: Float[Tensor, "B R L"], columns: int) -> Float[Tensor, "B R L"]:
    """Move a map forward by some columns. Weight that would pass the last column stays there."""
    columns = min(columns, alpha.shape[-1] - 1)
    if not columns:
        return alpha
    stay, pass_by = alpha.split([alpha.shape[-1] - columns, columns], dim=-1)
    last = stay[..., -1:] + pass_by.sum(dim=-1, keepdim=True)
    return torch.cat([torch.zeros_like(pass_by), stay[..., :-1], last], dim=-1)


def stopping(stops: Float[Tensor, "*rows L"], before: Float[Tensor, "*rows L"]) -> Float[Tensor, "*rows L"]:
    """Return alpha_i, the probability that a search stops at each column, from p_i and alpha_{i-1} = `before`.

    alpha_ij = p_ij q_ij (Raffel et al. 2017, eq. 14) with q_ij = (1 - p_i,j-1) q_i,j-1 + alpha_i-1,j (eq. 13), the
    probability that the search reaches column j.

    Differs from the paper: at the last column p is taken to be 1. The paper divides by a cumulative product, which
    underflows. Here the recurrence is a parallel scan of log2 L steps that only multiplies by probabilities and adds:
    no division, no logarithm, and exact for p of 0 and 1.
    """
    reached, passes = before, F.pad(1 - stops[..., :-1], (1, 0))
    shift = 1
    while shift < stops.shape[-1]:
        reached = reached + passes * F.pad(reached[..., :-shift], (shift, 0))
        passes = passes * F.pad(passes[..., :-shift], (shift, 0))
        shift *= 2
    return torch.cat([stops[..., :-1] * reached[..., :-1], reached[..., -1:]], dim=-1)

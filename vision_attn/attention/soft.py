"""`Attention`, the base of all attention over regions, and `Soft`, the weighted mean of all regions."""

from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vision_attn.contracts import Choice, Forced, in_mode
from vision_attn.contracts.nested import Nested
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.checks import check_range, require


class AttentionOutput(NamedTuple):
    """The output of attention for one word of each row."""

    context: Float[Tensor, "B R D"]
    """z_t, the context vector of the word."""
    alpha: Float[Tensor, "B R L"]
    """The weight of each region; sums to 1."""
    region: Int[Tensor, "B R"] | None = None
    """The one region that was seen; None where z_t is a mixture of all."""
    carry: Nested = None
    """The attention's memory for the next word; see `Attention.start`."""


class Attention(nn.Module):
    """Base class of attentions, phi of Xu et al. 2015, eq. 6: computes the context vector z_t from the scores of
    regions. Override `forward`. The other defaults are for a deterministic attention."""

    reinforced: bool = False
    """Whether its samples need a score-function estimator (`reinforce.py`)."""
    pads: bool = False
    """Whether regions may be padding (`layers/padding.py`), whose scores are -inf; set by the captioner."""
    modes: tuple[str, ...] = ()
    """The modes at test time, where there are several: names for `in_mode`."""
    steerable: bool = False
    """Whether `forward` takes `forced`."""

    @property
    def mode(self) -> str | None:
        """The current mode, one of `modes`; None for an attention without modes."""
        return None

    def sample_expectation_mask(self, num_images: int, like: Tensor) -> Bool[Tensor, "B"] | None:
        """Return which images see the expectation instead of a sample, or None if all are treated alike.

        Called once per batch: it may advance a schedule. The mask is on the device of `like`.
        """
        return None

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> Nested:
        """Return the initial `carry` of `rows` rows: tensors (B, R, ...), or None if the attention remembers nothing.

        The carry is part of the captioner's state, so beam search reorders it.
        """
        return None

    def forward(
        self,
        scores: Float[Tensor, "B R L"],
        regions: Float[Tensor, "B L D"],
        expectation_mask: Bool[Tensor, "B"] | None = None,
        carry: Nested = None,
    ) -> AttentionOutput:
        """Compute z_t = phi({a_i}, {alpha_ti}) (eq. 6).

        An attention that is `steerable` has a last parameter `forced`: a map that takes the place of alpha_t, by
        `normalised`, before anything is seen or sampled.

        expectation_mask: the output of `sample_expectation_mask`.
        carry: the `carry` of the previous output, or the output of `start`.
        """
        raise NotImplementedError

    def attended(
        self,
        scores: Float[Tensor, "B R L"],
        regions: Float[Tensor, "B L D"],
        scale: float = 1.0,
        forced: Forced | None = None,
    ) -> tuple[Float[Tensor, "B R D"], Float[Tensor, "B R L"]]:
        """Return z_t = sum_i alpha_ti a_i (Xu et al. 2015, eq. 13) and alpha_t = softmax(e_t) (eq. 5).

        scale: the factor on the scores.
        forced: a map that takes the place of alpha_t.
        """
        alpha = normalised(scores if scale == 1 else scores * scale, forced)
        return self.expected(alpha, regions), alpha

    def expected(self, alpha: Float[Tensor, "B R L"], regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B R D"]:
        """Return z_t = sum_i alpha_ti a_i (Xu et al. 2015, eq. 13)."""
        return alpha.to(regions.dtype) @ regions

    def choice(
        self,
        alpha: Float[Tensor, "B R T L"],
        region: Int[Tensor, "B R T"] | None,
        word_mask: Bool[Tensor, "B R T"],
        expectation_mask: Bool[Tensor, "B"] | None,
        state: Float[Tensor, "B R T H"],
    ) -> Choice | None:
        """Return the samples of all words with their log-probability and entropy, where `reinforced`; None otherwise.

        word_mask: True at words and False at padding.
        state: the state from which each map was computed.
        """
        return None

    def in_mode(self, mode: str) -> AbstractContextManager[None]:
        """Context manager: attend in one of `modes` at test time."""
        return in_mode(self, mode)

    def restart(self) -> None:
        """Restart the schedules of this module, if it has any."""


class Soft(Attention):
    """Soft attention, z_t = sum_i alpha_ti a_i with alpha_t = softmax(e_t) (Xu et al. 2015, eq. 5 and eq. 13): a
    weighted mean of all regions, with an exact gradient.

    temperature: divides the scores; below 1, maps are sharper. Differs from the paper, where it is 1.

    Fast version: `fast.attend.FastSoft`.
    """

    steerable = True

    def __init__(self, *, temperature: float = 1.0):
        super().__init__()
        check_range("Soft", 0.001, 1000.0, temperature=temperature)
        self.temperature = temperature

    def forward(
        self,
        scores: Float[Tensor, "B R L"],
        regions: Float[Tensor, "B L D"],
        expectation_mask: Bool[Tensor, "B"] | None = None,
        carry: Nested = None,
        forced: Forced | None = None,
    ) -> AttentionOutput:
        fits(scores, regions)
        return AttentionOutput(*self.attended(scores, regions, 1 / self.temperature, forced))


class EachRegion(Attention):
    """Row r of an image sees region r alone, whatever its score."""

    def forward(
        self,
        scores: Float[Tensor, "B L L"],
        regions: Float[Tensor, "B L D"],
        expectation_mask: Bool[Tensor, "B"] | None = None,
        carry: Nested = None,
    ) -> AttentionOutput:
        fits(scores, regions)
        one_hot = torch.eye(regions.shape[1], device=scores.device).expand(len(scores), -1, -1)
        return AttentionOutput(regions, one_hot, carry=carry)


def fits(scores: Tensor, regions: Tensor) -> None:
    """Raise UserError unless `scores` has one score for each region in each row."""
    require("scores", scores, "B R L", "float", B=regions.shape[0], L=regions.shape[1], hint=": one for each region")


def normalised(scores: Float[Tensor, "*rows L"], forced: Forced | None = None) -> Float[Tensor, "*rows L"]:
    """Return alpha = softmax(e) (Xu et al. 2015, eq. 5), in float32 or wider also under autocast, for exact
    log-probabilities and entropies. Scores that overflowed float16 count as its largest number.

    forced: a map that takes the place of alpha.
    """
    if scores.dtype == torch.float16:
        scores = scores.clamp(max=torch.finfo(scores.dtype).max)
    alpha = at_least_float32(scores).softmax(dim=-1)
    return alpha if forced is None else forced.mixed(alpha)


def doubly_stochastic(alpha: Float[Tensor, "B R T L"], real: Bool[Tensor, "B L"] | None = None) -> Float[Tensor, "B R"]:
    """Return sum_i (1 - sum_t alpha_ti)^2 of each caption (Xu et al. 2015, eq. 14).

    alpha: the maps of all words; zero past a caption's end.
    real: the regions to sum over, those that are not padding; None: all.
    """
    terms = (1 - at_least_float32(alpha).sum(dim=2)).square()
    return (terms if real is None else terms * real[:, None]).sum(dim=-1)

"""REINFORCE for a captioner that samples where to look, by hard attention or by glimpses."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.attention.reinforce import Estimate, LeaveOneOut, Reinforce, gradient_variance
from vision_attn.contracts import Caption, Captioner, Criterion


class ReinforceAttention(Criterion):
    """The score-function estimator of hard attention (Xu et al. 2015, eq. 12): its reward is log p of each word.

    For sampled regions, logs `gradient_variance`, the mean squared length of the gradient of a sample with respect to
    its scores. Adds nothing for a captioner that does not sample.

    baseline, credit, reward_weight, entropy_weight: as for `Reinforce`.
    """

    estimates = True

    def __init__(
        self,
        model: Captioner,
        *,
        baseline: Callable[[int], nn.Module] = LeaveOneOut,
        credit: Literal["all", "to go"] = "to go",
        reward_weight: float = 1.0,
        entropy_weight: float = 0.002,
    ):
        super().__init__()
        self.chooses_regions = model.num_glimpses == 0  # the location of a glimpse has a density, and no probability
        self.reinforce: Reinforce | None = None
        if model.reinforced:
            options: dict[str, Any] = {
                "credit": credit,
                "reward_weight": reward_weight,
                "entropy_weight": entropy_weight,
            }
            self.reinforce = Reinforce(model.state_size, baseline=baseline, **options)
            self.num_runs = self.reinforce.num_runs

    def forward(self, caption: Caption, words: Int[Tensor, "B R T"]) -> dict[str, Tensor]:
        if self.reinforce is None or caption.choice is None:
            return {}
        estimate = self.reinforce(caption.choice, caption.log_prob)
        return {"loss": estimate.loss.mean()} | self._variance(estimate, caption)

    @torch.no_grad()
    def measure(self, model: Captioner, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"]) -> dict[str, Any]:
        """Compute `gradient_variance` of regions sampled as in training, at given words. Empty for a captioner that
        cannot sample outside training."""
        if self.reinforce is None or "sample" not in model.modes:
            return {}
        with model.in_mode("sample"):
            caption = model(regions, words, self.num_runs)
        return self._variance(self.reinforce(caption.choice, caption.log_prob), caption)

    def _variance(self, estimate: Estimate, caption: Caption) -> dict[str, Tensor]:
        if not self.chooses_regions:
            return {}
        assert caption.alpha is not None and caption.choice is not None
        return {"gradient_variance": gradient_variance(estimate.advantage, caption.alpha.detach(), caption.choice)}

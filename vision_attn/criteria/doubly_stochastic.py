"""The doubly stochastic penalty of Show, Attend and Tell, which makes a captioner pay equal attention to all regions
over a caption."""

from jaxtyping import Int
from torch import Tensor

from vision_attn.attention.soft import doubly_stochastic
from vision_attn.contracts import Caption, Captioner, Criterion


class DoublyStochastic(Criterion):
    """weight * sum_i (1 - sum_t alpha_ti)^2 (Xu et al. 2015, eq. 14), a mean over captions. Logs it as `penalty`,
    unweighted.

    Adds nothing for a captioner without a map.

    weight: lambda of the paper.
    """

    def __init__(self, model: Captioner, *, weight: float = 1.0):
        super().__init__()
        self.weight = weight

    def forward(self, caption: Caption, words: Int[Tensor, "B R T"]) -> dict[str, Tensor]:
        if caption.alpha is None or not self.weight:
            return {}
        penalty = doubly_stochastic(caption.alpha, caption.real).mean()
        return {"loss": self.weight * penalty, "penalty": penalty.detach()}

"""A penalty that sharpens maps."""

from jaxtyping import Int
from torch import Tensor

from vision_attn.attention.hard import entropy
from vision_attn.contracts import Caption, Captioner, Criterion


class MapEntropy(Criterion):
    """weight * H[alpha_t] summed over the words of a caption, a mean over captions; entropies in nats.

    weight: what a nat of a word's map costs against a nat of its log-probability; below 0, maps get flatter. The maps'
        mean entropy is logged as `entropy` with any criterion. Adds nothing for a captioner without a map.
    """

    def __init__(self, model: Captioner, *, weight: float = 0.1):
        super().__init__()
        self.weight = weight

    def forward(self, caption: Caption, words: Int[Tensor, "B R T"]) -> dict[str, Tensor]:
        if caption.alpha is None or not self.weight:
            return {}
        return {"loss": self.weight * entropy(caption.alpha).sum(dim=-1).mean()}

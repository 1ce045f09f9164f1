"""A penalty on the entropy of attention maps, which sharpens them."""

from jaxtyping import Int
from torch import Tensor

from vision_attn.attention.hard import entropy
from vision_attn.contracts import Caption, Captioner, Criterion


class MapEntropy(Criterion):
    """weight * H[alpha_t] summed over the words of a caption, a mean over captions; entropies in nats.

    Every captioner with a map logs the mean entropy of its maps as `entropy`, with or without this criterion. Adds
    nothing for a captioner without a map.

    weight: the cost of one nat of entropy, in nats of log-probability; below 0, maps get flatter.
    """

    def __init__(self, model: Captioner, *, weight: float = 0.1):
        super().__init__()
        self.weight = weight

    def forward(self, caption: Caption, words: Int[Tensor, "B R T"]) -> dict[str, Tensor]:
        if caption.alpha is None or not self.weight:
            return {}
        return {"loss": self.weight * entropy(caption.alpha).sum(dim=-1).mean()}

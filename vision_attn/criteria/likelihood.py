"""The likelihood of captions."""

from jaxtyping import Int
from torch import Tensor

from vision_attn.contracts import PAD, Caption, Captioner, Criterion


class Likelihood(Criterion):
    """-log p(caption | image), summed over words, a mean over captions. Logs `nll`, the mean over words, in nats."""

    def __init__(self, model: Captioner):
        super().__init__()

    def forward(self, caption: Caption, words: Int[Tensor, "B R T"]) -> dict[str, Tensor]:
        word_mask = words != PAD
        nll = -caption.log_prob.sum()
        return {"loss": nll / word_mask[..., 0].numel(), "nll": (nll / word_mask.sum().clamp(min=1)).detach()}

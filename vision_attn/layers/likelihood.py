"""Log-probabilities of given words under a vocabulary layer, and of classes."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.contracts import PAD
from vision_attn.layers.precision import at_least_float32

BARRED = -1e4
"""The logit of PAD where it is barred: finite in half precision, but with probability 0."""


class WordLogProb(nn.Module):
    """log p of given words under a vocabulary layer. Has no weights.

    Fast version: `fast.likelihood.FastWordLogProb`.
    """

    def forward(
        self,
        output: nn.Linear,
        deep: Float[Tensor, "B R T E"],
        words: Int[Tensor, "B R T"],
        *,
        with_mean: bool = False,
        bars_pad: bool = False,
    ) -> tuple[Float[Tensor, "B R T"], Float[Tensor, "B R T"] | None]:
        """Return log softmax(output(deep))[words] and, if `with_mean`, its mean over the vocabulary: in nats, in
        float32 or wider, 0 at padding.

        bars_pad: whether to take the softmax over all words but PAD. The mean is then not defined.
        """
        logits = barred(output(deep)) if bars_pad else output(deep)
        log_prob, word_mask = class_log_prob(logits), words != PAD
        mean = log_prob.mean(dim=-1).where(word_mask, 0) if with_mean else None
        return log_prob.gather(-1, words[..., None]).squeeze(-1).where(word_mask, 0), mean


def barred(logits: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows V"]:
    """Change logits, or the biases of a vocabulary layer, so that PAD has the probability 0."""
    return logits.index_fill(-1, torch.full((1,), PAD, device=logits.device), BARRED)


def class_log_prob(scores: Float[Tensor, "*rows N"]) -> Float[Tensor, "*rows N"]:
    """Return log p of each class, in nats: the log softmax of the scores, in float32 or wider also under autocast."""
    return at_least_float32(scores).log_softmax(dim=-1)

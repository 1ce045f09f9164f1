"""The loss of maximum likelihood training: -log p of the captions, with label smoothing if asked for."""

from jaxtyping import Int
from torch import Tensor

from vision_attn.contracts import PAD, Caption, Captioner, Criterion
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError


class Likelihood(Criterion):
    """-log p(caption | image), summed over words, a mean over captions. Logs `nll`, the mean over words, in nats.

    smoothing: the share s of label smoothing (Szegedy et al. 2016, section 7): the loss of a word y is
        -(1 - s) log p(y) - s mean_v log p(v), over all words v of the vocabulary. `nll` is not smoothed.

    Raises UserError if it smooths and the captioner has no `mean_log_prob`.
    """

    def __init__(self, model: Captioner, *, smoothing: float = 0.0):
        super().__init__()
        check_range("Likelihood", 0, 1, smoothing=smoothing)
        self.smoothing = smoothing
        model.with_mean = model.with_mean or smoothing > 0

    def forward(self, caption: Caption, words: Int[Tensor, "B R T"]) -> dict[str, Tensor]:
        word_mask = words != PAD
        loss = nll = -caption.log_prob.sum()
        if self.smoothing:
            if caption.mean_log_prob is None:
                raise UserError("this captioner returns no mean_log_prob, so set the smoothing of Likelihood to 0")
            loss = (1 - self.smoothing) * nll - self.smoothing * caption.mean_log_prob.sum()
        return {"loss": loss / word_mask[..., 0].numel(), "nll": (nll / word_mask.sum().clamp(min=1)).detach()}

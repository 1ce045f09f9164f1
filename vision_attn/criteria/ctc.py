"""The loss of connectionist temporal classification (CTC): -log p of a transcript, summed over its alignments."""

from jaxtyping import Int
from torch import Tensor

from vision_attn.contracts import PAD, Caption, Captioner, Criterion


class CTCLoss(Criterion):
    """-log p(transcript | line) of `models/ctc.py`, a mean over transcripts (Graves et al. 2006, eq. 12; a sum there).

    A transcript that needs more columns than its line has adds 0 to the loss, but counts in the mean, so that the mean
    loss of equal parts of a batch is the loss of the batch. Logs `too_long`, the share of such transcripts, and `nll`,
    the mean per character of the others, in nats, where END counts as a character, as in validation.
    """

    def __init__(self, model: Captioner):
        super().__init__()

    def forward(self, caption: Caption, words: Int[Tensor, "B R T"]) -> dict[str, Tensor]:
        log_prob = caption.log_prob.sum(dim=-1)
        fits = ~log_prob.isneginf()
        nll = -log_prob.where(fits, 0).sum()
        characters = ((words != PAD) & fits[..., None]).sum().clamp(min=1)
        return {
            "loss": nll / log_prob.numel(),
            "nll": (nll / characters).detach(),
            "too_long": 1 - fits.to(nll.dtype).mean(),
        }

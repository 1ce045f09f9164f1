"""Compute a smoothed BLEU-4 of single captions from word ids, as a reward for sampled captions (Papineni et al. 2002;
Lin and Och 2004)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.contracts import PAD
from vision_attn.layers.precision import double
from vision_attn.metrics.ngrams import hashed, occurrences


def sentence_bleu(captions: Int[Tensor, "B R T"], references: Int[Tensor, "B M S"]) -> Float[Tensor, "B R"]:
    """Score R captions of each image against its M references, both ended by END, which counts as a word, and padded
    with PAD.

    BLEU of a corpus (Papineni et al. 2002) is the geometric mean of the precisions of n-grams of 1 to 4 words, each
    clipped by the largest number in a reference, times a penalty for captions that are shorter than the closest
    reference. Few single captions have a common n-gram of 4 words, so that most would score 0: for n > 1, one is added
    to the numbers of common and of all n-grams (Lin and Och 2004, BLEU+1).

    Missing references of an image are rows of PAD; without any, its captions score 0. Runs in float64 (float32 on MPS).
    """
    mine, theirs = hashed(captions), hashed(references)
    count = double(occurrences(mine, mine)).clamp(min=1)
    most = double(occurrences(mine[:, :, None], theirs[:, None])).amax(dim=2)  # (B, R, 4, T): in any reference
    # A sum over positions counts an n-gram that occurs c times c times: hence the quotient by c.
    common = (torch.minimum(count, most) / count).where(mine != 0, 0).sum(dim=-1)
    total = double((mine != 0).sum(dim=-1))
    more = (torch.arange(total.shape[-1], device=total.device) > 0).to(total)
    log_precision = ((common + more) / (total + more).clamp(min=1)).log().mean(dim=-1)

    length, lengths = double((captions != PAD).sum(dim=-1)), double((references != PAD).sum(dim=-1))
    # The closest length, of equally close ones the shorter. Missing references are never the closest.
    distance = (lengths[:, None] - length[..., None]).abs() + lengths[:, None] / 1e4
    closest = distance.masked_fill(lengths[:, None] == 0, torch.inf).argmin(dim=-1)
    penalty = (1 - lengths.gather(1, closest) / length.clamp(min=1)).clamp(max=0)
    return (penalty + log_precision).exp()

"""BLEU of single captions, of word ids, on tensors: a reward for sampled captions."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.contracts import PAD
from vision_attn.layers.precise import double
from vision_attn.metrics.cider import hashed, occurrences


def sentence_bleu(captions: Int[Tensor, "B R T"], references: Int[Tensor, "B M S"]) -> Float[Tensor, "B R"]:
    """BLEU-4 of each of R captions against all M references of its image, between 0 and 1 (Papineni et al. 2002).

    The geometric mean of the precisions of 1- to 4-grams, times the brevity penalty exp(1 - r / c) for a caption of
    c < r words, where r is the length of the reference nearest in length, the shorter one of two. To the matches and to
    the number of 2- to 4-grams, 1 is added (Lin and Och 2004): a short caption has no 4-gram to match.

    Captions and references end with END, which counts as a word, for the reason that `cider.CiderD` gives, and are
    filled up with PAD. An image with fewer references has rows of PAD in their place. The result is float64 (float32 on
    MPS).
    """
    mine, theirs = hashed(captions), hashed(references)
    exists = mine != 0
    count = double(occurrences(mine, mine))
    allowed = double(occurrences(mine[:, :, None], theirs[:, None])).amax(dim=2)  # in any one reference
    # A sum over positions, where an n-gram that occurs c times is met c times: hence the division by c.
    matches = (torch.minimum(count, allowed) / count.clamp(min=1) * exists).sum(dim=-1)  # (B, R, 4)
    added = torch.tensor([0, 1, 1, 1], device=captions.device)
    precision = (matches + added) / (exists.sum(dim=-1) + added).clamp(min=1)
    return precision.log().mean(dim=-1).exp() * _brevity(captions, references)


def _brevity(captions: Tensor, references: Tensor) -> Tensor:
    """The brevity penalty of each caption, (B, R)."""
    length, lengths = ((words != PAD).sum(dim=-1) for words in (captions, references))
    length, lengths = length[:, :, None], lengths[:, None]
    distance = 2 * (lengths - length).abs() + (lengths > length)  # so that of two as near the shorter one is nearer
    nearest = distance.masked_fill(lengths == 0, torch.iinfo(distance.dtype).max).argmin(dim=-1, keepdim=True)
    target = lengths.expand(*nearest.shape[:2], -1).gather(-1, nearest)
    return torch.exp(1 - double(target) / double(length).clamp(min=1)).clamp(max=1).squeeze(-1)

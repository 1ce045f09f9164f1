"""Beam search over the words of a caption, with one beam or with diverse groups of beams."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.contracts import END, PAD, Captioner
from vision_attn.decode.hypotheses import Decoded, Selected, Selector
from vision_attn.decode.loop import decoded
from vision_attn.decode.rules import Rules
from vision_attn.fast.best_words import best_words
from vision_attn.fast.versions import fast_version
from vision_attn.system.errors import UserError


def beam_search(
    captioner: Captioner,
    regions: Float[Tensor, "B L D"],
    *,
    beams: int = 3,
    length_power: float = 0.0,
    groups: int = 1,
    diversity: float = 0.5,
    **rules: Any,
) -> Decoded:
    """Return the most likely captions that a beam of width `beams` finds.

    A caption that ends keeps its place in the beam, so the beam narrows as captions end, as in the authors' code.
    Captions that have not ended at the limit are returned without END. Rows are sorted by
    log p / length ** length_power.

    groups: the number of groups of equal size into which the beams are divided (diverse beam search, Vijayakumar
        et al. 2018, algorithm 1). Groups are extended one after the other; the first is an ordinary beam search.
        Returns the best caption of each group.
    diversity: the strength lambda of the Hamming diversity: at each time step, n * diversity nats are subtracted from
        the log-probability of a word that earlier groups chose n times. `log_prob` and `score` do not include this
        penalty.
    rules: arguments of `Rules`.
    """
    if beams < 1:
        raise UserError(f"beams is {beams}, but must be at least 1")
    if groups < 1 or beams % groups:
        raise UserError(f"beams is {beams}, but must be a multiple of the number of groups, {groups}")
    if not 0 <= diversity < torch.inf:
        raise UserError(f"diversity is {diversity}, but must be at least 0")
    selector = Beam(beams, diversity, groups)
    return decoded(captioner, regions, beams, Rules(captioner, regions.device, **rules), selector, length_power)


@dataclass(frozen=True)
class Beam(Selector):
    """Selects the next rows of a `beam_search`."""

    beams: int
    diversity: float
    groups: int
    reorders = True

    def __call__(
        self, logits: Tensor, barred: Tensor, total: Tensor, ended: Tensor, uniform: Tensor | None = None
    ) -> Selected:
        best = best_words(logits, min(self.beams, logits.shape[-1]), barred)
        if self.groups == 1:
            return _extend(*best, total, ended, self.beams)
        return _extend_groups(*best, total, ended, self.beams, self.groups, self.diversity)


def _extend(
    log_prob: Tensor, word: Tensor, total: Tensor, ended: Tensor, K: int, penalty: Tensor | None = None
) -> Selected:
    """Return the next K rows of each image: captions that have ended stay, and the best continuations of the others
    fill the rest. If there are fewer than K continuations, the remaining rows have total -inf and count as ended.

    log_prob, word: the best continuations of each row, at least K if there are as many.
    penalty: subtracted from `log_prob` when continuations are compared.
    """
    rows, continuations = log_prob.shape[1:]
    if (kernels := fast_version("beam", log_prob)) and rows + rows * continuations <= kernels.MOST:
        taken = min(K, rows + rows * continuations)
        parent, word, gained, total, ended = kernels.extend(log_prob, word, total, ended, taken, penalty, END, PAD)
        return Selected(word, gained, total, ended, parent)
    # 1. The candidates: the rows that have ended, then the continuations of the others.
    finished = total.masked_fill(~ended, -torch.inf)
    compared = log_prob if penalty is None else log_prob - penalty
    continued = (total[..., None] + compared).masked_fill(ended[..., None], -torch.inf).flatten(1)
    # 2. The best K of them; a row that has ended keeps its place.
    rank = torch.cat([finished.masked_fill(finished.isfinite(), torch.inf), continued], dim=1)
    candidate = rank.topk(min(K, rank.shape[1])).indices
    # 3. The row and the word of each candidate; rows that have ended or are empty have no word.
    is_finished, continuation = candidate < rows, (candidate - rows).clamp(min=0)
    parent = candidate.where(is_finished, (candidate - rows).div(continuations, rounding_mode="floor"))
    total = torch.cat([finished, continued], dim=1).gather(1, candidate)
    wordless = is_finished | total.isneginf()
    gained = log_prob.flatten(1).gather(1, continuation).masked_fill(wordless, 0)
    word = word.flatten(1).gather(1, continuation).masked_fill(wordless, PAD)
    return Selected(word, gained, total, wordless | (word == END), parent)


def _extend_groups(
    log_prob: Tensor, word: Tensor, total: Tensor, ended: Tensor, K: int, groups: int, diversity: float
) -> Selected:
    """Extend the rows of each group by `_extend`, with a penalty on the words that earlier groups have just chosen.

    The K most likely words of a row suffice: earlier groups chose at most K - K / groups of them, so the K / groups
    best words after the penalty are among them.
    """
    rows = total.shape[1] // groups
    extended, chosen = [], word.new_empty(len(word), 0)
    for group in range(groups):
        mine = slice(group * rows, (group + 1) * rows)
        penalty = diversity * (word[:, mine, :, None] == chosen[:, None, None]).sum(dim=-1)
        new = _extend(log_prob[:, mine], word[:, mine], total[:, mine], ended[:, mine], K // groups, penalty)
        assert new.parent is not None
        extended.append(new._replace(parent=new.parent + group * rows))
        chosen = torch.cat([chosen, new.word], dim=1)
    return Selected(*(torch.cat(fields, dim=1) for fields in zip(*extended, strict=True)))

"""Decoding of models that label columns: best path and prefix beam search over log p (B, L, V), where 0 is the blank.

Both decode all lines of a batch together. Each character of the result comes with its map: the columns that are
labelled with it in the most likely alignment, weighted by their probability.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.contracts import END, PAD
from vision_attn.decode.hypotheses import Decoded
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.errors import UserError

BLANK = PAD
NEVER = -1e30
"""The logarithm of 0. Unlike -inf, sums of it have no NaN."""
MULTIPLIER = 6364136223846793005
"""The factor in the hash of a prefix, h(prefix c) = h(prefix) MULTIPLIER + c + 1 modulo 2^64 (Knuth's generator)."""


@torch.no_grad()
def best_path(frames: Float[Tensor, "B L V"], *, max_words: int = 1000, never: Sequence[int] = ()) -> Decoded:
    """Return the most likely label of each column, without repetitions and blanks (Graves et al. 2006, eq. 4).

    The `score` of a transcript is log p of this one alignment. A transcript of more than `max_words` characters, END
    included, is cut and has no END.

    never: labels that are not produced.
    """
    best, label = _barred(frames, never).max(dim=-1)
    begins = label != torch.nn.functional.pad(label, (1, 0))[:, :-1]
    word_mask = begins & (label != BLANK)
    length = word_mask.sum(dim=1).clamp(max=max_words)
    order = (~word_mask).int().argsort(dim=1, stable=True)
    words = label.gather(1, order)[:, : int(length.max())] if len(length) else label[:, :0]
    words = words * (torch.arange(words.shape[1], device=words.device) < length[:, None])
    return _decoded(frames, words[:, None], length[:, None], best.sum(dim=1)[:, None], max_words)


@torch.no_grad()
def prefix_beam_search(
    frames: Float[Tensor, "B L V"], *, beams: int = 8, max_words: int = 1000, never: Sequence[int] = ()
) -> Decoded:
    """Return the most likely transcripts that a beam of `beams` prefixes finds, best first. Their probabilities are
    summed over alignments (Hannun et al. 2014, algorithm 1).

    If a prefix is extended to another prefix of the beam, their alignments are added. Equal prefixes are found by
    64-bit hashes. Transcripts are cut after `max_words` characters, END included. A cut transcript has no END, and its
    probability is that of all transcripts that begin with it.

    beams: the number of prefixes that are kept at each column.
    never: labels that are not produced.
    """
    if beams < 1:
        raise UserError(f"beams is {beams}, but must be at least 1")
    frames = _barred(frames, never)
    B, L, _ = frames.shape
    limit = min(max_words, L)
    words = torch.zeros(B, 1, max(1, limit), dtype=torch.long, device=frames.device)
    empty = words.new_zeros(B, 1), words.new_ones(B, 1), frames.new_zeros(B, 1), frames.new_full((B, 1), NEVER)
    beam = _Prefixes(words, *empty)
    for column in range(L):
        blank, character, longer = _extended(beam, frames[:, column], limit, max_words)
        character, longer = _merged(beam, character, longer)
        beam = _pruned(beam, blank, character, longer, beams)
    score, order = beam.total.sort(dim=1, descending=True, stable=True)
    length = beam.length.gather(1, order)
    words = beam.words.gather(1, order[..., None].expand_as(beam.words))
    return _decoded(frames, words[..., : int(length.max())], length, score, max_words)


class _Prefixes(NamedTuple):
    """K prefixes of each line, with log p of all their alignments with the columns so far."""

    words: Int[Tensor, "B K T"]
    length: Int[Tensor, "B K"]
    code: Int[Tensor, "B K"]
    """The hash of a prefix."""
    blank: Float[Tensor, "B K"]
    """log p of the alignments that end with a blank."""
    character: Float[Tensor, "B K"]
    """log p of the alignments that end with the last character."""

    @property
    def total(self) -> Float[Tensor, "B K"]:
        return torch.logaddexp(self.blank, self.character)

    @property
    def last(self) -> Int[Tensor, "B K"]:
        """The last character; the blank for the empty prefix."""
        last = self.words.gather(2, (self.length - 1).clamp(min=0)[..., None])[..., 0]
        return last.where(self.length > 0, BLANK)


def _extended(
    beam: _Prefixes, emitted: Float[Tensor, "B V"], limit: int, max_words: int
) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"], Float[Tensor, "B K V"]]:
    """Return log p after one more column: of each prefix if the column is a blank, of each prefix if the column repeats
    its last character, and of each prefix with one more character."""
    total, last, V = beam.total, beam.last, emitted.shape[-1]
    emitted = emitted[:, None]
    blank = total + emitted[..., BLANK]
    character = beam.character + emitted.expand(-1, last.shape[1], -1).gather(2, last[..., None])[..., 0]
    cut = beam.length == max_words  # labels that follow are free
    blank, character = total.where(cut, blank), character.masked_fill(cut, NEVER)
    labels = torch.arange(V, device=emitted.device)
    same = labels == last[..., None]  # after an equal character a new one begins only after a blank
    longer = torch.where(same, beam.blank[..., None], total[..., None]) + emitted
    barred = (labels == BLANK) | (labels == END) | (beam.length >= limit)[..., None]
    return blank, character, longer.masked_fill(barred, NEVER)


def _merged(
    beam: _Prefixes, character: Float[Tensor, "B K"], longer: Float[Tensor, "B K V"]
) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K V"]]:
    """Merge equal prefixes: if prefix i with one more character equals prefix j, add its alignments to those of j."""
    last, total = beam.last, beam.total
    equal = beam.code[:, :, None] * MULTIPLIER + last[:, None] + 1 == beam.code[:, None]  # (B, i, j)
    real = total > NEVER / 2  # a wide beam also keeps extensions that are not possible, or were added elsewhere
    equal &= (real & (beam.length > 0))[:, None] & real[:, :, None]
    appended = last[:, None].expand_as(equal)
    joins = longer.gather(2, appended).masked_fill(~equal, NEVER)
    character = torch.logaddexp(character, joins.logsumexp(dim=1))
    listed = torch.zeros_like(longer, dtype=torch.int32).scatter_add_(2, appended, equal.int())
    return character, longer.masked_fill(listed > 0, NEVER)


def _pruned(
    beam: _Prefixes,
    blank: Float[Tensor, "B K"],
    character: Float[Tensor, "B K"],
    longer: Float[Tensor, "B K V"],
    beams: int,
) -> _Prefixes:
    """Return the `beams` most likely of the old prefixes and of those with one more character."""
    (_, K, V), most = longer.shape, beam.words.shape[2]
    value, kept = torch.cat([torch.logaddexp(blank, character), longer.flatten(1)], dim=1).topk(min(beams, K + K * V))
    old = kept < K
    parent = kept.where(old, (kept - K).div(V, rounding_mode="floor"))
    label = ((kept - K) % V).where(~old, BLANK)
    words = beam.words.gather(1, parent[..., None].expand(-1, -1, most))
    length, code = beam.length.gather(1, parent), beam.code.gather(1, parent)
    place = length.clamp(max=most - 1)[..., None]
    return _Prefixes(
        words.scatter(2, place, torch.where(old, words.gather(2, place)[..., 0], label)[..., None]),
        length + (~old & (value > NEVER / 2)).long(),
        torch.where(old, code, code * MULTIPLIER + label + 1),
        blank.gather(1, parent).where(old, NEVER),
        torch.where(old, character.gather(1, parent), value),
    )


@torch.no_grad()
def align(frames: Float[Tensor, "B L V"], words: Int[Tensor, "B R T"]) -> Float[Tensor, "B R T L"]:
    """Return the columns of each character in the most likely alignment of a transcript, weighted by their probability.

    The weights of a character sum to 1, even if its probabilities are small. They are 0 at END, and everywhere if a
    transcript does not fit into the columns.

    words: ids of characters, then END. A transcript without END has been cut: labels after the column where its last
        character begins are free.
    """
    frames = _finite(frames)
    (B, R, T), L = words.shape, frames.shape[1]
    cut = (words != END).all(dim=-1, keepdim=True)
    words = words * (words > END)
    length = (words > 0).sum(dim=-1)
    labels = torch.stack([torch.full_like(words, BLANK), words], dim=-1).flatten(2)
    labels = torch.nn.functional.pad(labels, (0, 1))  # blank, y_1, blank, y_2, .. blank: (B, R, S)
    emitted = frames.mT.gather(1, labels.flatten(1)[..., None].expand(-1, -1, L)).view(B, R, -1, L)
    skips = (labels != BLANK) & (labels != torch.nn.functional.pad(labels, (2, 0))[..., :-2])
    state = torch.arange(labels.shape[-1], device=words.device)
    emitted = emitted.masked_fill((cut & (state == 2 * length[..., None]) & (state > 0))[..., None], 0)
    value = emitted[..., 0].where(state < 2, NEVER)
    steps = []
    for column in range(1, L):
        previous, second = (torch.nn.functional.pad(value, (n, 0), value=-torch.inf)[..., :-n] for n in (1, 2))
        value, step = torch.stack([value, previous, second.where(skips, -torch.inf)], dim=-1).max(dim=-1)
        value = value + emitted[..., column]
        steps.append(step)
    last = torch.stack([2 * length, (2 * length - 1).clamp(min=0)], dim=-1)
    best_value, best = value.gather(2, last).max(dim=-1)
    place = last.gather(2, best[..., None])[..., 0]
    path = [place]
    for step in reversed(steps):
        place = place - step.gather(2, place[..., None])[..., 0]
        path.append(place)
    here = torch.stack(path[::-1], dim=-1)[:, :, None] == (2 * torch.arange(T, device=words.device) + 1)[:, None]
    here &= (labels[..., 1::2] != BLANK)[..., None] & (best_value > NEVER / 2)[..., None, None]
    return emitted[:, :, 1::2].masked_fill(~here, NEVER).softmax(dim=-1) * here


def _barred(frames: Tensor, never: Sequence[int]) -> Tensor:
    """Return the frames with log p = `NEVER` for END and the labels `never`."""
    return _finite(frames).index_fill(-1, torch.tensor([END, *never], device=frames.device), NEVER)


def _finite(frames: Tensor) -> Tensor:
    """Return the frames in float32 or wider, with `NEVER` for -inf."""
    return at_least_float32(frames).clamp(min=NEVER)


def _decoded(frames: Tensor, words: Tensor, length: Tensor, score: Tensor, max_words: int) -> Decoded:
    """Return the transcripts with END, if there is room for it, with the log-probability of each at its last word, and
    with maps. Impossible rows have score -inf and no words."""
    score = score.masked_fill(score < NEVER / 2, -torch.inf)
    possible = score.isfinite()[..., None]
    T = min(words.shape[2] + 1, max_words)
    position, length = torch.arange(T, device=words.device), length[..., None]
    words = torch.nn.functional.pad(words, (0, 1))[..., :T].masked_fill((position >= length) | ~possible, PAD)
    words = words.masked_fill((position == length) & possible, END)
    log_prob = torch.where((position == length.clamp(max=T - 1)) & possible, score[..., None], 0.0)
    return Decoded(words, log_prob, score, align(frames, words))

"""Words from a captioner: greedy, sampled, and by beam search.

Words in `never` (a vocabulary's unknown, say) are not said. All images of a batch are decoded together, over `start`
and `step`; nothing is copied to the host inside the loop on a GPU. On a CPU, where looking is free, images whose
captions have ended are left behind.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

PAD, END = 0, 1
"""The word that pads and starts, and is never said; the word that ends a caption."""


class Decoded(NamedTuple):
    """Captions with their log-probabilities and attention, an image's rows best first.

    A caption that never ended within the limit has no END in it. Positions past a caption's end hold zeros.
    """

    words: Int[Tensor, "B R T"]
    log_prob: Float[Tensor, "B R T"]
    """Of each word, END included, in nats."""
    alpha: Float[Tensor, "B R T L"]
    region: Int[Tensor, "B R T"] | None
    """The one region seen at each word; None where all were."""
    score: Float[Tensor, "B R"]
    """What the rows are sorted by: the sum of log-probabilities, divided by length ** length_power."""


@torch.no_grad()
def greedy(captioner, regions: Float[Tensor, "B L D"], *, max_words: int = 30, never: Sequence[int] = ()) -> Decoded:
    """The most likely word at each turn."""
    return _one_by_one(captioner, regions, 1, max_words, never, lambda log_prob: log_prob.argmax(dim=-1))


@torch.no_grad()
def sample(
    captioner,
    regions: Float[Tensor, "B L D"],
    *,
    rows: int = 1,
    max_words: int = 30,
    never: Sequence[int] = (),
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> Decoded:
    """`rows` captions of each image drawn word by word, from the smallest set of words that holds `top_p` of the
    probability (Holtzman et al. 2020), after division of the logits by `temperature`."""
    if temperature <= 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature {temperature} must be above 0 and top_p {top_p} in (0, 1]")

    def draw(log_prob: Tensor) -> Tensor:
        ordered, order = (log_prob / temperature).softmax(dim=-1).sort(dim=-1, descending=True)
        ordered = ordered.where(ordered.cumsum(dim=-1) - ordered < top_p, 0)  # the first word always stays
        place = torch.multinomial(ordered.flatten(0, 1), 1, generator=generator).view(*ordered.shape[:2], 1)
        return order.gather(-1, place).squeeze(-1)

    return _one_by_one(captioner, regions, rows, max_words, never, draw)


@torch.no_grad()
def beam_search(
    captioner,
    regions: Float[Tensor, "B L D"],
    *,
    beams: int = 3,
    max_words: int = 30,
    never: Sequence[int] = (),
    length_power: float = 0.0,
) -> Decoded:
    """The likeliest captions that a beam of `beams` finds.

    A caption that ends keeps its place in the beam, so the beam narrows as captions end, as in the authors' code; those
    that have not ended at the limit are returned as they stand. Rows are sorted by log p / length ** length_power.
    """
    if beams < 1 or max_words < 1:
        raise ValueError(f"beams ({beams}) and max_words ({max_words}) must be at least 1")
    memory, state = captioner.start(regions, 1)  # all beams begin as one
    word = torch.zeros(len(regions), 1, dtype=torch.long, device=regions.device)
    total = torch.zeros(len(regions), 1, device=regions.device)
    ended = torch.zeros(len(regions), 1, dtype=torch.bool, device=regions.device)
    images, turns = _Open(len(regions), regions.device), []
    barred = _barred(never, regions.device)
    for _ in range(max_words):
        logits, state = captioner.step(word, state, memory)
        parent, word, gained, total, ended = _extend(_log_prob(logits, barred), total, ended, beams)
        state = _of(_rows, state, parent)
        turns.append(images.spread(parent=parent, word=word, gained=gained, alpha=state.alpha, region=state.region))
        if (going := images.going(ended)) is not None:
            if not len(going):
                break
            word, total, ended = word[going], total[going], ended[going]
            memory, state = _of(Tensor.__getitem__, memory, going), _of(Tensor.__getitem__, state, going)
    return _trace(turns, length_power)


class _Open:
    """Which images of a batch are still being decoded.

    On a CPU those whose captions have all ended are taken out once they are a quarter. On a GPU, to look would be to
    wait, so all stay.
    """

    def __init__(self, num_images: int, device: torch.device):
        self.num_images, self.index = num_images, torch.arange(num_images, device=device)

    def going(self, ended: Bool[Tensor, "B R"]) -> Int[Tensor, "N"] | None:
        """The images to go on with, counted among those open now; None: with all of them."""
        if ended.is_cuda:
            return None
        going = (~ended.all(dim=1)).nonzero().squeeze(1)
        if 4 * len(going) > 3 * len(ended):
            return None
        self.index = self.index[going]
        return going

    def spread(self, **parts: Tensor | None) -> dict[str, Tensor]:
        """A turn of the open images as one of all images: those that have ended stay as they are. Without its Nones."""
        turn = {name: part for name, part in parts.items() if part is not None}
        if len(self.index) == self.num_images:
            return turn
        spread = {name: part.new_zeros(self.num_images, *part.shape[1:]) for name, part in turn.items()}
        for name, part in turn.items():
            spread[name][self.index] = part
        if "parent" in turn:
            closed = torch.ones(self.num_images, dtype=torch.bool).index_fill(0, self.index, False)
            spread["parent"][closed] = torch.arange(turn["parent"].shape[1])
        return spread


def _barred(never: Sequence[int], device: torch.device) -> Int[Tensor, "N"]:
    """The words that may not be said, on the device before the loop begins."""
    return torch.tensor(sorted({PAD, *never}), device=device)


def _log_prob(logits: Tensor, barred: Tensor) -> Tensor:
    """log p of every word, as the model has it; minus infinity for those that may not be said."""
    precise = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(precise).log_softmax(dim=-1).index_fill(-1, barred, -torch.inf)


def _extend(log_prob: Tensor, total: Tensor, ended: Tensor, K: int) -> tuple[Tensor, ...]:
    """The next K rows of each image: those that have ended stay, the best continuations of the others fill the rest.

    Returns each new row's parent, word, gain in log-probability, total, and whether it has ended.
    """
    B, rows, V = log_prob.shape
    open_total = (total[..., None] + log_prob).masked_fill(ended[..., None], -torch.inf).flatten(1)
    best, index = open_total.topk(min(K, open_total.shape[1]))
    here = torch.arange(rows, device=total.device).expand(B, rows)
    parent = torch.cat([here, index // V], dim=1)
    word = torch.cat([torch.zeros_like(here), index % V], dim=1)
    candidate = torch.cat([total.masked_fill(~ended, -torch.inf), best], dim=1)
    rank = torch.cat([torch.where(ended & total.isfinite(), torch.inf, -torch.inf), best], dim=1)

    kept = rank.topk(min(K, rank.shape[1])).indices
    parent, word, candidate = (part.gather(1, kept) for part in (parent, word, candidate))
    was_ended = ended.gather(1, parent) & (kept < rows)
    gained = (candidate - total.gather(1, parent)).where(~was_ended & candidate.isfinite(), 0)
    # A beam wider than the language has rows of probability zero: they count as ended, and give way to any other.
    word = word.masked_fill(candidate.isneginf(), 0)
    return parent, word, gained, candidate, was_ended | (word == END) | candidate.isneginf()


def _trace(turns: list[dict[str, Tensor]], length_power: float) -> Decoded:
    """Follow each row's parents from the last turn to the first, then sort the rows."""
    parent = turns[-1]["parent"]
    row = torch.arange(parent.shape[1], device=parent.device).expand_as(parent)
    traced = []
    for turn in reversed(turns):
        traced.append({name: _rows(part, row) for name, part in turn.items() if name != "parent"})
        row = turn["parent"].gather(1, row)
    return _sorted(traced[::-1], length_power)


def _one_by_one(
    captioner, regions: Tensor, rows: int, max_words: int, never: Sequence[int], choose: Callable[[Tensor], Tensor]
) -> Decoded:
    """Every row grows by the word that `choose` makes of its log-probabilities, (B, R, V) -> (B, R)."""
    memory, state = captioner.start(regions, rows)
    word = torch.zeros(len(regions), rows, dtype=torch.long, device=regions.device)
    ended = torch.zeros_like(word, dtype=torch.bool)
    images, turns = _Open(len(regions), regions.device), []
    barred = _barred(never, regions.device)
    for _ in range(max_words):
        logits, state = captioner.step(word, state, memory)
        log_prob = _log_prob(logits, barred)
        word = choose(log_prob).masked_fill(ended, 0)
        gained = log_prob.gather(-1, word[..., None]).squeeze(-1).masked_fill(ended, 0)
        turns.append(images.spread(word=word, gained=gained, alpha=state.alpha, region=state.region))
        ended = ended | (word == END)
        if (going := images.going(ended)) is not None:
            if not len(going):
                break
            word, ended = word[going], ended[going]
            memory, state = _of(Tensor.__getitem__, memory, going), _of(Tensor.__getitem__, state, going)
    return _sorted(turns, 0.0)


def _sorted(turns: list[dict[str, Tensor]], length_power: float) -> Decoded:
    """Rows best first; nothing where a caption has no word. A row without any word is none that a beam found."""
    whole = {name: torch.stack([turn[name] for turn in turns], dim=2) for name in turns[0]}
    said = whole["word"] != 0
    score = whole["gained"].sum(dim=-1).where(said[..., 0], -torch.inf) / said.sum(dim=-1).clamp(min=1) ** length_power
    score, order = score.sort(dim=1, descending=True, stable=True)
    whole = {name: _rows(part, order) for name, part in whole.items()}
    said = whole["word"] != 0
    region = whole["region"] * said if "region" in whole else None
    return Decoded(whole["word"], whole["gained"], whole["alpha"] * said[..., None], region, score)


def _of(take: Callable[[Tensor, Tensor], Tensor], parts: tuple, index: Tensor) -> tuple:
    """The parts of a memory or a state, `take(part, index)` in place of each that there is."""
    return type(parts)(*(None if part is None else take(part, index) for part in parts))


def _rows(part: Tensor, index: Tensor) -> Tensor:
    """part[b, index[b, k]] for a tensor (B, R, ...) and indices (B, K)."""
    shape = *index.shape, *part.shape[2:]
    return part.gather(1, index.view(*index.shape, *[1] * (part.dim() - 2)).expand(shape))

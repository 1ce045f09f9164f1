"""Captions from any captioner: greedy, sampled, and by beam search.

All images of a batch are decoded together, with `start` and `step` of the `Captioner` contract. On a GPU nothing is
copied to the host inside the loop. On a CPU, where that costs nothing, images whose captions have ended leave the
batch. Words in `never`, such as a vocabulary's unknown word, are not produced.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vision_attn.contracts import END, PAD, Captioner, Look
from vision_attn.layers.best_words import all_words, best_words
from vision_attn.layers.nested import Nested, map_tensors, take_images


class Decoded(NamedTuple):
    """Captions with their log-probabilities and maps, an image's rows best first.

    A caption that did not end within the limit has no END. Positions past a caption's end hold zeros. Rows that the
    beam never filled, because the language has fewer captions, come last with score -inf and no words.
    """

    words: Int[Tensor, "B R T"]
    log_prob: Float[Tensor, "B R T"]
    """Of each word, END included, in nats."""
    score: Float[Tensor, "B R"]
    """What rows are sorted by: the sum of log-probabilities, divided by length ** length_power."""
    alpha: Float[Tensor, "B R T L"] | None = None
    """The map of each word; None where the captioner has none."""
    region: Int[Tensor, "B R T"] | None = None
    """The one region seen at each word; None where all regions were seen."""
    heads: Float[Tensor, "B R T K L"] | None = None
    """The maps of each attention head; None where there are no heads."""


@torch.no_grad()
def greedy(
    captioner: Captioner, regions: Float[Tensor, "B L D"], *, max_words: int = 30, never: Sequence[int] = ()
) -> Decoded:
    """The most likely word at each time step."""

    def most_likely(logits: Tensor, barred: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.squeeze(-1) for part in best_words(logits, 1, barred))

    return _one_by_one(captioner, regions, 1, max_words, never, most_likely)


@torch.no_grad()
def sample(
    captioner: Captioner,
    regions: Float[Tensor, "B L D"],
    *,
    rows: int = 1,
    max_words: int = 30,
    never: Sequence[int] = (),
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> Decoded:
    """`rows` captions of each image, sampled word by word from the smallest set of words with `top_p` of the
    probability (Holtzman et al. 2020), after the logits are divided by `temperature`."""
    if temperature <= 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature {temperature} must be above 0 and top_p {top_p} in (0, 1]")

    def sample_word(logits: Tensor, barred: Tensor) -> tuple[Tensor, Tensor]:
        log_prob = all_words(logits, barred)
        ordered, order = (log_prob / temperature).softmax(dim=-1).sort(dim=-1, descending=True)
        ordered = ordered.where(ordered.cumsum(dim=-1) - ordered < top_p, 0)  # the first word always stays
        chosen = ordered.flatten(0, 1).multinomial(1, generator=generator).view(*ordered.shape[:2], 1)
        word = order.gather(-1, chosen)
        return log_prob.gather(-1, word).squeeze(-1), word.squeeze(-1)

    return _one_by_one(captioner, regions, rows, max_words, never, sample_word)


@torch.no_grad()
def beam_search(
    captioner: Captioner,
    regions: Float[Tensor, "B L D"],
    *,
    beams: int = 3,
    max_words: int = 30,
    never: Sequence[int] = (),
    length_power: float = 0.0,
) -> Decoded:
    """The most likely captions that a beam of width `beams` finds.

    A caption that ends keeps its place in the beam, so the beam narrows as captions end, as in the authors' code; those
    that have not ended at the limit are returned without END. Rows are sorted by log p / length ** length_power.
    """
    if beams < 1:
        raise ValueError(f"beams is {beams}, but must be at least 1")
    _check(captioner, max_words)
    memory, state = captioner.start(regions, 1)  # all beams begin as one
    word = torch.zeros(len(regions), 1, dtype=torch.long, device=regions.device)
    total = torch.zeros(len(regions), 1, device=regions.device)
    ended = torch.zeros(len(regions), 1, dtype=torch.bool, device=regions.device)
    active, steps = _Active(len(regions), regions.device), []
    barred = _barred(never, regions.device)
    for _ in range(max_words):
        logits, state, look = captioner.step(word, state, memory)
        best = best_words(logits, min(beams, logits.shape[-1]), barred)
        rows = word.shape[1]
        parent, word, gained, total, ended = _extend(*best, total, ended, beams)
        if beams > 1:
            state = _take_rows(state, parent)
        found = {"parent": parent, "word": word, "gained": gained, "filled": total > -torch.inf}
        steps.append(active.scatter(found | _maps(look), rows))
        if (going := active.going(ended)) is not None:
            if not len(going):
                break
            memory, state, word, total, ended = take_images((memory, state, word, total, ended), going)
    return _trace(steps, length_power)


def _check(captioner: Captioner, max_words: int) -> None:
    longest = captioner.max_length
    if max_words < 1 or (longest is not None and max_words > longest):
        limit = "" if longest is None else f" and at most the captioner's max_length, {longest}"
        raise ValueError(f"max_words is {max_words}, but must be at least 1{limit}")


class _Active:
    """Which images of a batch are still being decoded.

    On a CPU, images whose captions have all ended leave the batch once they are a quarter of it. On a GPU, finding out
    would need a synchronisation, so all stay.
    """

    def __init__(self, num_images: int, device: torch.device):
        self.num_images, self.index = num_images, torch.arange(num_images, device=device)

    def going(self, ended: Bool[Tensor, "B R"]) -> Int[Tensor, "N"] | None:
        """Indices, among the active images, of those to continue with; None: all."""
        if ended.is_cuda:
            return None
        going = (~ended.all(dim=1)).nonzero().squeeze(1)
        if 4 * len(going) > 3 * len(ended):
            return None
        self.index = self.index[going]
        return going

    def scatter(self, step: dict[str, Tensor], rows: int = 0) -> dict[str, Tensor]:
        """Scatter the active images' outputs of one time step to the full batch; finished images are unchanged.

        `rows`: how many rows each image of a beam had before. A finished image fills no more.
        """
        if len(self.index) == self.num_images:
            return step
        whole = {name: part.new_zeros(self.num_images, *part.shape[1:]) for name, part in step.items()}
        for name, part in step.items():
            whole[name][self.index] = part
        if "parent" in step:
            finished = torch.ones(self.num_images, dtype=torch.bool).index_fill(0, self.index, False)
            row = torch.arange(step["parent"].shape[1])
            whole["parent"][finished] = row.clamp(max=rows - 1)
            whole["filled"][finished] = row < rows
        return whole


def _maps(look: Look | None) -> dict[str, Tensor]:
    """The fields of `look` that are not None."""
    return {} if look is None else {name: part for name, part in look._asdict().items() if part is not None}


def _barred(never: Sequence[int], device: torch.device) -> Int[Tensor, "N"]:
    """The words that may not be produced, copied to the device before the loop."""
    return torch.tensor(sorted({PAD, *never}), device=device)


def _take_rows(nested: Nested, rows: Int[Tensor, "B K"]) -> Nested:
    """Select `rows` of each image, of tensors (B, R, ...): (B, K, ...)."""
    image = torch.arange(len(rows), device=rows.device)[:, None]

    def take(part: Tensor) -> Tensor:  # copies whole rows, which `gather` does not
        index = (image * part.shape[1] + rows).flatten()
        return part.flatten(0, 1).index_select(0, index).unflatten(0, rows.shape)

    return map_tensors(take, nested)


def _extend(log_prob: Tensor, word: Tensor, total: Tensor, ended: Tensor, K: int) -> tuple[Tensor, ...]:
    """The next K rows of each image: captions that have ended stay, the best continuations of the others fill the rest.

    `log_prob` and `word` hold the best continuations of each row, at least K if there are as many. Returns each new
    row's parent, word, gain in log-probability, total, and whether it has ended. If there are fewer than K
    continuations, the remaining rows have total -inf and count as ended.
    """
    rows, each = log_prob.shape[1:]
    stay = total.masked_fill(~ended, -torch.inf)
    go_on = (total[..., None] + log_prob).masked_fill(ended[..., None], -torch.inf).flatten(1)
    rank = torch.cat([stay.masked_fill(stay.isfinite(), torch.inf), go_on], dim=1)
    kept = rank.topk(min(K, rank.shape[1])).indices

    stays = kept < rows
    parent = kept.where(stays, (kept - rows).div(each, rounding_mode="floor"))
    total = torch.cat([stay, go_on], dim=1).gather(1, kept)
    nobody, option = stays | total.isneginf(), (kept - rows).clamp(min=0)
    gained = log_prob.flatten(1).gather(1, option).masked_fill(nobody, 0)
    word = word.flatten(1).gather(1, option).masked_fill(nobody, PAD)
    return parent, word, gained, total, nobody | (word == END)


def _trace(steps: list[dict[str, Tensor]], length_power: float) -> Decoded:
    """Follow each row's parents from the last time step to the first, then sort the rows."""
    parent = steps[-1]["parent"]
    row = torch.arange(parent.shape[1], device=parent.device).expand_as(parent)
    traced, looked = [], []
    for step in reversed(steps):
        traced.append({name: step[name].gather(1, row) for name in ("word", "gained", "filled")})
        row = step["parent"].gather(1, row)
        looked.append(row)
    maps = [{name: part for name, part in step.items() if name in Look._fields} for step in steps]
    return _sorted(traced[::-1], maps, looked[::-1], length_power)


def _one_by_one(
    captioner: Captioner,
    regions: Tensor,
    rows: int,
    max_words: int,
    never: Sequence[int],
    choose: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
) -> Decoded:
    """Decode word by word: `choose` maps logits (B, R, V) and the words that may not be produced to the next word of
    each row and its log-probability, (B, R) each."""
    _check(captioner, max_words)
    memory, state = captioner.start(regions, rows)
    word = torch.zeros(len(regions), rows, dtype=torch.long, device=regions.device)
    ended = torch.zeros_like(word, dtype=torch.bool)
    active, steps, maps = _Active(len(regions), regions.device), [], []
    barred = _barred(never, regions.device)
    for _ in range(max_words):
        logits, state, look = captioner.step(word, state, memory)
        gained, word = choose(logits, barred)
        word, gained = word.masked_fill(ended, PAD), gained.masked_fill(ended, 0)
        steps.append(active.scatter({"word": word, "gained": gained}))
        maps.append(active.scatter(_maps(look)))
        ended = ended | (word == END)
        if (going := active.going(ended)) is not None:
            if not len(going):
                break
            memory, state, word, ended = take_images((memory, state, word, ended), going)
    row = torch.arange(rows, device=regions.device).expand(len(regions), rows)
    return _sorted(steps, maps, [row] * len(steps), 0.0)


def _sorted(
    steps: list[dict[str, Tensor]], maps: list[dict[str, Tensor]], looked: list[Tensor], length_power: float
) -> Decoded:
    """Stack the time steps and sort rows by score. Rows that were never filled come last and are masked.

    `looked` (B, R): the row of `maps` that each row had at each time step.
    """
    whole = {name: torch.stack([step[name] for step in steps], dim=2) for name in steps[0]}
    word, gained, looked = whole["word"], whole["gained"], torch.stack(looked, dim=2)
    filled = whole["filled"].all(dim=-1) if "filled" in whole else (word != PAD)[..., 0]
    said = (word != PAD) & filled[..., None]
    score = gained.sum(dim=-1) / said.sum(dim=-1).clamp(min=1) ** length_power
    score, order = score.where(filled, -torch.inf).sort(dim=1, descending=True, stable=True)
    said, word, gained, looked = _take_rows((said, word, gained, looked), order)
    sorted_maps = [_take_rows(tuple(step.values()), row) for step, row in zip(maps, looked.unbind(2), strict=True)]
    stacked = [_masked(torch.stack(parts, dim=2), said) for parts in zip(*sorted_maps, strict=True)]
    return Decoded(word * said, gained * said, score, **dict(zip(maps[0], stacked, strict=True)))


def _masked(part: Tensor, said: Bool[Tensor, "B R T"]) -> Tensor:
    """Set positions past a caption's end to zero."""
    return part.mul_(said.view(*said.shape, *[1] * (part.dim() - 3)))

"""Word by word: the most likely one, or a sampled one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.contracts import END, PAD, Captioner
from vision_attn.contracts.nested import take_images
from vision_attn.decode.replay import has_graphs, replayed
from vision_attn.decode.rows import Active, Choose, Chosen, Decoded, best_first, maps, stacked
from vision_attn.decode.rules import Rules
from vision_attn.layers.best_words import all_words, best_words
from vision_attn.layers.linear import constant_weights
from vision_attn.system.checks import check_range


@torch.no_grad()
@constant_weights()
def greedy(
    captioner: Captioner,
    regions: Float[Tensor, "B L D"],
    *,
    max_words: int = 30,
    never: Sequence[int] = (),
    min_words: int = 0,
    no_repeat: int = 0,
    once: Sequence[int] = (),
) -> Decoded:
    """The most likely word at each time step."""
    limits = {"max_words": max_words, "min_words": min_words, "no_repeat": no_repeat}
    rules = Rules(captioner, regions.device, never=never, once=once, **limits)
    return _one_by_one(captioner, regions, 1, rules, Likeliest())


@torch.no_grad()
@constant_weights()
def sample(
    captioner: Captioner,
    regions: Float[Tensor, "B L D"],
    *,
    rows: int = 1,
    max_words: int = 30,
    never: Sequence[int] = (),
    min_words: int = 0,
    no_repeat: int = 0,
    once: Sequence[int] = (),
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> Decoded:
    """`rows` captions of each image, sampled word by word from the smallest set of words with `top_p` of the
    probability (Holtzman et al. 2020), after the logits are divided by `temperature`."""
    check_range("decoding", 1e-3, 1e3, temperature=temperature)
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}, but must be above 0 and at most 1")

    limits = {"max_words": max_words, "min_words": min_words, "no_repeat": no_repeat}
    rules = Rules(captioner, regions.device, never=never, once=once, **limits)
    return _one_by_one(captioner, regions, rows, rules, Sampled(temperature, top_p), generator)


class OneByOne(Choose):
    """One time step of a search in which every row continues itself."""

    def words(self, logits: Tensor, barred: Tensor, uniform: Tensor | None) -> tuple[Tensor, ...]:
        """The log-probability of the next word of each row, and the word, (B, R) each."""
        raise NotImplementedError

    def __call__(
        self, logits: Tensor, barred: Tensor, total: Tensor, ended: Tensor, uniform: Tensor | None = None
    ) -> Chosen:
        gained, word = self.words(logits, barred, uniform)
        nothing = ended | gained.isneginf()  # the rules bar all that is possible: the row ends without a caption
        word, gained = word.masked_fill(nothing, PAD), gained.masked_fill(ended, 0)
        return Chosen(word, gained, total, nothing | (word == END))


@dataclass(frozen=True)
class Likeliest(OneByOne):
    """See `greedy`."""

    def words(self, logits: Tensor, barred: Tensor, uniform: None) -> tuple[Tensor, ...]:
        return tuple(part.squeeze(-1) for part in best_words(logits, 1, barred))


@dataclass(frozen=True)
class Sampled(OneByOne):
    """See `sample`."""

    temperature: float
    top_p: float
    samples = True

    def words(self, logits: Tensor, barred: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        log_prob = all_words(logits, barred)
        p = (log_prob / self.temperature).softmax(dim=-1)  # of the words that are not barred
        if self.top_p < 1:
            ordered, order = p.sort(dim=-1, descending=True)
            left_out = ordered.cumsum(dim=-1) - ordered >= self.top_p  # the first word always stays
            p = p.masked_fill(left_out.scatter(-1, order, left_out), 0)
        # Inverts the distribution function: on a CPU 20 times as fast as `multinomial`. Never finds a word with p = 0.
        below = p.cumsum(dim=-1)
        word = torch.searchsorted(below, uniform * below[..., -1:])
        word = word.clamp(max=p.shape[-1] - 1)  # p is NaN where no word is possible
        return log_prob.gather(-1, word).squeeze(-1), word.squeeze(-1)


def _one_by_one(
    captioner: Captioner,
    regions: Tensor,
    rows: int,
    rules: Rules,
    choose: OneByOne,
    generator: torch.Generator | None = None,
) -> Decoded:
    """Decode word by word."""
    if has_graphs(regions.device):
        found = replayed(captioner, regions, rows, rules, choose, generator=generator)
        if found is not None:
            return found
    memory, state = captioner.start(regions, rows)
    word = torch.zeros(len(regions), rows, dtype=torch.long, device=regions.device)
    ended, total = torch.zeros_like(word, dtype=torch.bool), torch.zeros(word.shape, device=word.device)
    active, steps, looks = Active(len(regions), regions.device), [], []
    before = rules.start(word)
    for number in range(rules.max_words):
        logits, state, look = captioner.step(word, state, memory)
        barred, uniform = rules.barred(before, number, logits.shape[-1]), None
        if choose.samples:
            uniform = 1 - torch.rand(*word.shape, 1, generator=generator, device=word.device)
        word, gained, total, ended, _ = choose(logits, barred, total, ended, uniform)
        before = rules.extended(before, word)
        steps.append(active.scatter({"word": word, "gained": gained}))
        looks.append(active.scatter(maps(look)))
        if (going := active.going(ended)) is not None:
            if not len(going):
                break
            memory, state, word, before, total, ended = take_images((memory, state, word, before, total, ended), going)
    word, gained = (torch.stack([step[name] for step in steps], dim=2) for name in ("word", "gained"))
    parents = torch.arange(rows, device=word.device)[:, None].expand(word.shape)
    return best_first(word, gained, gained.sum(dim=-1) > -torch.inf, parents, stacked(looks))

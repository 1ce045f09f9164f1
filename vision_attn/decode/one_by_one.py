"""Word by word: the most likely one, or a sampled one."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.contracts import END, PAD, Captioner
from vision_attn.decode.rows import Active, Decoded, best_first, maps
from vision_attn.decode.rules import Rules
from vision_attn.layers.best_words import all_words, best_words
from vision_attn.layers.linear import constant_weights
from vision_attn.layers.nested import take_images
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
) -> Decoded:
    """The most likely word at each time step."""

    def most_likely(logits: Tensor, barred: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.squeeze(-1) for part in best_words(logits, 1, barred))

    rules = Rules(captioner, regions.device, max_words=max_words, never=never, min_words=min_words, no_repeat=no_repeat)
    return _one_by_one(captioner, regions, 1, max_words, rules, most_likely)


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
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> Decoded:
    """`rows` captions of each image, sampled word by word from the smallest set of words with `top_p` of the
    probability (Holtzman et al. 2020), after the logits are divided by `temperature`."""
    check_range("decoding", 1e-3, 1e3, temperature=temperature)
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}, but must be above 0 and at most 1")

    def sample_word(logits: Tensor, barred: Tensor) -> tuple[Tensor, Tensor]:
        log_prob = all_words(logits, barred)
        p = (log_prob / temperature).softmax(dim=-1)  # of the words that are not barred
        if top_p < 1:
            ordered, order = p.sort(dim=-1, descending=True)
            left_out = ordered.cumsum(dim=-1) - ordered >= top_p  # the first word always stays
            p = p.masked_fill(left_out.scatter(-1, order, left_out), 0)
        # Inverts the distribution function: on a CPU 20 times as fast as `multinomial`. Never finds a word with p = 0.
        below = p.cumsum(dim=-1)
        uniform = 1 - torch.rand(*p.shape[:2], 1, generator=generator, device=p.device)  # in (0, 1]
        word = torch.searchsorted(below, uniform * below[..., -1:])
        word = word.clamp(max=p.shape[-1] - 1)  # p is NaN where no word is possible
        return log_prob.gather(-1, word).squeeze(-1), word.squeeze(-1)

    rules = Rules(captioner, regions.device, max_words=max_words, never=never, min_words=min_words, no_repeat=no_repeat)
    return _one_by_one(captioner, regions, rows, max_words, rules, sample_word)


def _one_by_one(
    captioner: Captioner,
    regions: Tensor,
    rows: int,
    max_words: int,
    rules: Rules,
    choose: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
) -> Decoded:
    """Decode word by word: `choose` maps logits (B, R, V) and the words that may not be produced to the next word of
    each row and its log-probability, (B, R) each."""
    memory, state = captioner.start(regions, rows)
    word = torch.zeros(len(regions), rows, dtype=torch.long, device=regions.device)
    ended = torch.zeros_like(word, dtype=torch.bool)
    active, steps, looks = Active(len(regions), regions.device), [], []
    before = rules.start(word)
    for number in range(max_words):
        logits, state, look = captioner.step(word, state, memory)
        gained, word = choose(logits, rules.barred(before, number, logits.shape[-1]))
        nothing = ended | gained.isneginf()  # the rules bar all that is possible: the row ends without a caption
        word, gained = word.masked_fill(nothing, PAD), gained.masked_fill(ended, 0)
        before = rules.extended(before, word)
        steps.append(active.scatter({"word": word, "gained": gained}))
        looks.append(active.scatter(maps(look)))
        ended = nothing | (word == END)
        if (going := active.going(ended)) is not None:
            if not len(going):
                break
            memory, state, word, before, ended = take_images((memory, state, word, before, ended), going)
    row = torch.arange(rows, device=regions.device).expand(len(regions), rows)
    return best_first(steps, looks, [row] * len(steps))

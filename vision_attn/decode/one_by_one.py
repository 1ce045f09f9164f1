"""Greedy decoding and sampling, which extend each row by itself, with its most likely word or a sampled one."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.contracts import END, PAD, Captioner
from vision_attn.decode.hypotheses import Decoded, Selected, Selector
from vision_attn.decode.loop import decoded
from vision_attn.decode.rules import Rules
from vision_attn.fast.best_words import all_words, best_words
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError


def greedy(captioner: Captioner, regions: Float[Tensor, "B L D"], **rules: Any) -> Decoded:
    """Decode the most likely word at each time step.

    rules: arguments of `Rules`.
    """
    return decoded(captioner, regions, 1, Rules(captioner, regions.device, **rules), LikeliestWord())


def sample(
    captioner: Captioner,
    regions: Float[Tensor, "B L D"],
    *,
    rows: int = 1,
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
    **rules: Any,
) -> Decoded:
    """Sample `rows` captions of each image, word by word, from the smallest set of words with `top_p` of the
    probability (Holtzman et al. 2020), after the logits are divided by `temperature`.

    rules: arguments of `Rules`.
    """
    check_range("decoding", 1e-3, 1e3, temperature=temperature)
    if not 0 < top_p <= 1:
        raise UserError(f"top_p is {top_p}, but must be above 0 and at most 1")
    selector = SampledWord(temperature, top_p)
    return decoded(captioner, regions, rows, Rules(captioner, regions.device, **rules), selector, generator=generator)


class OneByOne(Selector):
    """Selects the words of a search in which each row continues itself. Subclasses override `words`."""

    def __call__(
        self, logits: Tensor, barred: Tensor, total: Tensor, ended: Tensor, uniform: Tensor | None = None
    ) -> Selected:
        gained, word = self.words(logits, barred, uniform)
        nothing = ended | gained.isneginf()  # the rules bar all that is possible: the row ends without a caption
        word, gained = word.masked_fill(nothing, PAD), gained.masked_fill(ended, 0)
        return Selected(word, gained, total, nothing | (word == END))


@dataclass(frozen=True)
class LikeliestWord(OneByOne):
    """Selects the most likely word of each row: see `greedy`."""

    def words(self, logits: Tensor, barred: Tensor, uniform: None) -> tuple[Tensor, ...]:
        return tuple(best.squeeze(-1) for best in best_words(logits, 1, barred))


@dataclass(frozen=True)
class SampledWord(OneByOne):
    """Samples the word of each row: see `sample`."""

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

"""`Rules`: which words may not be produced next, such as END in a caption that is too short."""

from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vision_attn.contracts import END, PAD, Captioner
from vision_attn.system.errors import UserError


class Rules:
    """Rules on the words of a caption. They bar words and leave the probabilities of the others unchanged.

    max_words: the number of words, END included, after which decoding stops.
    never: words that are never produced, such as a vocabulary's unknown word. PAD never is.
    min_words: END is not produced before this number of words.
    no_repeat: the size of n-grams that may not occur twice in a caption (Paulus et al. 2018, section 2.5); 0: no limit.
    once: words that may occur at most once in a caption.

    Raises UserError for numbers that the captioner cannot fulfil.
    """

    def __init__(
        self,
        captioner: Captioner,
        device: torch.device,
        *,
        max_words: int = 30,
        never: Sequence[int] = (),
        min_words: int = 0,
        no_repeat: int = 0,
        once: Sequence[int] = (),
    ):
        longest = captioner.max_length
        if max_words < 1 or (longest is not None and max_words > longest):
            limit = "" if longest is None else f" and at most the captioner's max_length, {longest}"
            raise UserError(f"max_words is {max_words}, but must be at least 1{limit}")
        if not 0 <= min_words <= max_words:
            raise UserError(f"min_words is {min_words}, but must lie between 0 and max_words, {max_words}")
        if no_repeat < 0:
            raise UserError(f"no_repeat is {no_repeat}, but must be the size of an n-gram, or 0")
        self.device, self.max_words, self.min_words, self.no_repeat = device, max_words, min_words, no_repeat
        self.never, self.once = tuple(sorted({PAD, *never})), tuple(sorted({*once}))

    @property
    def key(self) -> tuple:
        """A key that equal rules share."""
        return self.never, self.max_words, self.min_words, self.no_repeat, self.once

    # Copied to the device at their first use, which is before the loop over words.

    @cached_property
    def always(self) -> Int[Tensor, "N"]:
        """The words that are barred at every time step."""
        return torch.tensor(self.never, device=self.device)

    @cached_property
    def early(self) -> Int[Tensor, "N"]:
        """The words that are barred before `min_words`."""
        return torch.tensor(sorted({END, *self.never}), device=self.device) if self.min_words else self.always

    @cached_property
    def by_number(self) -> Int[Tensor, "T N"]:
        """The words that are barred after 0, 1, .. words. Rows without END have PAD twice, to be equally long."""
        ends = [END if number < self.min_words else PAD for number in range(self.max_words)]
        return torch.tensor([[*self.never, end] for end in ends], device=self.device)

    def start(self, word: Int[Tensor, "B R"]) -> Int[Tensor, "B R 0"] | None:
        """Return the words of each row before the first time step; None if the rules do not depend on them."""
        return word.new_empty(*word.shape, 0) if self.depend_on_words else None

    @property
    def depend_on_words(self) -> bool:
        """Whether the barred words depend on the words so far."""
        return bool(self.no_repeat or self.once)

    @cached_property
    def is_once(self) -> Bool[Tensor, "V"]:
        """Whether a word may occur only once, by its id; the last entry serves all higher ids."""
        mask = torch.zeros(max(self.once) + 2, dtype=torch.bool)
        mask[list(self.once)] = True
        return mask.to(self.device)

    def barred(
        self, before: Int[Tensor, "B R T"] | None, number: int, num_words: int
    ) -> Int[Tensor, "N"] | Int[Tensor, "B R N"]:
        """Return the words that may not follow the `number` words `before`, for all rows or for each row.

        num_words: the size of the vocabulary. Raises UserError if the rules could bar all of it.
        """
        barred = self.early if number < self.min_words else self.always
        if before is None or not number:
            return barred
        self._check(number, num_words)
        repeats = number + 1 - self.no_repeat  # n-grams so far
        last = before[:, :, None, repeats:] if self.no_repeat and repeats > 0 else None
        return self._joined(barred, before, last)

    def barred_at(
        self, before: Int[Tensor, "B R T"] | None, position: Int[Tensor, "1"], num_words: int
    ) -> Int[Tensor, "N"] | Int[Tensor, "B R N"]:
        """Return what `barred` returns, in tensors of the same shapes at each time step.

        before: the words so far, with room for all words, and PAD where there is none yet.
        position: the number of words so far, on the device.
        """
        barred = self.by_number.index_select(0, position)[0] if self.min_words else self.always
        if before is None:
            return barred
        self._check(self.min_words - 1, num_words)
        last = None
        if self.no_repeat and before.shape[2] >= self.no_repeat:
            latest = position + torch.arange(1 - self.no_repeat, 0, device=position.device)
            last = before.index_select(2, latest.clamp(min=0))[:, :, None]
        return self._joined(barred, before, last)

    def _joined(
        self, barred: Int[Tensor, "N"], before: Int[Tensor, "B R T"], last: Int[Tensor, "B R 1 _"] | None
    ) -> Int[Tensor, "N"] | Int[Tensor, "B R M"]:
        """Join the barred words of all rows with those of each row: words that followed the `last` words earlier in the
        caption, and words of `once` that have occurred. PAD, which is always barred, fills the other places, and those
        of n-grams that are not complete yet."""
        of_each_row = []
        if last is not None:
            ngrams = before.unfold(2, self.no_repeat, 1)
            of_each_row.append(ngrams[..., -1].where((ngrams[..., :-1] == last).all(dim=-1), PAD))
        if self.once:
            of_each_row.append(before.where(self.is_once[before.clamp(max=len(self.is_once) - 1)], PAD))
        return torch.cat([barred.expand(*before.shape[:2], -1), *of_each_row], dim=-1) if of_each_row else barred

    def _check(self, number: int, num_words: int) -> None:
        """Raise UserError if the rules could bar all words after `number` words."""
        repeats = max(0, number + 1 - self.no_repeat) if self.no_repeat else 0
        repeats = max(repeats, number) if len(self.once) >= num_words - len(self.early) else repeats
        if number < self.min_words and repeats >= 1 and repeats >= num_words - len(self.early):
            rules = f"no_repeat={self.no_repeat}" if self.no_repeat else "words that may occur once"
            raise UserError(
                f"min_words={self.min_words} and {rules} leave none of {num_words} words to choose: lower min_words"
                + " or raise no_repeat" * bool(self.no_repeat)
            )

    def extended(self, before: Int[Tensor, "B R T"] | None, word: Int[Tensor, "B R"]) -> Int[Tensor, "B R T+1"] | None:
        """Return the words of each row after one more."""
        return None if before is None else torch.cat([before, word[..., None]], dim=2)

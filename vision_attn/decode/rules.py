"""The words that may not be produced next."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from vision_attn.contracts import END, PAD, Captioner


class Rules:
    """Rules on the words of a caption. They bar words; the probabilities of the others are not changed by that.

    max_words: the number of words, END included, after which decoding stops.
    never: words that are never produced, such as a vocabulary's unknown word. PAD never is.
    min_words: END is not produced before this number of words.
    no_repeat: the size of n-grams that may not occur twice in a caption (Paulus et al. 2018, section 2.5); 0: all may.

    Raises ValueError for numbers that the captioner cannot fulfil.
    """

    def __init__(
        self,
        captioner: Captioner,
        device: torch.device,
        *,
        max_words: int,
        never: Sequence[int],
        min_words: int,
        no_repeat: int,
    ):
        longest = captioner.max_length
        if max_words < 1 or (longest is not None and max_words > longest):
            limit = "" if longest is None else f" and at most the captioner's max_length, {longest}"
            raise ValueError(f"max_words is {max_words}, but must be at least 1{limit}")
        if not 0 <= min_words <= max_words:
            raise ValueError(f"min_words is {min_words}, but must lie between 0 and max_words, {max_words}")
        if no_repeat < 0:
            raise ValueError(f"no_repeat is {no_repeat}, but must be the size of an n-gram, or 0")
        self.min_words, self.no_repeat = min_words, no_repeat
        # Copied to the device before the loop.
        self.always = torch.tensor(sorted({PAD, *never}), device=device)
        self.early = torch.tensor(sorted({PAD, END, *never}), device=device) if min_words else self.always

    def start(self, word: Int[Tensor, "B R"]) -> Int[Tensor, "B R 0"] | None:
        """Return the words of each row before the first time step; None if the rules do not depend on them."""
        return word.new_empty(*word.shape, 0) if self.no_repeat else None

    def barred(
        self, before: Int[Tensor, "B R T"] | None, number: int, num_words: int
    ) -> Int[Tensor, "N"] | Int[Tensor, "B R N"]:
        """Return the words that may not follow the `number` words `before`, for all rows or for each row.

        num_words: the size of the vocabulary. Raises ValueError if the rules could bar all of it.
        """
        barred = self.early if number < self.min_words else self.always
        repeats = number + 1 - self.no_repeat  # n-grams so far
        if before is None or repeats < 1:
            return barred
        if number < self.min_words and repeats >= num_words - len(barred):
            raise ValueError(
                f"min_words={self.min_words} and no_repeat={self.no_repeat} leave none of {num_words} words to choose: "
                "lower min_words or raise no_repeat"
            )
        ngrams = before.unfold(2, self.no_repeat, 1)
        last = before[:, :, None, repeats:]
        followed = ngrams[..., -1].where((ngrams[..., :-1] == last).all(dim=-1), PAD)
        return torch.cat([barred.expand(*followed.shape[:2], -1), followed], dim=-1)

    def extended(self, before: Int[Tensor, "B R T"] | None, word: Int[Tensor, "B R"]) -> Int[Tensor, "B R T+1"] | None:
        """Return the words of each row after one more."""
        return None if before is None else torch.cat([before, word[..., None]], dim=2)

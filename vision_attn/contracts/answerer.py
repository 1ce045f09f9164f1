"""The contract of an answerer: facts and a question to log-probabilities of words, with a map of each hop."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn


class Answers(NamedTuple):
    """The output of an answerer that reads its L facts in K hops."""

    log_prob: Float[Tensor, "B V"]
    """log p of each word as the answer, in nats."""
    alpha: Float[Tensor, "B K L"]
    """The weight of each fact in each hop. While `Answerer.scored` is true, its score, of any sign."""


class Answerer(nn.Module):
    """Facts and questions -> log-probabilities of words. Override `forward`.

    Constructed with the number of words, and with the size of a fact: that of an annotation vector, or the number of
    words where facts are sentences.
    """

    @property
    def scored(self) -> bool:
        """Whether `alpha` holds scores of any sign, as without a softmax, and not weights that sum to 1."""
        return False

    def forward(self, facts: Int[Tensor, "B L W"] | Float[Tensor, "B L D"], words: Int[Tensor, "B J"]) -> Answers:
        """Answer the question about each batch item's facts.

        facts: word ids of sentences, the latest first, or annotation vectors. Stories and images with fewer facts than
            others are padded with 0.
        words: word ids of the question, padded with 0.
        """
        raise NotImplementedError

    def validated(self, nll: float) -> bool:
        """Called after each validation with the mean -log p of its answers, in nats. Returns whether it changed a
        buffer, such as that of a schedule that depends on validation."""
        return False

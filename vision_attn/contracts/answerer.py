"""The contract of an answerer: facts and a question to log-probabilities of words, with a map of each hop."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn


class Answers(NamedTuple):
    """The output of an answerer that reads its L facts in K hops."""

    log_prob: Float[Tensor, "B V"]
    """log p of each word as the answer, in nats."""
    alpha: Float[Tensor, "B K L"]
    """The weight of each fact in each hop; its score while `Answerer.scored` is true."""


class Answerer(nn.Module):
    """Facts and questions -> log-probabilities of words. Override `forward`.

    Constructed with the number of words and the size of a fact: the size of an annotation vector, or the number of
    words if facts are sentences.
    """

    @property
    def scored(self) -> bool:
        """Whether `alpha` holds scores, which may be negative, instead of weights that sum to 1."""
        return False

    def forward(self, facts: Int[Tensor, "B L W"] | Float[Tensor, "B L D"], words: Int[Tensor, "B J"]) -> Answers:
        """Answer the question about each batch item's facts.

        facts: word ids of sentences, the latest first, or annotation vectors. Stories and images with fewer facts than
            others are padded with 0.
        words: word ids of the question, padded with 0.
        """
        raise NotImplementedError

    def validated(self, nll: float) -> bool:
        """Update a schedule that depends on validation. Return whether a buffer changed. Called after each validation.

        nll: the mean -log p of the answers, in nats.
        """
        return False

"""`Choice`: the regions or locations that a model sampled, for an estimate of their gradient."""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor


class Choice(NamedTuple):
    """The inputs of a score-function estimator for the samples of all time steps, such as regions or locations."""

    log_prob: Float[Tensor, "B R T"]
    """log p of each sample, in nats; 0 where nothing was sampled."""
    entropy: Float[Tensor, "B R T"]
    """The entropy of each distribution, in nats, also where its expectation replaced the sample; 0 past the end of a
    row."""
    sampled: Bool[Tensor, "B R T"]
    """True where there is a sample; False past the end of a row and where an expectation replaced the sample."""
    state: Float[Tensor, "B R T H"]
    """The state that the distribution was computed from, without a gradient: the input of a learned baseline."""
    mean: Float[Tensor, "B R T 2"] | None = None
    """Where samples are locations: the means of their distribution, with a gradient."""

"""`Said`, the base of results with words: each word has a probability and a map."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.geometry.extents import Extent


class Said:
    """Words with their probabilities and maps."""

    described: Any
    """The decoded words, with `words`, `log_prob`, `alpha` and `extent`."""

    @property
    def words(self) -> Sequence[str]:
        words: Sequence[str] = self.described.words
        return words

    @property
    def log_prob(self) -> Sequence[float] | None:
        """The log-probability of each word, in nats; None if the model has none."""
        log_prob: Sequence[float] | None = self.described.log_prob
        return log_prob

    @property
    def probabilities(self) -> Float[Tensor, "T"] | None:
        """The probability of each word; None if the model has none."""
        known = self.log_prob
        return None if known is None else torch.tensor([*known], dtype=torch.float64).exp().float()

    @property
    def alpha(self) -> Float[Tensor, "T *F Y X"] | None:
        """The map of each word, for a film with F frames; None for a model without maps."""
        alpha: Tensor | None = self.described.alpha
        return alpha

    @property
    def extent(self) -> Extent:
        """Where the regions of the maps lie on the picture: `vision_attn.geometry.extents.centres` gives their
        centres."""
        extent: Extent = self.described.extent
        return extent

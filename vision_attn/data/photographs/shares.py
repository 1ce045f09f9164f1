"""Choose which photographs an epoch shows, and how often, if sources have shares of the epoch or photographs count by
captions."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from vision_attn.data.grouping import strata
from vision_attn.system.errors import UserError

SETS = 256
"""The number of sets into which the photographs of a source are divided by the lengths of their captions."""
GOLDEN = (5**0.5 - 1) / 2
"""The multiples of this number, modulo 1, are spread more evenly over [0, 1) than random numbers."""


class EpochPlaces:
    """Chooses the photograph for each place of an epoch. In all epochs, a source has the same number of places, and the
    same place has captions of about the same lengths (`lengths`), so that batches have the same few shapes.

    A photograph that should have w places on average has floor(w) places in every epoch. It takes turns in the
    remaining places with photographs of its source whose captions are about as long. So if a large source has a small
    share, epochs show different photographs.
    """

    def __init__(self, due: Float[ndarray, "N"], bounds: Int[ndarray, "S_1"], lengths: Int[ndarray, "N R"]) -> None:
        """due: the mean number of places of each photograph in an epoch; the sum over a source is a whole number.
        bounds: the number of the first photograph of each source, then the number of all.
        lengths: the number of words of each row of each photograph, or an upper bound.
        """
        due = np.where(np.abs(due - due.round()) < 1e-9, due.round(), due)
        self.always = np.repeat(np.arange(len(due)), due.astype(np.int64))
        """The photographs that are in every epoch, repeated as often as they are."""
        self.taking_turns = []
        """The photographs of each source that take turns, with the cumulative sum of their fractions of a place."""
        longest = [lengths[self.always]]
        for first, end in pairwise(bounds):
            rest = due[first:end] % 1
            members = first + np.flatnonzero(rest)
            number = round(float(rest.sum()))
            if not number:
                continue
            sizes = np.diff(np.linspace(0, len(members), min(SETS, len(members)) + 1).astype(np.int64))
            members = members[np.concatenate(strata(lengths[members], sizes))]
            ends = np.cumsum(due[members] % 1)
            ends *= number / ends[-1]
            ends[-1] = number
            self.taking_turns.append((members, ends))
            begin = np.searchsorted(ends, np.arange(number), side="right")
            last = np.searchsorted(ends, np.arange(1, number + 1), side="left")
            longest.append(
                np.stack([lengths[members[a : b + 1]].max(axis=0) for a, b in zip(begin, last, strict=True)])
            )
        self.lengths = np.concatenate(longest)
        """The number of words of each row in each place of an epoch, or an upper bound."""

    def epoch(self, epoch: int, seed: int) -> Int[ndarray, "T"]:
        """Return the photograph of each place of an epoch."""
        start = np.random.default_rng([seed % 2**64, len(self.lengths)]).random()
        point = (start + epoch * GOLDEN) % 1
        chosen = [
            members[np.searchsorted(ends, np.arange(round(ends[-1])) + point, side="right")]
            for members, ends in self.taking_turns
        ]
        return np.concatenate([self.always, *chosen])


def mean_places(
    captions: Int[ndarray, "N"],
    bounds: Int[ndarray, "S_1"],
    shares: Mapping[str, float | None],
    *,
    by_captions: bool,
    batch_size: int,
) -> Float[ndarray, "N"] | None:
    """Return the mean number of places of each photograph in an epoch; None: one place each.

    A source with a share gets this share of the places. Sources without one get a place for each of their photographs,
    which decides the number of places. If all sources have shares, there are as many places as photographs. The number
    is a multiple of the batch size, so that no batch is incomplete.

    captions: the number of captions of each photograph.
    bounds: the number of the first photograph of each source, then the number of all.
    shares: the share of each source, or None.
    by_captions: whether the places of a source are divided in proportion to numbers of captions.
    """
    if not by_captions and not any(shares.values()):
        return None
    sizes = np.diff(bounds)
    for (name, share), size in zip(shares.items(), sizes.tolist(), strict=True):
        if share and not size:
            raise UserError(f"data.sources: {name} has a share, but no photograph for training: leave its share out")
    fractions = np.array([share or 0.0 for share in shares.values()])
    rest = np.array([share is None for share in shares.values()]) & (sizes > 0)
    left = 1 - fractions.sum() if rest.any() else 0.0
    total = round(sizes[rest].sum() / left) if left else int(sizes.sum())
    total = total // batch_size * batch_size or total
    weights = captions if by_captions else np.ones(len(captions))
    weight = np.array([weights[first:end].sum() for first, end in pairwise(bounds)])
    fractions = fractions / (1 if left else fractions.sum())
    fractions[rest] = left * weight[rest] / weight[rest].sum()
    turns = whole(fractions * total, total)
    return np.concatenate([
        number * weights[first:end] / max(1.0, of)
        for number, of, (first, end) in zip(turns, weight, pairwise(bounds), strict=True)
    ])  # fmt: skip


def whole(amounts: Float[ndarray, "S"], total: int) -> Int[ndarray, "S"]:
    """Round amounts to whole numbers with the sum `total`: those with the largest remainders are rounded up."""
    rounded = np.floor(amounts + 1e-9).astype(np.int64)
    rounded[np.argsort(-(amounts - rounded), kind="stable")[: total - int(rounded.sum())]] += 1
    return rounded

"""Choose the photographs that an epoch shows, and how often, where sources have shares or photographs have turns by
captions."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from vision_attn.data.grouping import strata
from vision_attn.system.errors import UserError

SETS = 256
"""The number of sets of photographs with captions of similar lengths into which those of a source are sorted."""
GOLDEN = (5**0.5 - 1) / 2
"""The points that are its multiples, modulo 1, lie more evenly in [0, 1) than random ones."""


class Turns:
    """The turns of the photographs of an epoch. Each epoch has the same number of turns of each source, and the same
    lengths of captions in the same places (`lengths`), so that its batches have the same few shapes.

    A photograph that is due w turns has floor(w) in every epoch, and the others in turn with photographs of its source
    whose captions are about as long: of a large set with a small share, each epoch shows other photographs.
    """

    def __init__(self, due: Float[ndarray, "N"], bounds: Int[ndarray, "S_1"], lengths: Int[ndarray, "N R"]) -> None:
        """due: the mean number of turns of each photograph in an epoch; those of a source add up to a whole number.
        bounds: where sources begin, and the end. lengths: the words of each row of each photograph, or more."""
        due = np.where(np.abs(due - due.round()) < 1e-9, due.round(), due)
        self.always = np.repeat(np.arange(len(due)), due.astype(np.int64))
        """Photographs that every epoch has, with their number of turns."""
        self.taking_turns = []
        """The photographs of each source that take turns, and the end of the share of each in their sum."""
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
        """The words of each row in each place of an epoch, or more."""

    def epoch(self, epoch: int, seed: int) -> Int[ndarray, "T"]:
        """The photograph of each place of an epoch."""
        start = np.random.default_rng([seed % 2**64, len(self.lengths)]).random()
        point = (start + epoch * GOLDEN) % 1
        chosen = [
            members[np.searchsorted(ends, np.arange(round(ends[-1])) + point, side="right")]
            for members, ends in self.taking_turns
        ]
        return np.concatenate([self.always, *chosen])


def turns_due(
    captions: Int[ndarray, "N"],
    bounds: Int[ndarray, "S_1"],
    shares: Mapping[str, float | None],
    *,
    by_captions: bool,
    batch_size: int,
) -> Float[ndarray, "N"] | None:
    """The mean number of turns of each photograph in an epoch; None: one of each.

    A source with a share has this share of the turns. The others have one for each of their photographs, which gives
    the number of all; where all have shares, there are as many turns as photographs. They are a multiple of the batch
    size, so that no batch is incomplete. by_captions: those of a source are divided by numbers of captions.
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
    """Round amounts to whole numbers that add up to `total`: those with the largest remainders are rounded up."""
    rounded = np.floor(amounts + 1e-9).astype(np.int64)
    rounded[np.argsort(-(amounts - rounded), kind="stable")[: total - int(rounded.sum())]] += 1
    return rounded

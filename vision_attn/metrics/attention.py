"""Does attention look at what its word names? Attention correctness, after Liu et al. 2017, "Attention Correctness in
Neural Image Captioning" (arXiv:1605.09553). And does it look somewhere at all, and elsewhere at the next word?"""

from collections.abc import Mapping, Sequence, Set

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vision_attn.attention.hard import entropy


class AttentionCorrectness:
    """Attention held against the boxes of what words name, averaged over all content words given to `update`.

    A region counts as inside a box when its centre is. Coordinates are (x, y) in [-1, 1]; `grid` is (rows, columns) of
    regions, numbered row by row. Each value has a second one beside it, which attention spread evenly would get.
    """

    def __init__(self, grid: tuple[int, int] = (14, 14)) -> None:
        rows, columns = grid
        y = (2 * torch.arange(rows, dtype=torch.float64) + 1) / rows - 1
        x = (2 * torch.arange(columns, dtype=torch.float64) + 1) / columns - 1
        self.grid = (rows, columns)
        self.centres = torch.stack([x.repeat(rows), y.repeat_interleave(columns)], dim=1)  # (L, 2)
        self.num_words = 0
        self.totals = {"pointing": 0.0, "pointing_uniform": 0.0, "mass": 0.0, "mass_uniform": 0.0}

    def update(
        self,
        words: Sequence[str],
        alpha: Float[Tensor, "T L"],
        boxes: Mapping[str, Sequence],
        content: Set[str] = frozenset(),
    ) -> None:
        """Add one caption: its `words`, the attention of each, and the boxes (x0, y0, x1, y1) of what each word names.

        `content` holds every word that names a thing in any image: one that has no box in this image names what is not
        there and counts as a miss, for uniform attention too. Rows of alpha past the last word, such as the end's, are
        ignored. Raises ValueError when alpha has fewer rows than words or another number of regions than the grid.
        """
        if alpha.shape[0] < len(words) or alpha.shape[1] != len(self.centres):
            raise ValueError(
                f"alpha is {tuple(alpha.shape)}, but there are {len(words)} words and {len(self.centres)} regions"
            )
        weights = alpha.detach().to("cpu", torch.float64)
        for word, weight in zip(words, weights, strict=False):
            if word in boxes or word in content:
                inside = self.inside(boxes.get(word, ()))
                # Among equal maxima any may be the most attended: their share, so that uniform attention gets its due.
                peak = weight == weight.max()
                share = inside.double().mean().item()
                self.num_words += 1
                self.totals["pointing"] += inside[peak].double().mean().item()
                self.totals["pointing_uniform"] += share
                self.totals["mass"] += weight[inside].sum().item()
                self.totals["mass_uniform"] += share

    def compute(self) -> dict[str, float]:
        """Means over content words, each from 0 to 1; all 0 when there was no such word.

        pointing: how often the centre of the most attended region lies in a box of what the word names; mass: how much
        of the attention lies on such regions. pointing_uniform, mass_uniform: the same of uniform attention, that is
        the share of region centres inside (the two are equal, and both are named so that each has its baseline).
        """
        return {name: total / max(1, self.num_words) for name, total in self.totals.items()}

    def inside(self, boxes: Sequence) -> Bool[Tensor, "L"]:
        """Which regions have their centre in any of the `boxes`, borders included."""
        corners = torch.as_tensor([[float(edge) for edge in box] for box in boxes], dtype=torch.float64).reshape(-1, 4)
        centres = self.centres[:, None]  # (L, 1, 2), against (boxes, 2)
        return ((centres >= corners[:, :2]) & (centres <= corners[:, 2:])).all(dim=2).any(dim=1)


class AttentionMotion:
    """How sharp the maps of captions are, and how far they move, averaged over all words given to `update`."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(("entropy", "at_mode", "movement", "movement_content"), 0.0)
        self.numbers = dict.fromkeys(self.totals, 0)

    def update(self, words: Sequence[str], alpha: Float[Tensor, "T L"], content: Set[str] = frozenset()) -> None:
        """Add one caption: its `words` and the attention of each. `content`: the words that name things."""
        alpha = alpha[: len(words)].detach().to("cpu", torch.float64)
        things = alpha[[place for place, word in enumerate(words) if word in content]]
        self._add("entropy", -torch.xlogy(alpha, alpha).sum(dim=-1))
        self._add("at_mode", alpha.amax(dim=-1))
        self._add("movement", total_variation(alpha))
        self._add("movement_content", total_variation(things))

    def _add(self, name: str, values: Tensor) -> None:
        self.totals[name] += values.sum().item()
        self.numbers[name] += len(values)

    def compute(self) -> dict[str, float]:
        """Means over words; what no word could be counted for is left out.

        entropy of a map in nats (log L at most); at_mode: the share of draws that would fall on the likeliest region;
        movement: the total variation between the maps of neighbouring words, from 0 (the same) to 1 (elsewhere);
        movement_content: the same from one word that names a thing to the next such word.
        """
        return {name: total / self.numbers[name] for name, total in self.totals.items() if self.numbers[name]}


def total_variation(alpha: Float[Tensor, "*rows T L"]) -> Float[Tensor, "*rows _"]:
    """Half the sum of what changed between each map and the one before it: the share of attention that moved."""
    return alpha.diff(dim=-2).abs().sum(dim=-1) / 2


def map_statistics(alpha: Float[Tensor, "B R T L"], said: Bool[Tensor, "B R T"]) -> dict[str, Tensor]:
    """The same means as `AttentionMotion` of a batch in training, on the device. `said` marks words, not padding."""
    number = said.sum()
    moved = total_variation(alpha) * said[..., 1:]
    return {
        "entropy": entropy(alpha).sum() / number,
        "at_mode": alpha.amax(dim=-1).sum() / number,
        "movement": moved.sum() / said[..., 1:].sum().clamp(min=1),
    }

"""Measure whether attention lies in the boxes of objects (`AttentionCorrectness`), and how sharp it is and how far it
moves (`AttentionMotion`).

Attention correctness: whether attention lies on the object that a word names (after Liu et al. 2017, "Attention
Correctness in Neural Image Captioning", arXiv:1605.09553). Attention motion: how sharp maps are, and how far attention
moves between words.
"""

from collections.abc import Mapping, Sequence, Set

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent, Mask, centres
from vision_attn.system.errors import UserError


class AttentionCorrectness:
    """Compare attention with the boxes of the objects that words name, averaged over all content words of `update`.

    A region counts as inside a box if its centre is inside. In a grid of one row, whose regions are whole columns, only
    the x of the centre counts. Coordinates are (x, y) in [-1, 1]. Each metric comes with its baseline, the value for
    uniform attention.

    grid: the numbers of rows and columns of regions, or of frames, rows and columns for films, whose boxes have a frame
        as fifth number: only regions of this frame can be inside. If a frame is a single region, it is inside any box.
    extent: where the regions lie on the image.
    """

    def __init__(self, grid: tuple[int, ...] = (14, 14), extent: Extent = WHOLE) -> None:
        self.grid, (*frames, rows, columns) = grid, grid
        self.frames = frames[0] if frames else 1
        self.centres = centres(rows, columns, extent).repeat(self.frames, 1)  # (L, 2)
        self.frame = torch.arange(self.frames).repeat_interleave(rows * columns)
        self.num_words = 0
        self.totals = {"pointing": 0.0, "pointing_uniform": 0.0, "mass": 0.0, "mass_uniform": 0.0}

    def update(
        self,
        words: Sequence[str],
        alpha: Float[Tensor, "T L"],
        boxes: Mapping[str, Sequence],
        content: Set[str] = frozenset(),
    ) -> None:
        """Add one caption. Raises UserError if alpha has fewer rows than there are words, or another number of regions
        than the grid.

        alpha: the attention of each word. Rows past the last word, such as that of END, are ignored. A map of zeros
            counts as a miss.
        boxes: the boxes (x0, y0, x1, y1) of the objects that each word names.
        content: every word that names an object in any image. A content word without a box names an object that is not
            in this image, and counts as a miss, also for uniform attention.
        """
        if alpha.shape[0] < len(words) or alpha.shape[1] != len(self.centres):
            raise UserError(
                f"alpha is {tuple(alpha.shape)}, but there are {len(words)} words and {len(self.centres)} regions"
            )
        weights = alpha.detach().to("cpu", torch.float64)
        for word, weight in zip(words, weights, strict=False):
            if word in boxes or word in content:
                inside = self.inside(boxes.get(word, ()))
                # Average over equal maxima, so that uniform attention scores the share of regions inside.
                peak = weight == weight.max()
                share = inside.double().mean().item()
                self.num_words += 1
                self.totals["pointing"] += inside[peak].double().mean().item() if weight.any() else 0.0
                self.totals["pointing_uniform"] += share
                self.totals["mass"] += weight[inside].sum().item()
                self.totals["mass_uniform"] += share

    def compute(self) -> dict[str, float]:
        """Return means over content words, each from 0 to 1; all 0 if there was no such word.

        pointing: how often the centre of the region with the largest weight lies in a box of the named object.
        mass: the share of attention on regions inside such a box.
        pointing_uniform, mass_uniform: the same for uniform attention: the share of region centres inside. Both are
            equal.
        """
        return {name: total / max(1, self.num_words) for name, total in self.totals.items()}

    def inside(self, boxes: Sequence) -> Bool[Tensor, "L"]:
        """Return whether the centre of each region lies in any of the `boxes`, borders included; or in a `Mask`."""
        masks = [box for box in boxes if isinstance(box, Mask)]
        on_masks = torch.stack(
            [torch.zeros(len(self.centres), dtype=torch.bool), *(mask.contains(self.centres) for mask in masks)]
        )
        boxes = [box for box in boxes if not isinstance(box, Mask)]
        corners = torch.as_tensor([[float(edge) for edge in box[:4]] for box in boxes], dtype=torch.float64).view(-1, 4)
        *frames, rows, columns = self.grid
        axes = slice(0 if frames and rows * columns == 1 else 1 if rows == 1 else 2)  # neither, x alone, or x and y
        centres, low, high = self.centres[:, None, axes], corners[:, :2][:, axes], corners[:, 2:4][:, axes]
        inside = ((centres >= low) & (centres <= high)).all(dim=2)
        if frames:
            inside &= self.frame[:, None] == torch.tensor([box[4] for box in boxes], dtype=torch.long)
        return inside.any(dim=1) | on_masks.any(dim=0)


def joined(parts: Sequence[AttentionCorrectness]) -> AttentionCorrectness:
    """Merge `parts`, whose grids and extents may differ, into one that averages over the content words of all."""
    whole = AttentionCorrectness(parts[0].grid)
    whole.num_words = sum(correctness.num_words for correctness in parts)
    whole.totals = {name: sum(correctness.totals[name] for correctness in parts) for name in whole.totals}
    return whole


class AttentionMotion:
    """Measure the sharpness and the movement of the maps of captions, averaged over all words of `update`."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(("entropy", "at_mode", "movement", "movement_content"), 0.0)
        self.numbers = dict.fromkeys(self.totals, 0)

    def update(self, words: Sequence[str], alpha: Float[Tensor, "T L"], content: Set[str] = frozenset()) -> None:
        """Add one caption.

        alpha: the attention of each word.
        content: the words that name objects.
        """
        alpha = alpha[: len(words)].detach().to("cpu", torch.float64)
        content_alpha = alpha[[index for index, word in enumerate(words) if word in content]]
        self._add("entropy", -torch.xlogy(alpha, alpha).sum(dim=-1))
        self._add("at_mode", alpha.amax(dim=-1))
        self._add("movement", total_variation(alpha))
        self._add("movement_content", total_variation(content_alpha))

    def _add(self, name: str, values: Tensor) -> None:
        self.totals[name] += values.sum().item()
        self.numbers[name] += len(values)

    def compute(self) -> dict[str, float]:
        """Return means over words. A metric without any word to average over is left out.

        entropy: the entropy of a map, in nats (log L at most).
        at_mode: the weight of the most likely region, which is the share of samples that would fall on it.
        movement: the total variation between the maps of neighbouring words, from 0 (equal) to 1 (disjoint).
        movement_content: the same between each content word and the next.
        """
        return {name: total / self.numbers[name] for name, total in self.totals.items() if self.numbers[name]}


def total_variation(alpha: Float[Tensor, "*rows T L"]) -> Float[Tensor, "*rows _"]:
    """Compute the total variation between successive maps, from 0 to 1: the share of attention that moved."""
    return alpha.diff(dim=-2).abs().sum(dim=-1) / 2


def map_statistics(alpha: Float[Tensor, "B R T L"], word_mask: Bool[Tensor, "B R T"]) -> dict[str, Tensor]:
    """Compute the means of `AttentionMotion` for a training batch, on its device. `word_mask` is False at padding."""
    number = word_mask.sum()
    moved = total_variation(alpha) * word_mask[..., 1:]
    return {
        "entropy": torch.special.entr(alpha).sum() / number.clamp(min=1),
        "at_mode": alpha.amax(dim=-1).sum() / number.clamp(min=1),
        "movement": moved.sum() / word_mask[..., 1:].sum().clamp(min=1),
    }


def rank_correlation(maps: Float[Tensor, "maps L"]) -> Float[Tensor, "maps maps"]:
    """Compute Spearman's rank correlation of each pair of maps of L regions; equal weights share the mean of their
    ranks. A map whose weights are all equal has correlation 0 with others, and 1 with another such map."""
    above = (maps[:, :, None] > maps[:, None]).double().sum(dim=2)
    equal = (maps[:, :, None] == maps[:, None]).double().sum(dim=2)
    centred = above + equal / 2 - maps.shape[1] / 2
    length = centred.norm(dim=1)
    flat = length == 0
    correlation = centred @ centred.mT / (length[:, None] * length).clamp(min=1e-12)
    return torch.where(flat[:, None] & flat, 1, correlation)

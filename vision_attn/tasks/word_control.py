"""Measure whether the words of a captioner follow their maps, by replacing the maps. No boxes of objects are needed."""

from collections.abc import Callable, Sequence
from math import log
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vision_attn.attention.steered import Steered, Steering
from vision_attn.contracts import Captioner
from vision_attn.geometry.extents import Extent
from vision_attn.geometry.places import RegionGrid
from vision_attn.metrics.perturbations import Fill, on_pixels

BLOCKS = 4
"""The number of rows, and of columns, of blocks into which an image is divided."""
LIKELIER = 2.0
"""The smallest factor by which a word must be likelier to count as likelier."""
POSSIBLE = 0.01
"""The smallest probability, under one of the two maps, of a word that counts as possible at a position of the
caption."""
DRAWS = 4
"""The number of random places for each pair of words."""


class Controlled(NamedTuple):
    """Whether the place of a map controls one word, which is tried at the positions of the other words of its caption.
    A map on the word's own place is compared with maps on random places; the fields are shares of these comparisons."""

    placed: float
    """How often the word is likelier by the factor `LIKELIER` under the map on its place."""
    random: float
    """How often the word is likelier by the factor `LIKELIER` under the map on a random place. Near `placed` if maps
    have no effect."""


class WordControl:
    """Measures for any two content words a and b of a caption, at t and u, whether a is likelier at u under a map on
    the place of a:

        log p(a | y_1..u-1, do(alpha_u := m_a)) - log p(a | y_1..u-1, do(alpha_u := m_r)) >= log 2,

    with m_a even on the place of a, and m_r even on a random block. The place is the boxes of a where they are known.
    Otherwise it is the one of 4 x 4 blocks of the image without which log p(a | y_1..t-1) is lowest: there the model
    found the word. Only the map of u is replaced; the state, and the words before it, are as they were
    (`metrics.control`). Only comparisons in which p(a) is `POSSIBLE` under one of the maps count: the ratio says
    nothing about words that are impossible at u. Without an effect, a is as often likelier under m_r as under m_a.

    grid: the grid of annotation vectors on the image.
    regions: computes annotation vectors of images (N, 3, S, S).
    """

    def __init__(self, model: Captioner, grid: RegionGrid, regions: Callable[[Tensor], Tensor]) -> None:
        self.model, self.grid, self.regions = model, grid, regions

    @torch.no_grad()
    def of(
        self,
        image: Float[Tensor, "3 S S"],
        words: Int[Tensor, "T"],
        content: Sequence[int],
        boxes: Sequence[Sequence],
        fill: Fill,
    ) -> list[Controlled | None]:
        """Return the control of each content word; None for a word without another one to compare.

        content: the numbers of the content words in the caption `words`.
        boxes: the boxes of each content word, in [-1, 1] of the image; empty for a word whose place occlusion finds.
        fill: fills the place of a block that is removed.
        """
        pairs = [(a, b) for a in range(len(content)) for b in range(len(content)) if a != b]
        pairs = [(a, b) for a, b in pairs if words[content[a]] != words[content[b]]]
        if not pairs:
            return [None] * len(content)
        regions = self.regions(image[None])
        known: list[Any] = [self._on_boxes(place) for place in boxes]
        blocks = self._blocks()
        if any(place is None for place in known):
            occluded = self._found(image, words, fill)[list(content)]
            known = [blocks[block] if place is None else place for place, block in zip(known, occluded, strict=True)]
        places = torch.stack([known[a] for a, _ in pairs])
        chance = blocks[torch.randint(len(blocks), (DRAWS, len(pairs)))]
        log_p = torch.stack([self._log_p(regions, words, content, pairs, maps) for maps in (places, *chance.unbind())])
        of_word = torch.tensor([first for first, _ in pairs])
        return [shares(log_p[:, of_word == a]) for a in range(len(content))]

    def _blocks(self) -> Float[Tensor, "N L"]:
        """Return an even map on each block of the image."""
        edges = torch.linspace(-1, 1, BLOCKS + 1).tolist()
        boxes = [(edges[x], edges[y], edges[x + 1], edges[y + 1]) for y in range(BLOCKS) for x in range(BLOCKS)]
        return torch.stack([on for box in boxes if (on := self._on_boxes([box])) is not None])

    def _on_boxes(self, boxes: Sequence) -> Float[Tensor, "L"] | None:
        """Return an even map on boxes; None if none of them has an area."""
        masks = (self.grid.on_mask(torch.ones(1, 1), Extent(*map(float, box))) for box in boxes)
        on_masks = [on_mask for on_mask in masks if on_mask is not None]
        return torch.stack(on_masks).mean(dim=0).flatten().float() if on_masks else None

    def _found(self, image: Float[Tensor, "3 S S"], words: Int[Tensor, "T"], fill: Fill) -> Int[Tensor, "T"]:
        """Return the block whose removal makes each word least likely."""
        gone = torch.eye(BLOCKS**2, dtype=torch.bool, device=image.device).unflatten(1, (BLOCKS, BLOCKS))

        def without(blocks: Bool[Tensor, "N Y X"]) -> Float[Tensor, "N T"]:
            changed = fill(image, on_pixels(blocks, tuple(image.shape[1:])))
            return self.model(self.regions(changed), words.expand(len(blocks), 1, -1)).log_prob[:, 0]

        return torch.cat([without(blocks) for blocks in gone.split(4)]).argmin(dim=0).cpu()

    def _log_p(
        self,
        regions: Float[Tensor, "1 L D"],
        words: Int[Tensor, "T"],
        content: Sequence[int],
        pairs: Sequence[tuple[int, int]],
        maps: Float[Tensor, "N L"],
    ) -> Float[Tensor, "N"]:
        """Return log p of the first word of each pair at the position of the second one, under its map."""
        row, place = torch.arange(len(pairs)), torch.tensor([content[b] for _, b in pairs])
        said = words.cpu().repeat(len(pairs), 1)
        said[row, place] = torch.tensor([int(words[content[a]]) for a, _ in pairs])
        alpha = torch.zeros(len(pairs), len(words), 1, maps.shape[1])
        alpha[row, place, 0] = maps
        steered = Steered(self.model, Steering(alpha, alpha.any(dim=-1).float()))
        given = steered(regions.expand(len(pairs), -1, -1), said[:, None].to(regions.device))
        return given.log_prob[row, 0, place].cpu()


def shares(log_p: Float[Tensor, "maps pairs"]) -> Controlled | None:
    """Return how often a word is likelier under the first map than under the others, and how often it is less likely;
    None if nothing can be compared."""
    placed, random = log_p[:1], log_p[1:]
    counted = torch.maximum(placed, random) >= log(POSSIBLE)
    more = [((first - second) >= log(LIKELIER)) & counted for first, second in ((placed, random), (random, placed))]
    return Controlled(*(float(share.sum() / counted.sum()) for share in more)) if counted.any() else None

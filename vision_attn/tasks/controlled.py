"""Whether a word follows the map where no object has a known box: an intervention on the maps of one image."""

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
"""Rows and columns of the parts of an image of which one is a place."""
LIKELIER = 2.0
"""The factor from which on a word counts as likelier."""
POSSIBLE = 0.01
"""The probability, under one of the two maps, from which on a word counts as one that could be said there."""
DRAWS = 4
"""Random places for each pair of words."""


class Controlled(NamedTuple):
    """Of one word, at the other words of its caption: shares of comparisons with maps on random places."""

    placed: float
    """How often it is likelier by `LIKELIER` under a map on its place."""
    random: float
    """How often it is likelier by `LIKELIER` under a map on the random place. As often as `placed` where the map
    decides nothing."""


class WordControl:
    """For each two content words a and b of a caption, at t and u: is a likelier at u under a map on the place of a?

        log p(a | y_1..u-1, do(alpha_u := m_a)) - log p(a | y_1..u-1, do(alpha_u := m_r)) >= log 2,

    with m_a even on the place of a, and m_r even on a random block. The place is the boxes of a where they are known,
    or else that of 4 x 4 blocks of the image without which log p(a | y_1..t-1) is lowest: there the model found the
    word. Replaced is the map of u alone; the state, and the words before it, are as they were (`metrics.control`).
    Counted are comparisons in which p(a) is `POSSIBLE` under one of the maps: of words that could not be said at u, a
    ratio tells nothing. Without an effect, a is as often likelier under m_r as under m_a.

    grid: the annotation vectors on the image. regions: images (N, 3, S, S) to annotation vectors.
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
        """The control of each content word, by its number in the caption `words`; None without another one.

        boxes: of each content word, in [-1, 1] of the image; none of one whose place is found by occlusion. fill: what
            stands in the place of a block that is gone.
        """
        pairs = [(a, b) for a in range(len(content)) for b in range(len(content)) if a != b]
        pairs = [(a, b) for a, b in pairs if words[content[a]] != words[content[b]]]
        if not pairs:
            return [None] * len(content)
        regions = self.regions(image[None])
        known: list[Any] = [self._on_boxes(each) for each in boxes]
        blocks = self._blocks()
        if any(each is None for each in known):
            found = self._found(image, words, fill)[list(content)]
            known = [blocks[block] if each is None else each for each, block in zip(known, found, strict=True)]
        places = torch.stack([known[a] for a, _ in pairs])
        chance = blocks[torch.randint(len(blocks), (DRAWS, len(pairs)))]
        log_p = torch.stack([self._log_p(regions, words, content, pairs, maps) for maps in (places, *chance.unbind())])
        of_word = torch.tensor([first for first, _ in pairs])
        return [shares(log_p[:, of_word == a]) for a in range(len(content))]

    def _blocks(self) -> Float[Tensor, "N L"]:
        """An even map on each block of the image."""
        edges = torch.linspace(-1, 1, BLOCKS + 1).tolist()
        boxes = [(edges[x], edges[y], edges[x + 1], edges[y + 1]) for y in range(BLOCKS) for x in range(BLOCKS)]
        return torch.stack([on for box in boxes if (on := self._on_boxes([box])) is not None])

    def _on_boxes(self, boxes: Sequence) -> Float[Tensor, "L"] | None:
        """An even map on boxes; None without any that has an area."""
        masks = (self.grid.on_mask(torch.ones(1, 1), Extent(*map(float, box))) for box in boxes)
        parts = [part for part in masks if part is not None]
        return torch.stack(parts).mean(dim=0).flatten().float() if parts else None

    def _found(self, image: Float[Tensor, "3 S S"], words: Int[Tensor, "T"], fill: Fill) -> Int[Tensor, "T"]:
        """The block without which each word is least likely."""
        gone = torch.eye(BLOCKS**2, dtype=torch.bool, device=image.device).unflatten(1, (BLOCKS, BLOCKS))

        def without(some: Bool[Tensor, "N Y X"]) -> Float[Tensor, "N T"]:
            changed = fill(image, on_pixels(some, tuple(image.shape[1:])))
            return self.model(self.regions(changed), words.expand(len(some), 1, -1)).log_prob[:, 0]

        return torch.cat([without(some) for some in gone.split(4)]).argmin(dim=0).cpu()

    def _log_p(
        self,
        regions: Float[Tensor, "1 L D"],
        words: Int[Tensor, "T"],
        content: Sequence[int],
        pairs: Sequence[tuple[int, int]],
        maps: Float[Tensor, "N L"],
    ) -> Float[Tensor, "N"]:
        """log p of the first word of each pair at the second one's place in the caption, under its map."""
        row, place = torch.arange(len(pairs)), torch.tensor([content[b] for _, b in pairs])
        said = words.cpu().repeat(len(pairs), 1)
        said[row, place] = torch.tensor([int(words[content[a]]) for a, _ in pairs])
        alpha = torch.zeros(len(pairs), len(words), 1, maps.shape[1])
        alpha[row, place, 0] = maps
        steered = Steered(self.model, Steering(alpha, alpha.any(dim=-1).float()))
        given = steered(regions.expand(len(pairs), -1, -1), said[:, None].to(regions.device))
        return given.log_prob[row, 0, place].cpu()


def shares(log_p: Float[Tensor, "maps pairs"]) -> Controlled | None:
    """How often the first map makes a word likelier than the others do, and they more than it; None if nothing can be
    compared."""
    placed, random = log_p[:1], log_p[1:]
    counted = torch.maximum(placed, random) >= log(POSSIBLE)
    more = [((one - other) >= log(LIKELIER)) & counted for one, other in ((placed, random), (random, placed))]
    return Controlled(*(float(each.sum() / counted.sum()) for each in more)) if counted.any() else None

"""`ImageTokens`: find the tokens of the image among the keys of a captioner's attention, and arrange their weights as a
map."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.explain.attention_mode import AttentionRecord, RecordedAttention
from vision_attn.explain.tokens import PatchGrid, PatchTiles, grid_of, known_grid
from vision_attn.system.errors import UserError

Shapes = Sequence[tuple[int, int]]
Calls = Mapping[str, Sequence[RecordedAttention]]
"""The attention of each layer in each step of a generation. All steps but the first have one query."""


class ImageTokens(NamedTuple):
    """The layers that attend to an image in each step of a generation, and the tokens of the image among their keys."""

    layers: list[str]
    grid: PatchGrid | PatchTiles
    positions: Int[Tensor, "L"] | None = None
    """The keys that are tokens of the image; None if all are."""
    mixing: Float[Tensor, "L N"] | None = None
    """The attention of each learned query to the N tokens of the image, for a model with such queries (BLIP-2)."""

    def picture(self, weights: Float[Tensor, "*rest keys"]) -> Float[Tensor, "*rest Y X"]:
        """Arrange the weights of the keys as a map of the image."""
        weights = weights if self.positions is None else weights[..., self.positions]
        weights = weights if self.mixing is None else weights @ self.mixing
        return self.grid.picture(weights)


def find_tokens(
    record: AttentionRecord,
    shapes: Shapes,
    steps: int,
    *,
    given: int = 0,
    positions: Int[Tensor, "L"] | None = None,
    grid: PatchGrid | PatchTiles | None = None,
    mixing: Float[Tensor, "L N"] | None = None,
) -> ImageTokens:
    """Find the layers that attend to the image in each step of a generation of at least two tokens.

    given: the number of tokens of text before the first generated one.
    positions: the positions of the image's tokens in the text; None: they are the keys of cross-attention (BLIP), or
        come before the text (GIT). If layers of cross-attention differ in their grids, the last grid is used.
    grid: the places of the tokens on the image; None: the grid is found by their number.
    mixing: for a model that sees the image through learned queries at these `positions`: the attention of each query to
        the tokens of the image, whose `grid` must be given.

    Raises UserError if there are no such layers, or the tokens form no grid.
    """
    calls = {name: record[name][:steps] for name in record.names}
    maps = {
        name: some
        for name, some in calls.items()
        if len(some) == steps and all(attention.num_queries == 1 for attention in some[1:])
    }
    if positions is None:
        tokens = _by_cross_attention(maps, shapes, given) or _leading(maps, shapes, given)
    else:
        last = int(positions.max())
        layers = [name for name, some in maps.items() if some[0].maps.shape[-1] > last]
        tokens = ImageTokens(layers, grid or _whole_grid(len(positions), shapes), positions, mixing)
    if tokens is None or not tokens.layers:
        raise UserError(
            "no layer of this model attends to the image in each step of its generation. Captioners of these kinds "
            "have maps: with cross-attention to the image (BLIP), with its tokens between the words (LLaVA) or before "
            "them (GIT), or with queries (BLIP-2)"
        )
    return tokens


def _by_cross_attention(calls: Calls, shapes: Shapes, given: int) -> ImageTokens | None:
    """Find the layers of cross-attention, whose keys are only the tokens of the image."""
    number: dict[str, int] = {}
    for name, some in calls.items():
        keys = {attention.maps.shape[-1] for attention in some}
        if len(keys) == 1 and keys != {given}:  # a decoder may attend to a question instead
            number[name] = keys.pop()
    for find in (known_grid, grid_of):  # a square that no convolution returned is a guess
        grids = {name: grid for name, keys in number.items() if (grid := find(keys, shapes)) is not None}
        if grids:
            break
    if not grids:
        return None
    last = grids[list(grids)[-1]]
    return ImageTokens([name for name, grid in grids.items() if grid == last], last)


def _leading(calls: Calls, shapes: Shapes, given: int) -> ImageTokens | None:
    """Find the layers of self-attention whose keys are the tokens of the image followed by those of the text. A
    generation without text begins with at least one token."""
    layers: list[str] = []
    tokens = None
    for name, some in calls.items():
        keys = [attention.maps.shape[-1] for attention in some]
        number = keys[0] - max(given, 1)
        grid = grid_of(number, shapes) if number > 1 else None
        grows = keys == list(range(keys[0], keys[0] + len(keys))) and some[0].num_queries == keys[0]
        # A square that no convolution returned may be a guess made from words.
        if grows and grid is not None and (grid.rows, grid.columns) in shapes and tokens in (None, grid):
            layers, tokens = [*layers, name], grid
    return None if tokens is None else ImageTokens(layers, tokens, torch.arange(tokens.tokens))


def _whole_grid(number: int, shapes: Shapes) -> PatchGrid:
    grid = grid_of(number, shapes)
    known = grid is not None and (grid.rows, grid.columns) in shapes  # or a square is a guess
    if grid is None or grid.prefix > known:
        raise UserError(f"the {number} tokens of the image form no grid, so they have no map")
    return grid

"""From attention over tokens to maps over an image: which tokens are its patches, and which row is the answer's."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.explain.recorder import Attention
from vision_attn.explain.relevance import relevance, rollout, weighted

MOST = 16
"""The largest number of tokens before the patches: a class token and registers."""


NO_PRODUCT = (
    "this model merges tokens between its stages, so rollout and relevance, products of the maps of all layers over "
    "the same tokens, are not defined: choose Grad-CAM, or a layer"
)
"""What is said of a model with `in_stages`."""


class Grid(NamedTuple):
    """The patches among the tokens of an image: `prefix` other tokens, then rows x columns patches."""

    prefix: int
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        return self.prefix + self.rows * self.columns

    def picture(self, weights: Float[Tensor, "*rest N"]) -> Float[Tensor, "*rest Y X"]:
        """The weights of the patches, without the tokens before them."""
        return weights[..., self.prefix :].unflatten(-1, (self.rows, self.columns))


class Tiles(NamedTuple):
    """The patches of an image that is cut into rows x columns tiles of side x side patches, tile by tile, and after
    them those of the whole image, seen at once."""

    rows: int
    columns: int
    side: int

    def picture(self, weights: Float[Tensor, "*rest N"]) -> Float[Tensor, "*rest Y X"]:
        """The weights of the tiles put together, with those of the whole image spread over them."""
        tiles, whole = weights.unflatten(-1, (-1, self.side, self.side)).split([self.rows * self.columns, 1], dim=-3)
        tiles = tiles.unflatten(-3, (self.rows, self.columns)).transpose(-3, -2).flatten(-2).flatten(-3, -2)
        spread = whole[..., 0, :, :].repeat_interleave(self.rows, -2).repeat_interleave(self.columns, -1)
        return tiles + spread / (self.rows * self.columns)


class MapShapes(list[tuple[int, int]]):
    """The rows and columns of the maps that convolutions returned, in the order of their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[tuple[int, int], nn.Conv2d] = {}
        """The first convolution that returned a map of each shape."""


@contextmanager
def map_shapes(model: nn.Module) -> Iterator[MapShapes]:
    """Collect the rows and columns of what each convolution returns; one of them makes the patches."""
    shapes = MapShapes()

    def note(layer: nn.Module, _: tuple, output: Tensor) -> None:
        shapes.append((output.shape[-2], output.shape[-1]))
        shapes.first.setdefault(shapes[-1], layer)

    with ExitStack() as hooks:
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d):
                hooks.enter_context(layer.register_forward_hook(note))
        yield shapes


def grid_of(tokens: int, shapes: Iterable[tuple[int, int]]) -> Grid | None:
    """Find the patches among an image's tokens: as many as a convolution returned, or else the largest square, after at
    most `MOST` other tokens. None if there are none."""
    grids = [Grid(tokens - rows * columns, rows, columns) for rows, columns in shapes]
    side = int(tokens**0.5)
    fitting = [grid for grid in grids if 0 <= grid.prefix <= MOST and grid.rows * grid.columns > 1]
    square = Grid(tokens - side * side, side, side)
    return min(fitting, default=square if square.prefix <= MOST and side > 1 else None, key=lambda grid: grid.prefix)


class ImageAttention:
    """The self-attention over an image's tokens, with full maps, and the row of each map that its answer comes from:
    the class token's, that of an attention pooling, or, without either, the mean of all rows.

    Raises ValueError if no layer attends to a whole image: a convolutional network, or windows, for some of which
    `vision_attn.explain.windows` has maps.
    """

    def __init__(self, record: Sequence[Attention], shapes: Sequence[tuple[int, int]], num_images: int) -> None:
        whole = [one for one in record if len(one.maps) == num_images and "text" not in one.name]
        windows = any(len(one.maps) > num_images and "text" not in one.name for one in record)
        square = Counter(one.num_queries for one in whole if one.num_queries == one.maps.shape[-1])
        grids = {tokens: grid_of(tokens, shapes) for tokens in square}
        fitting = [tokens for tokens in square if grids[tokens] is not None]
        if windows or not fitting:
            raise ValueError("no layer of this model attends to the whole image, so it has no attention map of it")
        tokens = max(fitting, key=lambda number: (square[number], number))
        self.grid: Grid = grids[tokens]
        self.layers = [one for one in whole if one.num_queries == one.maps.shape[-1] == tokens]
        pools = [one for one in whole if one.num_queries == 1 and one.maps.shape[-1] == tokens]
        self.pool = pools[-1] if pools else None
        others = [one for one in whole if one.num_queries > 1 and one.maps.shape[-1] > 1 and one not in self.layers]
        self.in_stages = bool(others)
        """Whether other layers attend over other tokens, so that products over all layers are not defined."""

    def answer(self, rows: Float[Tensor, "*rest N N"]) -> Float[Tensor, "*rest Y X"]:
        """The map of the answer, of weights between all tokens."""
        return self.grid.picture(rows[..., 0, :] if self.grid.prefix else rows.mean(dim=-2))

    def raw(self) -> Float[Tensor, "B layers K Y X"]:
        """The attention of each head of each layer. Layers with fewer heads repeat their mean."""
        most = max(one.maps.shape[1] for one in self.layers)
        maps = [torch.cat([self.answer(one.maps), *[self.answer(one.maps.mean(dim=1))[:, None]] * (
            most - one.maps.shape[1])], dim=1) for one in self.layers]  # fmt: skip
        if self.pool is not None and self.pool.maps.shape[1] == most:
            maps.append(self.grid.picture(self.pool.maps[:, :, 0]))
        return torch.stack(maps, dim=1).detach()

    def rolled(self) -> Float[Tensor, "B Y X"]:
        """Attention rollout (Abnar and Zuidema 2020) of the answer."""
        return self._pooled(rollout(self.layers), None if self.pool is None else self.pool.maps.mean(dim=1))

    def relevant(self) -> Float[Tensor, "B Y X"]:
        """Gradient-weighted relevance (Chefer et al. 2021) of the answer, after `backward`. Layers after which the
        answer takes no other token than those of before have no gradient, and add nothing."""
        layers = [one for one in self.layers if one.gradient is not None]
        pool = self.pool if self.pool is not None and self.pool.gradient is not None else None
        return self._pooled(relevance(layers), None if pool is None else weighted(pool))

    def times_gradient(self) -> Float[Tensor, "B Y X"]:
        """The positive part of attention times its gradient, of the answer, after `backward`: the mean of all layers
        and heads (Chefer et al. 2021, eq. 5, without the product of eq. 6)."""
        layers = [one for one in self.layers if one.gradient is not None]
        return torch.stack([self.answer(weighted(one)) for one in layers]).mean(dim=0).detach()

    def _pooled(self, rows: Float[Tensor, "B N N"], pool: Float[Tensor, "B Q N"] | None) -> Float[Tensor, "B Y X"]:
        if pool is None:
            return self.answer(rows).detach()
        return self.grid.picture((pool @ rows)[:, 0]).detach()

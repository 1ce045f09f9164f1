"""From attention over tokens to maps over an image: which tokens are its patches, and which row is the answer's."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.explain.attention_mode import Attention
from vision_attn.explain.relevance import relevance, rollout, weighted
from vision_attn.system.errors import UserError

MOST = 16
"""The largest number of tokens before the patches: a class token and registers."""
MERGED = (2, 3, 4, 8)
"""How many rows and columns of patches may become one, without a convolution."""

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
def map_shapes(model: nn.Module, num_images: int | None = None) -> Iterator[MapShapes]:
    """Collect the rows and columns of what each convolution returns; one of them makes the patches. num_images: leave
    out what is of another number of images, such as of each patch by itself (TNT)."""
    shapes = MapShapes()

    def note(layer: nn.Conv2d, _: tuple, output: Tensor) -> None:
        if num_images is not None and len(output) != num_images:
            return
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
    side = int(tokens**0.5)
    square = Grid(tokens - side * side, side, side)
    return known_grid(tokens, shapes) or (square if square.prefix <= MOST and side > 1 else None)


def known_grid(tokens: int, shapes: Iterable[tuple[int, int]]) -> Grid | None:
    """Find the patches among an image's tokens, where a convolution returned as many, or where they are every second
    to eighth of its rows and columns, as in models that merge tokens. None if neither is so."""
    shapes = set(shapes)
    grids = [Grid(tokens - rows * columns, rows, columns) for rows, columns in shapes]
    fitting = [grid for grid in grids if 0 <= grid.prefix <= MOST and grid.rows * grid.columns > 1]
    if not fitting:
        merged = {(-(-rows // step), -(-columns // step)) for rows, columns in shapes for step in MERGED}
        grids = [Grid(tokens - rows * columns, rows, columns) for rows, columns in merged]
        fitting = [grid for grid in grids if 0 <= grid.prefix <= 2 and grid.rows > 1 and grid.columns > 1]
    return min(fitting, default=None, key=lambda grid: grid.prefix)


InPlace = Callable[[Attention, Grid], bool]
"""Whether the keys of an attention lie on the image where the grid says."""


class ImageAttention:
    """The attention over an image's tokens, with full maps, and the row of each map that its answer comes from: the
    class token's, that of an attention pooling, or, without either, the mean of all rows.

    Layers are those of self-attention over the most frequent number of tokens, or, where there are none, those in which
    the class token alone attends to all (CaiT, XCiT). Attention over channels is none of them: a grid is one that
    convolutions made; a square is only taken for one where no convolution runs. in_place: what is asked whether a grid
    is true, such as `tokens_in_place` in `recorded_answers.recorded`.

    Raises UserError if no layer attends to a whole image: a convolutional network, or windows, for some of which
    `vision_attn.explain.windows` has maps.
    """

    def __init__(
        self,
        record: Sequence[Attention],
        shapes: Sequence[tuple[int, int]],
        num_images: int,
        in_place: InPlace = lambda *_: True,
    ) -> None:
        seen = [one for one in record if "text" not in one.name]
        whole = [one for one in seen if len(one.maps) == num_images]
        square = [one for one in whole if one.num_queries == one.maps.shape[-1] > 1]
        single = [one for one in whole if one.num_queries == 1 and one.maps.shape[-1] > 1]
        found = next(_placed(square, single, shapes, in_place), None)
        if found is None or _windowed(seen, num_images, found[1]):
            raise UserError("no layer of this model attends to the whole image, so it has no attention map of it")
        self.layers: list[Attention] = found[0]
        self.grid: Grid = found[1]
        tokens = self.grid.tokens
        pools = [one for one in single if one.maps.shape[-1] == tokens and self.layers[0].num_queries > 1]
        self.pool = pools[-1] if pools else None
        others = [one for one in whole if one.num_queries > 1 and one.maps.shape[-1] > 1 and one not in self.layers]
        self.in_stages = any(known_grid(one.num_queries, shapes) is not None for one in others)
        """Whether other layers attend over other tokens, so that products over all layers are not defined."""

    def answer(self, rows: Float[Tensor, "*rest Q N"]) -> Float[Tensor, "*rest Y X"]:
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
        return self._pooled(rollout, self.layers, lambda one: one.maps.mean(dim=1))

    def relevant(self) -> Float[Tensor, "B Y X"]:
        """Gradient-weighted relevance (Chefer et al. 2021) of the answer, after `backward`. Layers after which the
        answer takes no other token than those of before have no gradient, and add nothing."""
        return self._pooled(relevance, [one for one in self.layers if one.gradient is not None], weighted)

    def times_gradient(self) -> Float[Tensor, "B Y X"]:
        """The positive part of attention times its gradient, of the answer, after `backward`: the mean of all layers
        and heads (Chefer et al. 2021, eq. 5, without the product of eq. 6)."""
        layers = [one for one in self.layers if one.gradient is not None]
        return torch.stack([self.answer(weighted(one)) for one in layers]).mean(dim=0).detach()

    def _pooled(
        self,
        product: Callable[[list[Attention]], Float[Tensor, "B N N"]],
        layers: list[Attention],
        mixed: Callable[[Attention], Float[Tensor, "B Q N"]],
    ) -> Float[Tensor, "B Y X"]:
        """The map of the answer, of the product of layers, and of the pooling that follows them."""
        if (
            layers and layers[0].num_queries == 1 and not self.grid.prefix
        ):  # a query that is no token: no layer comes before
            return self.answer(mixed(layers[-1])).detach()
        rows = product([_with_tokens(one) for one in layers])
        if self.pool is None or (self.pool.gradient is None and product is relevance):
            return self.answer(rows).detach()
        return self.grid.picture((mixed(self.pool) @ rows)[:, 0]).detach()


def _placed(
    square: Sequence[Attention], single: Sequence[Attention], shapes: Iterable[tuple[int, int]], in_place: InPlace
) -> Iterator[tuple[list[Attention], Grid]]:
    """The layers over as many tokens as an image has patches, with their grid: those of self-attention first, the most
    frequent number of tokens first."""
    shapes = [shape for shape in shapes if shape != (1, 1)]
    for some in (square, single):
        number = Counter(one.maps.shape[-1] for one in some)
        for tokens in sorted(number, key=lambda tokens: (number[tokens], tokens), reverse=True):
            layers = [one for one in some if one.maps.shape[-1] == tokens]
            grid = known_grid(tokens, shapes) if shapes else grid_of(tokens, ())
            if grid is not None and in_place(layers[0], grid):
                yield layers, grid


def _windowed(seen: Sequence[Attention], num_images: int, grid: Grid) -> bool:
    """Whether layers attend within windows. Within each patch (TNT), attention brings nothing from other places."""
    several = {len(one.maps) for one in seen if len(one.maps) > num_images}
    return bool(several - {num_images * grid.rows * grid.columns})


def _with_tokens(one: Attention) -> Attention:
    """An attention of the class token alone, as self-attention of all tokens, of which the others take nothing."""
    if one.num_queries > 1:
        return one
    tokens = one.maps.shape[-1]
    whole = Attention(one.name, one.call, F.pad(one.maps, (0, 0, 0, tokens - 1)), tuple(range(tokens)), tokens)
    whole.gradient = None if one.gradient is None else F.pad(one.gradient, (0, 0, 0, tokens - 1))
    return whole

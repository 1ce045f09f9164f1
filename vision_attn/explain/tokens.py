"""Convert attention over tokens to maps over an image: find the tokens that are patches, and the row of the answer."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.explain.attention_mode import RecordedAttention
from vision_attn.explain.relevance import relevance, rollout, weighted
from vision_attn.system.errors import UserError

MOST = 16
"""The largest number of tokens before the patches: a class token and registers."""
MERGED = (2, 3, 4, 8)
"""The numbers of rows and columns of patches that a model may merge without a convolution."""

NO_PRODUCT = (
    "this model merges tokens between its stages, so rollout and relevance, products of the maps of all layers over "
    "the same tokens, are not defined: choose Grad-CAM, or a layer"
)
"""The message for a model with `in_stages`."""


class PatchGrid(NamedTuple):
    """The tokens of an image: `prefix` other tokens, then rows x columns patches."""

    prefix: int
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        return self.prefix + self.rows * self.columns

    def picture(self, weights: Float[Tensor, "*rest N"]) -> Float[Tensor, "*rest Y X"]:
        """Arrange the weights of the patches as a map, without the tokens before them."""
        return weights[..., self.prefix :].unflatten(-1, (self.rows, self.columns))


class PatchTiles(NamedTuple):
    """The tokens of an image that is cut into tiles: rows x columns tiles of side x side patches, tile by tile, then
    the patches of the reduced whole image."""

    rows: int
    columns: int
    side: int

    def picture(self, weights: Float[Tensor, "*rest N"]) -> Float[Tensor, "*rest Y X"]:
        """Join the weights of the tiles, and add those of the whole image, spread over them."""
        tiles, whole = weights.unflatten(-1, (-1, self.side, self.side)).split([self.rows * self.columns, 1], dim=-3)
        tiles = tiles.unflatten(-3, (self.rows, self.columns)).transpose(-3, -2).flatten(-2).flatten(-3, -2)
        spread = whole[..., 0, :, :].repeat_interleave(self.rows, -2).repeat_interleave(self.columns, -1)
        return tiles + spread / (self.rows * self.columns)


class MapShapes(list[tuple[int, int]]):
    """The (rows, columns) of the maps that convolutions returned, in the order of their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[tuple[int, int], nn.Conv2d] = {}
        """The first convolution that returned a map of each shape."""


@contextmanager
def map_shapes(model: nn.Module, num_images: int | None = None) -> Iterator[MapShapes]:
    """Context manager: collect the rows and columns of each convolution's output; one of them makes the patches.

    num_images: leave out outputs for another number of images, such as those for each patch by itself (TNT)."""
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


def grid_of(tokens: int, shapes: Iterable[tuple[int, int]]) -> PatchGrid | None:
    """Find the patches among an image's tokens: a grid that a convolution returned, or else the largest square, after
    at most `MOST` other tokens. Returns None if neither fits."""
    side = int(tokens**0.5)
    square = PatchGrid(tokens - side * side, side, side)
    return known_grid(tokens, shapes) or (square if square.prefix <= MOST and side > 1 else None)


def known_grid(tokens: int, shapes: Iterable[tuple[int, int]]) -> PatchGrid | None:
    """Find the patches among an image's tokens: a grid that a convolution returned, or such a grid with rows and
    columns divided by one of `MERGED`, as in models that merge tokens. Returns None if neither fits."""
    shapes = set(shapes)
    grids = [PatchGrid(tokens - rows * columns, rows, columns) for rows, columns in shapes]
    fitting = [grid for grid in grids if 0 <= grid.prefix <= MOST and grid.rows * grid.columns > 1]
    if not fitting:
        merged = {(-(-rows // step), -(-columns // step)) for rows, columns in shapes for step in MERGED}
        grids = [PatchGrid(tokens - rows * columns, rows, columns) for rows, columns in merged]
        fitting = [grid for grid in grids if 0 <= grid.prefix <= 2 and grid.rows > 1 and grid.columns > 1]
    return min(fitting, default=None, key=lambda grid: grid.prefix)


InPlace = Callable[[RecordedAttention, PatchGrid], bool]
"""A function that returns whether the keys of an attention lie on the image as in the grid."""


class ImageAttention:
    """The attention over an image's tokens, with full maps. The map of an answer is the row of the class token, the row
    of an attention pooling or, without either, the mean of all rows.

    Uses the layers of self-attention over the most frequent number of tokens or, if there are none, those in which only
    the class token attends (CaiT, XCiT). To leave out attention over channels, a grid must be one that a convolution
    made; any square counts only in models without convolutions.

    in_place: tests whether a grid is right, such as `tokens_in_place` in `recorded_answers.recorded`.

    Raises UserError if no layer attends to a whole image, as in convolutional networks and with windows (see
    `vision_attn.explain.windows`).
    """

    def __init__(
        self,
        record: Sequence[RecordedAttention],
        shapes: Sequence[tuple[int, int]],
        num_images: int,
        in_place: InPlace = lambda *_: True,
    ) -> None:
        seen = [attention for attention in record if "text" not in attention.name]
        whole = [attention for attention in seen if len(attention.maps) == num_images]
        square = [attention for attention in whole if attention.num_queries == attention.maps.shape[-1] > 1]
        single = [attention for attention in whole if attention.num_queries == 1 and attention.maps.shape[-1] > 1]
        placed = next(_groups_on_grids(square, single, shapes, in_place), None)
        if placed is None or _attends_in_windows(seen, num_images, placed[1]):
            raise UserError("no layer of this model attends to the whole image, so it has no attention map of it")
        self.layers: list[RecordedAttention] = placed[0]
        self.grid: PatchGrid = placed[1]
        tokens = self.grid.tokens
        pools = [
            attention for attention in single if attention.maps.shape[-1] == tokens and self.layers[0].num_queries > 1
        ]
        self.pool = pools[-1] if pools else None
        others = [
            attention
            for attention in whole
            if attention.num_queries > 1 and attention.maps.shape[-1] > 1 and attention not in self.layers
        ]
        self.in_stages = any(known_grid(attention.num_queries, shapes) is not None for attention in others)
        """Whether some layers attend over other grids of tokens, so that products over all layers are undefined."""

    def answer(self, weights: Float[Tensor, "*rest Q N"]) -> Float[Tensor, "*rest Y X"]:
        """Return the map of the answer, from weights between all tokens."""
        return self.grid.picture(weights[..., 0, :] if self.grid.prefix else weights.mean(dim=-2))

    def raw(self) -> Float[Tensor, "B layers K Y X"]:
        """Return the attention of each head of each layer. Layers with fewer heads repeat their mean."""
        most = max(layer.maps.shape[1] for layer in self.layers)
        maps = [torch.cat([self.answer(layer.maps), *[self.answer(layer.maps.mean(dim=1))[:, None]] * (
            most - layer.maps.shape[1])], dim=1) for layer in self.layers]  # fmt: skip
        if self.pool is not None and self.pool.maps.shape[1] == most:
            maps.append(self.grid.picture(self.pool.maps[:, :, 0]))
        return torch.stack(maps, dim=1).detach()

    def rolled(self) -> Float[Tensor, "B Y X"]:
        """Return the attention rollout (Abnar and Zuidema 2020) of the answer."""
        return self._pooled(rollout, self.layers, lambda layer: layer.maps.mean(dim=1))

    def relevant(self) -> Float[Tensor, "B Y X"]:
        """Return the gradient-weighted relevance (Chefer et al. 2021) of the answer, after `backward`. Layers that the
        answer does not depend on have no gradient and add nothing."""
        return self._pooled(relevance, [layer for layer in self.layers if layer.gradient is not None], weighted)

    def times_gradient(self) -> Float[Tensor, "B Y X"]:
        """Return the positive part of attention times its gradient for the answer, after `backward`, averaged over all
        layers and heads (Chefer et al. 2021, eq. 5, without the product of eq. 6)."""
        layers = [layer for layer in self.layers if layer.gradient is not None]
        return torch.stack([self.answer(weighted(layer)) for layer in layers]).mean(dim=0).detach()

    def _pooled(
        self,
        product: Callable[[list[RecordedAttention]], Float[Tensor, "B N N"]],
        layers: list[RecordedAttention],
        mixed: Callable[[RecordedAttention], Float[Tensor, "B Q N"]],
    ) -> Float[Tensor, "B Y X"]:
        """Return the map of the answer: the product of layers, through the pooling that follows them if there is
        one."""
        if (
            layers and layers[0].num_queries == 1 and not self.grid.prefix
        ):  # a query that is no token: no layer comes before
            return self.answer(mixed(layers[-1])).detach()
        weights = product([_with_tokens(layer) for layer in layers])
        if self.pool is None or (self.pool.gradient is None and product is relevance):
            return self.answer(weights).detach()
        return self.grid.picture((mixed(self.pool) @ weights)[:, 0]).detach()


def _groups_on_grids(
    square: Sequence[RecordedAttention],
    single: Sequence[RecordedAttention],
    shapes: Iterable[tuple[int, int]],
    in_place: InPlace,
) -> Iterator[tuple[list[RecordedAttention], PatchGrid]]:
    """Yield groups of layers whose tokens form a grid on the image, with this grid: self-attention first, the most
    frequent number of tokens first."""
    shapes = [shape for shape in shapes if shape != (1, 1)]
    for some in (square, single):
        number = Counter(attention.maps.shape[-1] for attention in some)
        for tokens in sorted(number, key=lambda tokens: (number[tokens], tokens), reverse=True):
            layers = [attention for attention in some if attention.maps.shape[-1] == tokens]
            grid = known_grid(tokens, shapes) if shapes else grid_of(tokens, ())
            if grid is not None and in_place(layers[0], grid):
                yield layers, grid


def _attends_in_windows(seen: Sequence[RecordedAttention], num_images: int, grid: PatchGrid) -> bool:
    """Return whether layers attend within windows. Attention within single patches (TNT) does not count."""
    several = {len(attention.maps) for attention in seen if len(attention.maps) > num_images}
    return bool(several - {num_images * grid.rows * grid.columns})


def _with_tokens(attention: RecordedAttention) -> RecordedAttention:
    """Return attention of the class token alone as self-attention of all tokens, with weights of 0 for the others."""
    if attention.num_queries > 1:
        return attention
    tokens = attention.maps.shape[-1]
    whole = RecordedAttention(
        attention.name, attention.call, F.pad(attention.maps, (0, 0, 0, tokens - 1)), tuple(range(tokens)), tokens
    )
    whole.gradient = None if attention.gradient is None else F.pad(attention.gradient, (0, 0, 0, tokens - 1))
    return whole

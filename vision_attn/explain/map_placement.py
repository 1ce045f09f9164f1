"""Test whether the cells of a map see the places where they are drawn: a square of a picture is changed, and the map
must change there. Attention over channels, latents without a place and patches in another order fail this test."""

import re
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.explain.record import record_attention
from vision_attn.geometry.receptive_fields import marked, noise
from vision_attn.system.errors import UserError

SIDE = 240
"""The longer side of the pictures, in pixels."""
SQUARE = 14
"""The side of a picture divided by the side of a changed square."""
REGIONS = 3
"""The number of rows, and of columns, of regions with a square in their middle; fewer for maps with fewer cells."""
FOLLOWS = 0.8
"""The smallest correlation, along each axis, of the centre of the changes with the place of the square."""
PICTURES = 3
"""The number of pictures that are tried before a map is refused."""
NOTHING = 1e-6
"""The largest change, relative to the largest value, that may come from rounding."""
UNSTEADY = 0.01
"""The largest difference between two calls, relative to the largest value, that may come from the order of sums."""
RANDOM = (
    "this model gives the same image another answer each time (it hides or shuffles patches, or drops out at random), "
    "so a map of it means nothing"
)

MapOf = Callable[[Image.Image], Float[Tensor, "D rows columns"]]
"""A function from a picture to the values of the cells of a map."""
_known: WeakKeyDictionary[nn.Module, dict[Hashable, bool]] = WeakKeyDictionary()


def once(module: nn.Module, key: Hashable, find: Callable[[], bool]) -> bool:
    """Return `find()`, computed once for each module and key: places depend on a model's architecture, not on its
    weights."""
    known = _known.setdefault(module, {})
    if key not in known:
        known[key] = find()
    return known[key]


@torch.no_grad()
def in_place(map_of: MapOf, size: tuple[int, int] = (SIDE, SIDE)) -> bool:
    """Return whether the cells of a map see the places where the map is drawn.

    Squares in up to 9 regions of a picture are changed, one at a time. Three quarters of them must change their own
    region of the map most, after normalisation of the changes over squares and over regions. Or the centre of the
    changes must follow the squares from left to right and from top to bottom, as in coarse maps that are slightly
    displaced. True for maps of one cell, and for maps that no square changes.

    map_of: computes the map of a picture.
    size: width and height of the pictures.

    Raises UserError if the map of a picture differs between calls.
    """
    response: Any = 0.0
    for seed in range(PICTURES):
        plain = marked_pictures(size, seed, (REGIONS, REGIONS))[0]
        before = map_of(plain)
        rows, columns = (min(REGIONS, side) for side in before.shape[1:])
        if not seed:
            if before[0].numel() == 1:
                return True
            if unsteady(before, map_of(plain)):
                raise UserError(RANDOM)
        others = marked_pictures(size, seed, (rows, columns))[1:]
        changes = torch.stack([
            _by_region((map_of(other) - before).float().square().sum(dim=0).sqrt(), (rows, columns)) for other in others
        ])  # fmt: skip
        if changes.max() <= NOTHING * before.abs().max() or not changes.isfinite().all():
            return True
        changes = changes / changes.mean(dim=1, keepdim=True).clamp(min=1e-30)
        response = response + changes / changes.mean(dim=0).clamp(min=1e-30)
        number = len(response)
        right = int((response.argmax(dim=1) == torch.arange(number)).sum())
        if 4 * right >= 3 * number:
            return True
    return _follows(response, (rows, columns))


def unsteady(first: Tensor, other: Tensor) -> bool:
    """Return whether two results differ by more than rounding."""
    return first.shape != other.shape or bool((first - other).abs().max() > UNSTEADY * first.abs().max())


@lru_cache(maxsize=8)
def marked_pictures(size: tuple[int, int], seed: int, regions: tuple[int, int]) -> list[Image.Image]:
    """Return a picture of noise, and for each region a copy with a small square in its middle, row by row. In the
    square, each channel is black where it was bright, else white.

    size: width and height of the picture.
    regions: the number of rows and columns of regions.
    """
    columns, rows = (max(SQUARE, round(SIDE * side / max(size))) for side in size)
    plain = noise(1, (rows, columns), torch.Generator().manual_seed(seed))
    middles = torch.tensor([
        (round((2 * y + 1) * rows / (2 * regions[0])), round((2 * x + 1) * columns / (2 * regions[1])))
        for y in range(regions[0])
        for x in range(regions[1])
    ])  # fmt: skip
    half = [max(1, round(side / SQUARE / 2)) for side in (rows, columns)]
    changed = marked(plain.expand(len(middles), -1, -1, -1), middles, half)
    pictures = [Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()) for pixels in torch.cat([plain, changed])]
    return [picture if picture.size == size else picture.resize(size, Image.Resampling.BICUBIC) for picture in pictures]


def keys_of(module: nn.Module, name: str, call: Callable[[], object]) -> Float[Tensor, "B D N"]:
    """Run `call`, and return the weights of the keys in the first attention of the layer `name`, averaged over heads.
    For cross-attention, which may have few queries, return the input vectors of the keys, if the layer takes them as
    input. `call` is ended after that layer."""
    given: list[Tensor] = []

    def end(_: nn.Module, args: tuple, named: dict, __: object) -> None:
        given.extend(tensor for tensor in (*args, *named.values()) if isinstance(tensor, Tensor) and tensor.dim() == 3)
        raise _Ended

    layer = dict(module.named_modules())[name]
    with record_attention(module, queries="all", layers=f"^{re.escape(name)}$", mean=True) as record:
        hook = layer.register_forward_hook(end, with_kwargs=True)
        try:
            with suppress(_Ended):
                call()
        finally:
            hook.remove()
    maps = record[0].maps[:, 0]
    if maps.shape[1] != maps.shape[2]:
        vectors = (
            tensor for tensor in given if tensor.shape[:2] == (len(maps), maps.shape[2]) and tensor.is_floating_point()
        )
        return next((tensor.detach().float().mT for tensor in vectors), maps)
    return maps


class _Ended(Exception):
    """Ends a call: the keys have been computed."""


def _follows(response: Float[Tensor, "squares regions"], regions: tuple[int, int]) -> bool:
    """Return whether the centre of the changes of each square follows its place, along each axis."""
    centres = response / response.sum(dim=1, keepdim=True)
    places = torch.cartesian_prod(*(torch.arange(side, dtype=response.dtype) for side in regions))
    pairs = [torch.stack([centres @ axis, axis]) for axis in places.unbind(1) if axis.any()]
    return all(float(torch.corrcoef(pair)[0, 1]) > FOLLOWS for pair in pairs)


def _by_region(change: Float[Tensor, "rows columns"], regions: tuple[int, int]) -> Float[Tensor, "regions"]:
    """Return the mean of each region, row by row; a cell that lies in several regions is divided among them."""
    divided = F.interpolate(change[None, None], scale_factor=REGIONS, mode="nearest")[0]
    return F.adaptive_avg_pool2d(divided, regions).flatten().cpu()

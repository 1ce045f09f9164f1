"""Whether the cells of a map see the places where it is drawn, measured: a square of a picture is changed, and the map
must change there. Attention over channels, latents without a place and patches in another order do not pass."""

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
"""Pixels of the longer side of the pictures."""
SQUARE = 14
"""The sides of a picture over those of a square that is changed."""
REGIONS = 3
"""Rows and columns of the regions of a picture, each of which has a square in its middle; fewer for maps of fewer."""
FOLLOWS = 0.8
"""The correlation, along each axis, of the centre of the changes with the place of the square."""
PICTURES = 3
"""Pictures on which it is tried before a map is refused."""
NOTHING = 1e-6
"""A change relative to the largest value that rounding explains."""
UNSTEADY = 0.01
"""A difference between two calls, relative to the largest value, that the order of sums does not explain."""
RANDOM = (
    "this model gives the same image another answer each time (it hides or shuffles patches, or drops out at random), "
    "so a map of it means nothing"
)

MapOf = Callable[[Image.Image], Float[Tensor, "D rows columns"]]
"""From a picture to what the cells of a map hold of it."""
_known: WeakKeyDictionary[nn.Module, dict[Hashable, bool]] = WeakKeyDictionary()


def once(module: nn.Module, key: Hashable, find: Callable[[], bool]) -> bool:
    """What `find` returned for a module when it was first asked: places depend on what a model is made of, not on its
    weights."""
    known = _known.setdefault(module, {})
    if key not in known:
        known[key] = find()
    return known[key]


@torch.no_grad()
def in_place(map_of: MapOf, size: tuple[int, int] = (SIDE, SIDE)) -> bool:
    """Return whether the cells of a map see the places where the map is drawn.

    Of squares in up to 9 regions of a picture, three quarters must change their own region of the map most, where each
    region's changes are taken relative to how much it changes for all squares, and each square's to how much it changes
    all regions. Or the centre of the changes must follow the squares from left to right and from top to bottom, as in
    coarse maps that lie a little aside. True for maps of one cell, and for those that nothing changes. size: width and
    height of the pictures.

    Raises UserError if the map of a picture differs from one call to the next.
    """
    found: Any = 0.0
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
        found = found + changes / changes.mean(dim=0).clamp(min=1e-30)
        number = len(found)
        right = int((found.argmax(dim=1) == torch.arange(number)).sum())
        if 4 * right >= 3 * number:
            return True
    return _follows(found, (rows, columns))


def unsteady(one: Tensor, other: Tensor) -> bool:
    """Whether two results differ by more than rounding."""
    return one.shape != other.shape or bool((one - other).abs().max() > UNSTEADY * one.abs().max())


@lru_cache(maxsize=8)
def marked_pictures(size: tuple[int, int], seed: int, regions: tuple[int, int]) -> list[Image.Image]:
    """A picture of noise, width x height, and copies with a small square in the middle of each of its regions (rows and
    columns of them), row by row: each channel is black where it was bright, and else white."""
    columns, rows = (max(SQUARE, round(SIDE * side / max(size))) for side in size)
    plain = noise(1, (rows, columns), torch.Generator().manual_seed(seed))
    middles = torch.tensor([
        (round((2 * y + 1) * rows / (2 * regions[0])), round((2 * x + 1) * columns / (2 * regions[1])))
        for y in range(regions[0])
        for x in range(regions[1])
    ])  # fmt: skip
    half = [max(1, round(side / SQUARE / 2)) for side in (rows, columns)]
    changed = marked(plain.expand(len(middles), -1, -1, -1), middles, half)
    pictures = [Image.fromarray(one.permute(1, 2, 0).contiguous().numpy()) for one in torch.cat([plain, changed])]
    return [one if one.size == size else one.resize(size, Image.Resampling.BICUBIC) for one in pictures]


def keys_of(module: nn.Module, name: str, call: Callable[[], object]) -> Float[Tensor, "B D N"]:
    """What is known of the keys of the first attention that the layer `name` computes within `call`, which is ended
    after that layer: their weight for each query, the mean over heads; where queries are others than the keys, and may
    be few, the vectors from which the layer makes its keys, if it is given them."""
    given: list[Tensor] = []

    def end(_: nn.Module, args: tuple, named: dict, __: object) -> None:
        given.extend(one for one in (*args, *named.values()) if isinstance(one, Tensor) and one.dim() == 3)
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
        vectors = (one for one in given if one.shape[:2] == (len(maps), maps.shape[2]) and one.is_floating_point())
        return next((one.detach().float().mT for one in vectors), maps)
    return maps


class _Ended(Exception):
    """What was looked for has been computed."""


def _follows(found: Float[Tensor, "squares regions"], regions: tuple[int, int]) -> bool:
    """Whether the centre of the changes of each square follows its place, along each axis."""
    centres = found / found.sum(dim=1, keepdim=True)
    places = torch.cartesian_prod(*(torch.arange(side, dtype=found.dtype) for side in regions))
    pairs = [torch.stack([centres @ axis, axis]) for axis in places.unbind(1) if axis.any()]
    return all(float(torch.corrcoef(pair)[0, 1]) > FOLLOWS for pair in pairs)


def _by_region(change: Float[Tensor, "rows columns"], regions: tuple[int, int]) -> Float[Tensor, "regions"]:
    """The mean of each region, row by row; cells that lie in several are divided among them."""
    divided = F.interpolate(change[None, None], scale_factor=REGIONS, mode="nearest")[0]
    return F.adaptive_avg_pool2d(divided, regions).flatten().cpu()

"""Steer a captioner: check the places that a user gives for words, and convert them to maps over its regions."""

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.attention.steered import Steering
from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.geometry.places import RegionGrid, as_map, is_box
from vision_attn.system.errors import UserError

Place = Sequence[float | int] | np.ndarray | Tensor
"""A point (x, y), a box (x0, y0, x1, y1) or a mask (Y, X), in [-1, 1] of the whole photograph; see `Model.caption`."""
Attend = Mapping[Any, Place]
"""The place of each word, by its number from 1, or by the first and the last number of several."""
SHAPES = "a point (x, y), a box (x0, y0, x1, y1) or a mask (Y, X)"


class Wanted:
    """The arguments `attend` and `strength` of `Model.caption`: the place of each word, checked.

    Raises UserError for words and places that do not exist.
    """

    def __init__(self, attend: Any, strength: Any, most: int) -> None:
        """
        most: the largest number of words of a caption, END included.
        """
        if not isinstance(strength, Real) or isinstance(strength, bool) or not 0 <= float(strength) <= 1:
            raise UserError(f"strength is {strength!r}, but must be from 0 (its own map) to 1 (only the place)")
        if not isinstance(attend, Mapping) or not attend:
            raise UserError(f"attend is a dict of words, counted from 1, such as {{3: (0.3, -0.2)}}, not {attend!r}")
        self.strength = float(strength)
        self.places: dict[int, tuple[float, ...] | Tensor] = {}
        for words, place in attend.items():
            checked = _checked(place, words)
            for number in _numbers(words, most):
                if number in self.places:
                    raise UserError(f"attend has two places for word {number}: leave one out")
                self.places[number] = checked
        if self.strength == 0:  # then it changes nothing, not even what is sampled
            self.places = {}

    def steering(
        self, layout: tuple[int, int, int], extent: Extent, seen: Sequence[Extent], heads: int = 1
    ) -> Steering | None:
        """Return the maps for each image; None if nothing is steered.

        layout: frames, rows and columns of regions.
        extent: where the regions lie on the part of a photograph that the model sees.
        seen: the part of each photograph that the model sees.
        """
        if not self.places:
            return None
        different = {view: self._maps(layout, RegionGrid(*layout[1:], extent, view)) for view in dict.fromkeys(seen)}
        K = max(len(heads_of_word) for maps in different.values() for heads_of_word in maps.values())
        shape = (len(seen), max(self.places), K, layout[0] * layout[1] * layout[2])
        alpha = torch.zeros(shape, dtype=torch.float64 if _is_double(self.places) else torch.float32)
        for image, view in enumerate(seen):
            for number, maps in different[view].items():
                if len(maps) not in (1, K):
                    raise UserError(f"word {number} has maps of {len(maps)} heads, and another word of {K}")
                alpha[image, number - 1] = maps
        return Steering(alpha, self.strength * alpha.any(dim=-1))

    def _maps(self, layout: tuple[int, int, int], grid: RegionGrid) -> dict[int, Float[Tensor, "K L"]]:
        """Return the map of each word: one for each of K heads, or one for all of them."""
        made: dict[int, Tensor] = {}
        maps: dict[int, Tensor] = {}
        for number, place in self.places.items():
            if id(place) not in made:
                made[id(place)] = _map_of(place, layout, grid, number)
            maps[number] = made[id(place)]
        return maps


def _is_double(places: Mapping[int, Any]) -> bool:
    return any(isinstance(place, Tensor) and place.dtype == torch.float64 for place in places.values())


def _numbers(words: Any, most: int) -> range:
    """Return the numbers of words that a key of `attend` names."""
    ends = words if isinstance(words, tuple) else (words, words)
    if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, Integral) for end in ends):
        raise UserError(f"attend has the word {words!r}: give its number, from 1, or (first, last)")
    first, last = ends
    if not 1 <= first <= last <= most:
        raise UserError(f"attend has the word {words}, but a caption has the words 1 to {most}, the end included")
    return range(int(first), int(last) + 1)


def _checked(place: Any, words: Any) -> tuple[float, ...] | Tensor:
    """Check a place. Return a point or box as numbers, a mask as a tensor of floats."""
    where = f"attend, word {words}"
    try:
        array = torch.as_tensor(place if isinstance(place, Tensor) else np.asarray(place)).detach().cpu()
        array = array if array.is_floating_point() else array.float()
        array = array.float() if array.dtype in (torch.float16, torch.bfloat16) else array
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: a place is {SHAPES}, not {place!r}") from error
    if not bool(array.isfinite().all()):
        raise UserError(f"{where}: a place is of finite numbers")
    if array.dim() == 1:
        numbers = tuple(float(number) for number in place)
        if not 2 <= len(numbers) <= 5:
            raise UserError(f"{where}: a place is {SHAPES}, not {len(numbers)} numbers")
        return numbers
    if not 2 <= array.dim() <= 4 or not array.numel():
        raise UserError(f"{where}: a place is {SHAPES}, not an array of the shape {tuple(array.shape)}")
    if bool((array < 0).any()) or not bool(array.any()):
        raise UserError(f"{where}: the weights of a mask are not negative, and not all 0")
    return array


def _map_of(
    place: tuple[float, ...] | Tensor, layout: tuple[int, int, int], grid: RegionGrid, number: int
) -> Float[Tensor, "K L"]:
    """Return a place as weights of regions: (1, L), or (K, L) for a mask with a map for each head."""
    frames, *shape = layout
    if isinstance(place, Tensor):
        return _of_mask(place, layout, grid, number)
    film = frames > 1
    at, frame = (place[:-1], place[-1]) if film and len(place) % 2 else (place, None)
    if len(at) not in (2, 4):
        raise UserError(f"word {number}: {place} has a frame, but the model takes images")
    if frame is not None and not (float(frame).is_integer() and 1 <= frame <= frames):
        raise UserError(f"word {number}: the frame of {place} is from 1 to {frames}")
    if len(at) == 4 and not is_box(at):
        raise UserError(f"word {number}: a box is x0 < x1, y0 < y1 from -1 to 1, not {at}")
    on_grid = grid.at_point(*at) if len(at) == 2 else grid.on_mask(torch.ones(1, 1), Extent(*at))
    if on_grid is None:
        raise _unseen_error(place, number, grid.seen)
    chosen = torch.ones(frames, dtype=torch.float64) / frames
    if frame is not None:
        chosen = torch.zeros(frames, dtype=torch.float64).index_fill(0, torch.tensor(int(frame) - 1), 1)
    return as_map(chosen[:, None, None] * on_grid).float().flatten()[None]


def _of_mask(mask: Tensor, layout: tuple[int, int, int], grid: RegionGrid, number: int) -> Float[Tensor, "K L"]:
    """Return the map of a mask. A mask in the shape of the model's maps is used as a map; any other mask covers the
    whole photograph."""
    own = layout if layout[0] > 1 else layout[1:]
    if mask.dim() not in (len(own), len(own) + 1) or (layout[0] > 1 and mask.shape[-3] != layout[0]):
        wanted = "(Y, X), or (K, Y, X) of heads" if layout[0] == 1 else f"({layout[0]}, Y, X), a map for each frame"
        raise UserError(f"word {number}: a mask of this model is {wanted}, not {tuple(mask.shape)}")
    heads = mask if mask.dim() > len(own) else mask[None]
    maps = []
    for head in heads:
        if not head.any():  # this head keeps its own map
            maps.append(torch.zeros(layout, dtype=mask.dtype).flatten())
        elif head.shape == torch.Size(own):
            maps.append(as_map(head).flatten())
        else:
            on_grid = [grid.on_mask(frame) if frame.any() else None for frame in head.reshape(-1, *head.shape[-2:])]
            if all(frame is None for frame in on_grid):
                raise _unseen_error("this mask", number, grid.seen)
            shares = [float(frame.sum()) for frame in head.reshape(-1, *head.shape[-2:])]
            zeros = torch.zeros(layout[1:], dtype=torch.float64)
            weighed = [zeros if frame is None else share * frame for frame, share in zip(on_grid, shares, strict=True)]
            maps.append(as_map(torch.stack(weighed)).to(mask.dtype).flatten())
    return torch.stack(maps)


def _unseen_error(place: Any, number: int, seen: Extent) -> UserError:
    visible = (
        "the whole photograph"
        if seen == WHOLE
        else f"x from {seen.x0:.2f} to {seen.x1:.2f}, y from {seen.y0:.2f} to {seen.y1:.2f}"
    )
    return UserError(f"word {number}: {place} lies outside of what the model sees, {visible} (in [-1, 1])")

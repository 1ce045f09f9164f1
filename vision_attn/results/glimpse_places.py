"""`glimpse_places`: convert the locations or boxes that a user gives for glimpses to the input of a model."""

from collections.abc import Sequence
from math import nan

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.system.errors import UserError

Place = tuple[float | int, ...] | None
"""(x, y), or a box (x0, y0, x1, y1), in [-1, 1]; None leaves the glimpse to the model."""

SHAPES = {2: "a location (x, y)", 4: "a box (x0, y0, x1, y1)"}


def glimpse_places(places: Sequence[Place], num_glimpses: int, numbers: int, name: str) -> Float[Tensor, "1 T P"]:
    """Return the places of `num_glimpses` glimpses; NaN where the model chooses itself.

    numbers: how many numbers describe a place, 2 or 4; 0 for a model that takes no glimpses.
    name: the name of the model, for messages.

    Raises UserError if the model takes no glimpses, fewer glimpses, or another kind of place, or if a place is outside
    the image.
    """
    if not numbers:
        raise UserError(f"{name} sees the whole image at once: it has no glimpses whose locations could be given")
    if len(places) > num_glimpses:
        raise UserError(f"{name} takes {num_glimpses} glimpses, and {len(places)} locations are given")
    given = torch.full((1, num_glimpses, numbers), nan)
    for glimpse, place in enumerate(places):
        if place is None:
            continue
        said = f"locations: glimpse {glimpse + 1} is {place!r}, but"
        if len(place) != numbers:
            raise UserError(f"{said} {name} takes {SHAPES[numbers]} for each glimpse, or None")
        if not all(-1 <= coordinate <= 1 for coordinate in place):
            raise UserError(f"{said} all numbers must lie in [-1, 1]: (-1, -1) is the top left corner of the image")
        if len(place) == 4 and not (place[0] < place[2] and place[1] < place[3]):
            raise UserError(f"{said} the left edge of a box must be before the right one, and the top above the bottom")
        given[0, glimpse] = torch.tensor(place)
    return given

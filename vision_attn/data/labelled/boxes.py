"""Boxes of objects: read them from records, and convert them from pixels to coordinates of the part of an image that a
model sees."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from vision_attn.data.images.squares import centre_square
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief

Edge = int | float
Box = tuple[Edge, Edge, Edge, Edge]
"""(x0, y0, x1, y1): the left, upper, right and lower edge. A point is a box without area."""
UNKNOWN: Box = (float("nan"),) * 4
"""The box of an image whose object's place is unknown."""
NAMES = (("x0", "y0", "x1", "y1"), ("xmin", "ymin", "xmax", "ymax"), ("x", "y"))
"""The possible names of the numbers of a box in a record; (x, y) is its centre."""


def box_of(where: str, record: Mapping[str, Any]) -> Box | None:
    """Return the box in a record, in pixels; None if it has none.

    where: the place of the record, for messages.

    Raises UserError for a box that is incomplete, does not consist of numbers, or ends before it begins.
    """
    names = next((names for names in NAMES if any(_has_value(record, name) for name in names)), None)
    if names is None:
        return None
    missing = [name for name in names if not _has_value(record, name)]
    if missing:
        raise UserError(f"{where} has no {missing[0]}: a box needs {', '.join(names)}, or none of them")
    sizes = [name for name in ("w", "h", "width", "height") if _has_value(record, name)]
    if len(names) == 2 and len(sizes) > 1:
        raise UserError(
            f"{where} has x, y, {', '.join(sizes)}: x and y may be a corner or the centre; give x0, y0, x1, y1 instead"
        )
    numbers = [_number(where, name, record[name]) for name in names]
    x0, y0, x1, y1 = numbers if len(names) == 4 else (*numbers, *numbers)
    if x1 < x0 or y1 < y0:
        raise UserError(f"{where}: the box {(x0, y0, x1, y1)} ends before it begins: give {', '.join(names)} in pixels")
    return x0, y0, x1, y1


def check_pixels(path: object, boxes: Sequence[Box]) -> None:
    """Raise UserError naming the file if its boxes are shares of the width and height instead of pixels."""
    if boxes and all(0 <= number <= 1 for box in boxes for number in box):
        raise UserError(f"{path}: all boxes lie between 0 and 1, but they must be in pixels of the photograph")


def placed(box: Box, size: tuple[int, int], *, square: bool = False) -> Box | None:
    """Convert a box from pixels of a photograph to [-1, 1] of the whole photograph, or of its centre square. None if
    the box lies outside.

    size: width and height of the photograph.
    """
    left, top, right, bottom = centre_square(*size) if square else (0.0, 0.0, *map(float, size))
    x0, x1 = (2 * (x - left) / (right - left) - 1 for x in box[::2])
    y0, y1 = (2 * (y - top) / (bottom - top) - 1 for y in box[1::2])
    return (x0, y0, x1, y1) if x0 <= 1 and y0 <= 1 and x1 >= -1 and y1 >= -1 else None


def mirrored(box: Box) -> Box:
    """Return a box, in [-1, 1], as it lies in the image mirrored left to right."""
    x0, y0, x1, y1 = box
    return -x1, y0, -x0, y1


def _has_value(record: Mapping[str, Any], name: str) -> bool:
    return str(record.get(name) if record.get(name) is not None else "").strip() != ""


def _number(where: str, name: str, value: Any) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not isfinite(number):
        raise UserError(f"{where}: {name} is {brief(value)}, but must be a number of pixels")
    return number

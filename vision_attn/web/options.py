"""Read the options of a request strictly: numbers, and places on an image as JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vision_attn.system.errors import UserError

LONGEST = 2000
"""The largest number of characters of JSON."""
ATTEND = (
    'attend is JSON of words, counted from 1, and their places, such as {"3": [0.3, -0.2]} or {"3": [-1, -1, 0, 0]}'
)


def number_of(text: str, most: int) -> int | None:
    """Read a number from 0 to `most` from a client's text; None for anything else."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None
    return None if number is None or number > most else number


def number_in(options: Mapping[str, Sequence[str]], name: str, most: int) -> int | None:
    """Read an option that is a number from 0 to `most`; None if it is not given. Raises UserError for other values."""
    if name not in options:
        return None
    if (number := number_of(options[name][0], most)) is None:
        raise UserError(f"{name} is {options[name][0]}, but must be a number from 0 to {most}")
    return number


def steered(options: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Read `attend` and `strength` for `Model.caption`; empty if they are not given. Raises UserError unless they are
    points and boxes of words."""
    if "attend" not in options:
        if "strength" in options:
            raise UserError("strength applies to the places of attend: give attend too")
        return {}
    steering = parsed(options["attend"][0], ATTEND)
    if not isinstance(steering, dict) or not steering:
        raise UserError(ATTEND)
    attend = {}
    for word, place in steering.items():
        number = number_of(word, 10**6)
        if not number or not is_place(place):
            raise UserError(ATTEND)
        if number in attend:  # "3" and "03"
            raise UserError(f"attend has two places for word {number}: leave one out")
        attend[number] = tuple(place)
    text = options.get("strength", ["1"])[0]
    try:
        return {"attend": attend, "strength": float(text)}
    except ValueError as error:
        raise UserError("strength is a number from 0 (its own map) to 1 (only the place)") from error


def is_place(value: Any) -> bool:
    """Return whether this is a point or a box, for a film perhaps with a frame: few numbers of a sensible size."""
    numbers = isinstance(value, list) and 2 <= len(value) <= 5
    return numbers and all(type(number) in (int, float) and abs(number) <= 10**6 for number in value)


def parsed(text: str, told: str) -> Any:
    """Parse JSON. Raises UserError, with the message `told`, if it is invalid, too long, or has a key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(names := dict(pairs)) < len(pairs):
            raise UserError(f"a key occurs twice; {told}")
        return names

    try:
        if len(text) <= LONGEST:
            return json.loads(text, object_pairs_hook=once)
    except UserError:  # which is a ValueError too
        raise
    except (ValueError, RecursionError):
        pass
    raise UserError(told)

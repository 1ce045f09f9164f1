"""Sample and draw films, a whole batch at once: random choices, the motion of objects, and pixels."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from vision_attn.data.films.grammar import (
    DIRECTIONS,
    FORMS,
    LEAVES,
    MEETS,
    MOVES,
    SEGMENTS,
    STOPS,
    TURNS,
    WEIGHTS,
    Script,
    scripts,
)  # fmt: skip
from vision_attn.data.random_streams import integers, uniform
from vision_attn.data.scenes.canvas import Arrangement, draw, side_range
from vision_attn.data.scenes.grammar import COLOURS, MAX_OBJECTS, NUM_CAPTIONS, SHAPES, combinations_of, pairs_of
from vision_attn.system.errors import UserError

CASTS = ((2, 2), (3, 2), (3, 3))
"""The numbers of objects and events."""
NUM_SCRIPTS = tuple(len(scripts(*cast)) for cast in CASTS)
STEPS = np.array(list(DIRECTIONS.values()))
TRIES = 64


class Films(NamedTuple):
    """All random choices of a batch of films. A script may have fewer objects than there are slots; the other slots are
    meaningless."""

    cast: Int[np.ndarray, "B"]
    """Index into `CASTS`."""
    script: Int[np.ndarray, "B"]
    """Index into `scripts(*CASTS[cast])`."""
    objects: Int[np.ndarray, "B N"]
    """The objects in the first frame."""
    turned: Int[np.ndarray, "B"]
    """The object that the actor of the event `TURNS` becomes."""
    direction: Int[np.ndarray, "B"]
    """The direction of the event `MOVES`: an index into `DIRECTIONS`."""
    corner: Int[np.ndarray, "B F N 2"]
    """Left and upper edge of each object in each frame, (x, y) in pixels."""
    side: Int[np.ndarray, "B N"]
    forms: Int[np.ndarray, "B captions"]
    light: Float[np.ndarray, "B 3 4"]
    tint: Float[np.ndarray, "B N 3"]
    grain: UInt8[np.ndarray, "B 1 Y X"]
    """`light`, `tint` and `grain` are those of `scenes.canvas.Arrangement`, the same in all frames."""


def script_of(films: Films, film: int) -> Script:
    return scripts(*CASTS[films.cast[film]])[films.script[film]]


def event_frames(verb: int, segment: int, frames: int) -> range:
    """Return the frames in which an event can be seen: the frames of its segment; for `STOPS`, the frames around its
    first one."""
    length = frames // SEGMENTS
    first = segment * length - (length // 2 if verb == STOPS else 0)
    return range(first, first + length)


def arrange(
    bits: np.random.PCG64, num_films: int, split: str, mixture: tuple[float, ...], frames: int, size: int
) -> Films:
    """Sample films of `split`. Raises UserError if `size` leaves no room.

    mixture: the proportions of `CASTS`.
    frames, size: the number of frames, and their height and width in pixels.
    """
    shares = np.cumsum(mixture) / np.sum(mixture)
    cast = (uniform(bits, num_films, 1) >= shares[:-1]).sum(1)
    script = np.floor(uniform(bits, num_films) * np.array(NUM_SCRIPTS)[cast]).astype(np.int64)
    which, order = uniform(bits, num_films), uniform(bits, num_films, MAX_OBJECTS)
    objects = np.zeros((num_films, MAX_OBJECTS), np.int64)
    for number in {number for number, _ in CASTS}:
        films = np.flatnonzero(np.array(CASTS)[cast, 0] == number)
        choices = combinations_of(split, number)
        chosen = choices[(which[films] * len(choices)).astype(np.int64)]
        objects[films, :number] = np.take_along_axis(chosen, order[films, :number].argsort(1), 1)
    told = [scripts(*CASTS[index])[number] for index, number in zip(cast, script, strict=True)]
    objects, turned = _turned(bits, told, objects, split)
    direction = integers(bits, 0, len(DIRECTIONS) - 1, num_films)
    corner, side = _sample_places(bits, told, direction, frames, size)
    weights = WEIGHTS[[len(film_script.verbs) - min(FORMS) for film_script in told]]
    forms = (uniform(bits, *weights.shape) / weights).argsort(1)[:, :NUM_CAPTIONS]
    light = 18 + 70 * uniform(bits, num_films, 1, 4) + 26 * uniform(bits, num_films, 3, 4)
    tint = 24 * uniform(bits, num_films, MAX_OBJECTS, 3) - 12
    grain = bits.random_raw(num_films * -(-size * size // 8)).astype("<u8").view(np.uint8).reshape(num_films, -1)
    return Films(
        cast, script, objects, turned, direction, corner, side, forms, light.astype(np.float32),
        tint.astype(np.float32), grain[:, : size * size].reshape(num_films, 1, size, size),
    )  # fmt: skip


def _turned(
    bits: np.random.PCG64, told: list[Script], objects: Int[np.ndarray, "B N"], split: str
) -> tuple[Int[np.ndarray, "B N"], Int[np.ndarray, "B"]]:
    """Choose what the actor of `TURNS` becomes: an object of its shape in a colour that no other object has. Return the
    objects, where an actor that cannot turn is exchanged for one that can, and what each actor becomes.

    The pairs of the new object with the others belong to `split` or, if no colour allows that, partly to training. So
    neither before nor after the turn, a film shows a pair that another split holds out.
    """
    films, slots = np.arange(len(told)), np.arange(MAX_OBJECTS)
    becomes = np.arange(len(COLOURS)) * len(SHAPES) + (objects % len(SHAPES))[..., None]  # (B, N, colours)
    there = slots < np.array([script.num_objects for script in told])[:, None]
    ignored = ~there[:, None, None] | (slots[:, None, None] == slots)
    own = pairs_of(split)[becomes[..., None], objects[:, None, None]]
    trained = pairs_of("train")[becomes[..., None], objects[:, None, None]]
    new = (becomes != objects[..., None]) & there[..., None]
    possible = (own | trained | ignored).all(-1) & new
    own = (own | ignored).all(-1)
    actor = np.array([script.verbs.index(TURNS) if TURNS in script.verbs else 0 for script in told])
    able = possible.any(-1)
    chosen = np.where(able[films, actor], actor, able.argmax(-1))
    preference = (uniform(bits, len(told), len(COLOURS)) + own[films, chosen]) * possible[films, chosen]
    turned = becomes[films, chosen, preference.argmax(-1)]
    turning = np.array([TURNS in script.verbs for script in told])
    films, actor, chosen = films[turning], actor[turning], chosen[turning]
    objects[films, actor], objects[films, chosen] = objects[films, chosen], objects[films, actor]
    return objects, turned


def _sample_places(
    bits: np.random.PCG64, told: list[Script], direction: np.ndarray, frames: int, size: int
) -> tuple[Int[np.ndarray, "B F N 2"], Int[np.ndarray, "B N"]]:
    """Sample the places of objects in each frame, and their sides, by rejection, until only objects touch that meet."""
    smallest, largest = side_range(size)
    corner, side = np.zeros((len(told), frames, MAX_OBJECTS, 2), np.int64), np.zeros((len(told), MAX_OBJECTS), np.int64)
    remaining = np.arange(len(told))
    for _ in range(1000):
        if not len(remaining):
            return corner, side
        scripts_left = [told[film] for film in remaining]
        sides = integers(bits, (smallest + largest) // 2, largest, len(remaining), TRIES, MAX_OBJECTS)
        start = integers(bits, 1, (size - 1 - sides)[..., None], len(remaining), TRIES, MAX_OBJECTS, 2)
        drift = STEPS[integers(bits, 0, len(STEPS) - 1, len(remaining), TRIES)]
        path = _paths(scripts_left, start, sides, STEPS[direction[remaining]], drift, frames, size)
        good = _clear(scripts_left, path, sides, frames, size)
        first, solved = good.argmax(1), good.any(1)
        corner[remaining[solved]], side[remaining[solved]] = path[solved, first[solved]], sides[solved, first[solved]]
        remaining = remaining[~solved]
    raise UserError(f"films: no room for three objects that move in {size}x{size} pixels; choose a larger size")


def _paths(told: list[Script], start, side, step, drift, frames: int, size: int) -> Int[np.ndarray, "B tries F N 2"]:
    """Compute the corners of objects in each frame of proposals (B, tries).

    step: (B, 2), the steps of `MOVES`.
    drift: (B, tries, 2), the steps before `STOPS`.
    """
    length, time = frames // SEGMENTS, np.arange(frames)
    path = np.repeat(start[:, :, None], frames, axis=2)
    for segment in range(SEGMENTS):
        first = segment * length
        done = np.clip((time - first) / (length - 1), 0, 1)[:, None]  # nothing before the first frame of an event
        for verb in (MOVES, STOPS, LEAVES, MEETS):
            acting = [
                (film, script.verbs.index(verb), script.target)
                for film, script in enumerate(told)
                if verb in script.verbs and script.segments[script.verbs.index(verb)] == segment
            ]
            if not acting:
                continue
            films, actor, target = np.array(acting).T
            here, sides = path[films, :, first, actor], side[films, :, actor]
            if verb == STOPS:  # it drifts about as far as others move
                away, moved = -drift[films] * max(1, round(size / 4 / first)) * first, np.clip(1 - time / first, 0, 1)
                moved = moved[:, None]
            elif verb == MOVES:
                away, moved = np.broadcast_to(step[films, None] * round(size * 0.3), here.shape), done
            elif verb == LEAVES:
                away, moved = _exit(here, sides, size), done
            else:
                away = _beside(here, sides, path[films, :, first, target], side[films, :, target]) - here
                moved = done
            path[films, :, :, actor] += np.rint(away[:, :, None] * moved).astype(np.int64)
    return path


def _exit(corner: np.ndarray, side: np.ndarray, size: int) -> np.ndarray:
    """Return the steps by which an object leaves over the nearest border."""
    ways = np.concatenate([-corner - side[..., None], size - corner], axis=-1)
    nearest = np.abs(ways).argmin(-1)[..., None]
    axis = np.arange(2) == nearest % 2
    return np.where(axis, np.take_along_axis(ways, nearest, -1), 0)


def _beside(corner: np.ndarray, side: np.ndarray, target: np.ndarray, target_side: np.ndarray) -> np.ndarray:
    """Return the corner where an object touches its target, on the side from which it comes."""
    way = (2 * target + target_side[..., None]) - (2 * corner + side[..., None])
    across = np.abs(way).argmax(-1)[..., None] == np.arange(2)
    touching = np.where(way > 0, target - side[..., None], target + target_side[..., None])
    middle = target + (target_side - side)[..., None] // 2
    return np.where(across, touching, middle)


def _clear(told: list[Script], path, side, frames: int, size: int) -> np.ndarray:
    """Return a mask of the proposals (B, tries) whose objects stay inside (unless they leave) and apart (unless they
    meet)."""
    time = np.arange(frames)
    inside = ((path >= 1) & (path <= size - 1 - side[:, :, None, :, None])).all(-1)
    good = np.ones(side.shape[:2], bool)
    there = np.array([script.num_objects for script in told])
    gone = np.full((len(told), MAX_OBJECTS), frames)
    gaps = np.full((len(told), MAX_OBJECTS, MAX_OBJECTS, frames), 2)
    for film, script in enumerate(told):
        for actor, (verb, segment) in enumerate(zip(script.verbs, script.segments, strict=True)):
            first = event_frames(verb, segment, frames)[0]
            if verb == LEAVES:
                gone[film, actor] = first
            elif verb == MEETS:
                gap = np.where(time <= first, size // 10, 0)  # or hardly anything would be seen of it
                gaps[film, actor, script.target] = gaps[film, script.target, actor] = gap
    for slot in range(MAX_OBJECTS):
        absent = slot >= there[:, None]
        good &= absent | (inside[..., slot] | (time >= gone[:, None, slot, None])).all(-1)
        for other in range(slot):
            gap = gaps[:, None, slot, other, :, None]
            first, second = path[..., slot, :], path[..., other, :]
            apart = (second - first >= side[:, :, None, slot, None] + gap) | (
                first - second >= side[:, :, None, other, None] + gap
            )
            good &= absent | apart.any(-1).all(-1)
    return good


def pixels(films: Films, size: int) -> UInt8[np.ndarray, "B F 3 Y X"]:
    """Draw the films, frame by frame, as scenes."""
    num_films, frames = films.corner.shape[:2]
    objects = np.repeat(films.objects[:, None], frames, axis=1)
    for film in range(num_films):
        script = script_of(films, film)
        if TURNS in script.verbs:
            actor = script.verbs.index(TURNS)
            change = event_frames(TURNS, script.segments[actor], frames)
            objects[film, change[len(change) // 2] :, actor] = films.turned[film]

    def per_frame(field: np.ndarray) -> np.ndarray:
        return np.repeat(field, frames, axis=0)

    present, flat = np.array([CASTS[cast][0] for cast in films.cast]), objects.reshape(-1, MAX_OBJECTS)
    nothing = np.zeros(len(flat), np.int64)
    corner = films.corner.reshape(-1, MAX_OBJECTS, 2)
    frame = Arrangement(
        per_frame(present), flat, nothing, nothing, corner, per_frame(films.side), nothing[:, None],
        per_frame(films.light), per_frame(films.tint), per_frame(films.grain),
    )  # fmt: skip
    return draw(frame, size, frames).reshape(num_films, frames, 3, size, size)

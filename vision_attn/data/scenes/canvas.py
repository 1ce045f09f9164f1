"""Sample and draw scenes, a whole batch at once: the layout of objects, and pixels.

The same seed gives the same pixels on every machine: the random bits come from a generator whose stream numpy
guarantees, and images are drawn by elementwise arithmetic, which rounds the same everywhere.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from vision_attn.data.random_streams import integers, uniform
from vision_attn.data.scenes.grammar import COLOURS, MAX_OBJECTS, NUM_CAPTIONS, SHAPES, WEIGHTS, combinations_of
from vision_attn.system.errors import UserError

# Corners in [-1, 1], y downwards. Every outline touches all four sides, so that the square of an object is its tight
# bounding box.
OUTLINES = {
    "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "triangle": ((0, -1), (1, 1), (-1, 1)),
    "diamond": ((0, -1), (1, 0), (0, 1), (-1, 0)),
    "cross": (
        (-0.36, -1), (0.36, -1), (0.36, -0.36), (1, -0.36), (1, 0.36), (0.36, 0.36),
        (0.36, 1), (-0.36, 1), (-0.36, 0.36), (-1, 0.36), (-1, -0.36), (-0.36, -0.36),
    ),
    "star": (
        (0, -1), (0.26, -0.27), (1, -0.236), (0.42, 0.24), (0.618, 1),
        (0, 0.56), (-0.618, 1), (-0.42, 0.24), (-1, -0.236), (-0.26, -0.27),
    ),
}  # fmt: skip
SAMPLES = 8
"""The number of samples of the coverage of a pixel, along each side."""


class Arrangement(NamedTuple):
    """All random choices of a batch of scenes, which determine its images and captions. Scenes have `num_objects`
    objects; further slots are meaningless."""

    num_objects: Int[np.ndarray, "B"]
    objects: Int[np.ndarray, "B N"]
    """Index of each object (`scene_grammar`)."""
    axis: Int[np.ndarray, "B"]
    """The axis along which object 0 is before or behind all others: 0 is x, 1 is y."""
    behind: Int[np.ndarray, "B"]
    """1 if object 0 is to the right of or below the others. With two objects, object 0 is always the left or upper
    one."""
    corner: Int[np.ndarray, "B N 2"]
    """Left and upper edge of each object, (x, y) in pixels."""
    side: Int[np.ndarray, "B N"]
    """Width and height of each object, in pixels."""
    forms: Int[np.ndarray, "B captions"]
    """The templates of the captions, all different."""
    light: Float[np.ndarray, "B 3 4"]
    """RGB of the background in the four corners."""
    tint: Float[np.ndarray, "B N 3"]
    """The difference of each object's RGB from the RGB of its colour."""
    grain: UInt8[np.ndarray, "B 1 Y X"]
    """Noise of each pixel."""


def arrange(bits: np.random.PCG64, num_images: int, split: str, mixture: tuple[float, ...], size: int) -> Arrangement:
    """Sample scenes of `split`: the number of objects, which objects, their relation and their positions.

    Raises UserError if `size` leaves no room.
    """
    shares = np.cumsum(mixture) / np.sum(mixture)
    num_objects = 1 + (uniform(bits, num_images, 1) >= shares[:-1]).sum(1)
    which, order = uniform(bits, num_images), uniform(bits, num_images, MAX_OBJECTS)
    objects = np.zeros((num_images, MAX_OBJECTS), np.int64)
    for number in range(1, MAX_OBJECTS + 1):
        images = np.flatnonzero(num_objects == number)
        choices = combinations_of(split, number)
        chosen = choices[(which[images] * len(choices)).astype(np.int64)]
        objects[images, :number] = np.take_along_axis(chosen, order[images, :number].argsort(1), 1)
    axis, behind = integers(bits, 0, 1, 2, num_images)
    behind[num_objects < 3] = 0
    corner, side = place_objects(bits, num_objects, axis, behind, size)
    weights = WEIGHTS[num_objects - 1]
    # Uniform numbers divided by the weights: a template of large weight tends to be sorted early.
    forms = (uniform(bits, *weights.shape) / weights).argsort(1)[:, :NUM_CAPTIONS]
    light = 18 + 70 * uniform(bits, num_images, 1, 4) + 26 * uniform(bits, num_images, 3, 4)
    tint = 24 * uniform(bits, num_images, MAX_OBJECTS, 3) - 12
    grain = bits.random_raw(num_images * -(-size * size // 8)).astype("<u8").view(np.uint8).reshape(num_images, -1)
    return Arrangement(
        num_objects, objects, axis, behind, corner, side, forms, light.astype(np.float32), tint.astype(np.float32),
        grain[:, : size * size].reshape(num_images, 1, size, size),
    )  # fmt: skip


def place_objects(bits: np.random.PCG64, num_objects, axis, behind, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Sample corners (B, N, 2) and sides (B, N) in pixels, by rejection until every relation is unambiguous."""
    smallest, largest = side_range(size)
    number = len(num_objects)
    corner, side = np.zeros((number, MAX_OBJECTS, 2), np.int64), np.zeros((number, MAX_OBJECTS), int)
    remaining = np.arange(number)
    tries = 64
    for _ in range(1000):
        if not len(remaining):
            return corner, side
        # Three objects need more room than two.
        limit = np.where(num_objects[remaining] == 3, (smallest + largest) // 2, largest)[:, None, None]
        sides = integers(bits, smallest, limit, len(remaining), tries, MAX_OBJECTS)
        edge = max(1, size // 28)
        corners = integers(bits, edge, (size - edge - sides)[..., None], len(remaining), tries, MAX_OBJECTS, 2)
        good = unambiguous(corners, sides, num_objects[remaining], axis[remaining], behind[remaining], size)
        first, solved = good.argmax(1), good.any(1)
        corner[remaining[solved]], side[remaining[solved]] = (
            corners[solved, first[solved]],
            sides[solved, first[solved]],
        )
        remaining = remaining[~solved]
    raise UserError(f"scenes: no room for three objects in {size}x{size} pixels; choose a larger size")


def side_range(size: int) -> tuple[int, int]:
    """Return the smallest and the largest side of an object in images of `size` pixels. The largest object covers about
    an eighth of the image."""
    return round(size * 12 / 56), round(size * 20 / 56)


def unambiguous(corner, side, num_objects, axis, behind, size: int) -> np.ndarray:
    """Return which of the proposals (B, tries) show their relation unambiguously.

    An object is before another along an axis if there is a gap between their boxes and the distance of their centres
    along the axis is at least 1.5 times the distance across it.
    """
    gap = max(1, size // 28)
    x, y = np.moveaxis(corner, -1, 0)
    upright = axis[:, None, None] == 1
    corner = np.where(upright, y, x), np.where(upright, x, y)  # along the axis of each scene, and across it
    middle = [2 * start + side for start in corner]

    def before(first: int, second: int, along: int) -> np.ndarray:
        start = corner[along]
        forward, sideways = (np.abs(middle[way][..., second] - middle[way][..., first]) for way in (along, 1 - along))
        apart = start[..., second] - start[..., first] - side[..., first] >= gap
        return apart & (2 * forward >= 3 * sideways)

    leads = [
        np.where(behind[:, None] == 1, before(other, 0, 0), before(0, other, 0)) | (num_objects <= other)[:, None]
        for other in (1, 2)
    ]
    return leads[0] & leads[1] & (before(1, 2, 1) | (num_objects < 3)[:, None])


@cache
def stamps(smallest: int, largest: int) -> Float[np.ndarray, "shapes sides Y X"]:
    """Return the share of each pixel that a shape covers, for each shape and every side from `smallest` to `largest`
    pixels."""
    masks = np.zeros((len(SHAPES), largest - smallest + 1, largest, largest), np.float32)
    for row, shape in enumerate(SHAPES):
        for side in range(smallest, largest + 1):
            points = (np.arange(side * SAMPLES) + 0.5) * (2 / (side * SAMPLES)) - 1
            inside = covers(shape, points[None, :], points[:, None])
            coverage = inside.reshape(side, SAMPLES, side, SAMPLES).mean((1, 3))
            masks[row, side - smallest, :side, :side] = coverage
    return masks


def covers(shape: str, x, y) -> np.ndarray:
    """Return whether points lie inside a shape; for outlines, whether a ray crosses them an odd number of times."""
    if shape == "circle":
        return x * x + y * y <= 1
    outline = OUTLINES[shape]
    inside = np.zeros(np.broadcast_shapes(x.shape, y.shape), bool)
    for (x0, y0), (x1, y1) in zip(outline, (*outline[1:], outline[0]), strict=True):
        if y0 != y1:
            inside ^= ((y0 > y) != (y1 > y)) & (x < x0 + (y - y0) * ((x1 - x0) / (y1 - y0)))
    return inside


def draw(scenes: Arrangement, size: int, frames: int = 1) -> UInt8[np.ndarray, "B 3 Y X"]:
    """Draw the images: objects on a dark background with soft light and a little grain.

    frames: the number of successive images with the same background, which are the frames of a film.
    """
    _, largest = side_range(size)
    # With a margin, since all stamps are as large as the largest object.
    canvas = np.zeros((len(scenes.objects), 3, size + largest, size + largest), np.float32)
    canvas[:, :, :size, :size] = np.repeat(background(scenes.light[::frames], size), frames, axis=0)
    for slot in range(scenes.objects.shape[1]):
        stamp(canvas, np.flatnonzero(scenes.num_objects > slot), scenes, slot, size)
    picture = canvas[:, :, :size, :size]
    grain = (scenes.grain[::frames].astype(np.float32) - 127.5) * np.float32(0.05)
    picture += np.repeat(grain, frames, axis=0)
    return np.clip(picture, 0, 255, out=picture).astype(np.uint8)


def background(light: Float[np.ndarray, "B 3 4"], size: int) -> Float[np.ndarray, "B 3 Y X"]:
    """Return the background: the colours of the four corners, interpolated bilinearly."""
    position = np.arange(size, dtype=np.float32) / np.float32(size - 1)
    upper = light[..., 0:1] + (light[..., 1:2] - light[..., 0:1]) * position
    lower = light[..., 2:3] + (light[..., 3:4] - light[..., 2:3]) * position
    return upper[:, :, None, :] + (lower - upper)[:, :, None, :] * position[:, None]


def stamp(canvas: np.ndarray, images: np.ndarray, scenes: Arrangement, slot: int, size: int) -> None:
    """Draw one object into each of `images`, a little lighter at its top than at its bottom."""
    smallest, largest = side_range(size)
    side, objects = scenes.side[images, slot], scenes.objects[images, slot]
    mask = stamps(smallest, largest)[objects % len(SHAPES), side - smallest][:, None]
    palette = np.array(list(COLOURS.values()), np.float32)
    colour = (palette[objects // len(SHAPES)] + scenes.tint[images, slot])[:, :, None, None]
    steps = np.arange(largest)
    shade = np.float32(1.08) - np.float32(0.2) * (steps / side[:, None]).astype(np.float32)
    pixel_rows, pixel_columns = (scenes.corner[images, slot, axis, None] + steps for axis in (1, 0))
    area = (
        images[:, None, None, None],
        np.arange(3)[:, None, None],
        pixel_rows[:, None, :, None],
        pixel_columns[:, None, None, :],
    )
    patch = canvas[area]
    canvas[area] = patch + mask * (colour * shade[:, None, :, None] - patch)

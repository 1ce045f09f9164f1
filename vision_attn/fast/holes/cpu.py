"""Holes of images on a CPU: the solver of `fast.holes` in loops, compiled by numba, plane by plane within a core's
cache. Conjugate gradients run in float64, and their preconditioner, which need not be exact, in float32.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vision_attn.fast.holes import MOST, SMALLEST, SWEEPS
from vision_attn.fast.loops import compiled, in_threads

WORK = 500
"""The approximate number of operations for each pixel of a hole."""
ZERO, ONE, TWO, FOUR = np.float32(0), np.float32(1), np.float32(2), np.float32(4)
NEAR, FAR = np.float32(0.75), np.float32(0.25)
"""The weights of linear interpolation."""


def solved(
    image: Float[Tensor, "C Y X"],
    gone: Bool[Tensor, "N Y X"],
    average: Float[Tensor, "C 1 1"],
    limit: Float[Tensor, ""],
) -> Float[Tensor, "N C Y X"]:
    """Return copies of the image, in float64, whose holes are filled to an error of `limit`.

    average: the initial value of missing pixels.
    """
    copies = torch.where(gone[:, None], average, image).flatten(0, 1).contiguous()
    in_threads(_solved, WORK * copies.numel(), copies, gone.to(torch.uint8).contiguous(), limit.view(1))
    return copies.unflatten(0, (len(gone), -1))


@compiled
def _solved(first, last, planes, gone, limits):
    channels = len(planes) // len(gone)
    for plane in range(first, last):
        holes = gone[plane // channels]
        top, bottom, left, right = _box(holes)
        if top < bottom:
            _solve(planes[plane, top:bottom, left:right], holes[top:bottom, left:right], limits[0])


@compiled
def _box(holes):
    """Return the smallest rectangle with all holes and a pixel around them."""
    height, width = holes.shape
    top, bottom, left, right = height, 0, width, 0
    for i in range(height):
        for j in range(width):
            if holes[i, j]:
                top, bottom = min(top, i), max(bottom, i + 1)
                left, right = min(left, j), max(right, j + 1)
    return max(0, top - 1), min(height, bottom + 1), max(0, left - 1), min(width, right + 1)


@compiled
def _solve(plane, holes, limit):
    height, width = plane.shape
    number = 1
    while max(height, width) > SMALLEST * 2 ** (number - 1):
        number += 1
    starts, shapes = np.zeros(number + 1, np.int64), np.empty((number, 2), np.int64)
    for level in range(number):
        side = 2**level
        shapes[level, 0], shapes[level, 1] = (height + side - 1) // side, (width + side - 1) // side
        starts[level + 1] = starts[level] + shapes[level, 0] * shapes[level, 1]
    unknown, inverse = np.empty(starts[number], np.float32), np.empty(starts[number], np.float32)
    right, x, other = np.empty_like(unknown), np.empty_like(unknown), np.empty_like(unknown)
    for level in range(number):
        _level(unknown, inverse, starts, shapes, level, holes)

    weight, values, direction = np.empty((height, width)), plane.copy(), np.zeros((height, width))
    left, changed, sums = np.empty((height, width)), np.empty((height, width)), np.empty(width + 2)
    for i in range(height):
        for j in range(width):
            weight[i, j] = (4 - (i == 0) - (i == height - 1)) * (4 - (j == 0) - (j == width - 1)) - 4
    z = x[: height * width].reshape(height, width)
    product = 0.0
    for step in range(MOST):  # each call stands at one place, or it would be compiled for each
        _changed(values if step == 0 else direction, weight, holes, sums, changed)
        size = product / max(_sum(direction, changed), 1e-300) if step else 1.0
        for i in range(height):
            for j in range(width):
                values[i, j] += size * direction[i, j]
                left[i, j] = left[i, j] - size * changed[i, j] if step else -changed[i, j]
        worst = _cycle(left, unknown, inverse, right, x, other, starts, shapes)
        before, product = product, 0.0
        for i in range(height):
            for j in range(width):
                product += left[i, j] * z[i, j]
        if worst <= limit:
            break
        by = product / max(before, 1e-300) if step else 0.0
        for i in range(height):
            for j in range(width):
                direction[i, j] = z[i, j] + by * direction[i, j]
    for i in range(height):
        for j in range(width):
            plane[i, j] = values[i, j] + z[i, j]


@compiled
def _sum(a, b):
    total = 0.0
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            total += a[i, j] * b[i, j]
    return total


@compiled
def _changed(x, weight, holes, sums, to):
    """Compute A x, the difference of the pixels of holes from their neighbours."""
    height, width = x.shape
    sums[0] = sums[width + 1] = 0
    for i in range(height):
        above, below = x[max(i - 1, 0)], x[min(i + 1, height - 1)]
        up, down = 1.0 if i > 0 else 0.0, 1.0 if i < height - 1 else 0.0
        for j in range(width):
            sums[j + 1] = up * above[j] + 2 * x[i, j] + down * below[j]
        for j in range(width):
            value = (weight[i, j] + 4) * x[i, j] - (sums[j] + 2 * sums[j + 1] + sums[j + 2])
            to[i, j] = value if holes[i, j] else 0.0


@compiled
def _level(unknown, inverse, starts, shapes, level, holes):
    """Mark the unknown pixels of a level: those for which all pixels of the finer level are unknown."""
    height, width = shapes[level]
    to = unknown[starts[level] : starts[level + 1]].reshape(height, width)
    by = inverse[starts[level] : starts[level + 1]].reshape(height, width)
    for i in range(height):
        for j in range(width):
            if level == 0:
                to[i, j] = holes[i, j] != 0
            else:
                above, across = shapes[level - 1]
                larger = unknown[starts[level - 1] : starts[level]].reshape(above, across)
                all_unknown = True
                for k in range(2 * i, min(2 * i + 2, above)):
                    for m in range(2 * j, min(2 * j + 2, across)):
                        all_unknown = all_unknown and larger[k, m] > 0
                to[i, j] = all_unknown
            neighbours = (4 - (i == 0) - (i == height - 1)) * (4 - (j == 0) - (j == width - 1)) - 4
            by[i, j] = to[i, j] / max(1, neighbours)


@compiled
def _cycle(left, unknown, inverse, right, x, other, starts, shapes):
    """See `fast.holes._cycle`. Writes to `x`, whose first level is the result. Returns its largest number."""
    number = len(shapes)
    height, width = shapes[0]
    sums = np.empty(width + 2, np.float32)
    first = right[: starts[1]].reshape(height, width)
    for i in range(height):
        for j in range(width):
            first[i, j] = np.float32(left[i, j])
    for level in range(number):
        here, shape = slice(starts[level], starts[level + 1]), (shapes[level, 0], shapes[level, 1])
        b, by, to = right[here].reshape(shape), inverse[here].reshape(shape), x[here].reshape(shape)
        temporary = other[here].reshape(shape)
        for i in range(shape[0]):
            for j in range(shape[1]):
                to[i, j] = b[i, j] * by[i, j]
        if level == number - 1:
            for _ in range(SWEEPS // 2):
                _sweep(to, b, by, sums, temporary)
                _sweep(temporary, b, by, sums, to)
        else:
            _rest(to, unknown[here].reshape(shape), sums, temporary)
            below = slice(starts[level + 1], starts[level + 2])
            smaller = (shapes[level + 1, 0], shapes[level + 1, 1])
            _halved(temporary, unknown[below].reshape(smaller), sums, right[below].reshape(smaller))
    for level in range(number - 2, -1, -1):
        here, shape = slice(starts[level], starts[level + 1]), (shapes[level, 0], shapes[level, 1])
        below = slice(starts[level + 1], starts[level + 2])
        smaller = x[below].reshape((shapes[level + 1, 0], shapes[level + 1, 1]))
        to, temporary = x[here].reshape(shape), other[here].reshape(shape)
        _add_doubled(smaller, unknown[here].reshape(shape), sums, to, temporary)
        _sweep(temporary, right[here].reshape(shape), inverse[here].reshape(shape), sums, to)
    worst = ZERO
    for value in x[: starts[1]]:
        worst = max(worst, abs(value))
    return worst


@compiled
def _column_sums(x, i, sums):
    """Compute x[i - 1] + 2 x[i] + x[i + 1], in the middle of `sums`, between zeros."""
    height, width = x.shape
    above, here, below = x[max(i - 1, 0)], x[i], x[min(i + 1, height - 1)]
    up, down = ONE if i > 0 else ZERO, ONE if i < height - 1 else ZERO
    sums[0] = sums[width + 1] = 0
    for j in range(width):
        sums[j + 1] = up * above[j] + TWO * here[j] + down * below[j]


@compiled
def _sweep(x, right, inverse, sums, to):
    for i in range(x.shape[0]):
        _column_sums(x, i, sums)
        here, b, by, row = x[i], right[i], inverse[i], to[i]
        for j in range(len(row)):
            row[j] = (b[j] + sums[j] + TWO * sums[j + 1] + sums[j + 2] - FOUR * here[j]) * by[j]


@compiled
def _rest(x, unknown, sums, to):
    for i in range(x.shape[0]):
        _column_sums(x, i, sums)
        here, there, row = x[i], unknown[i], to[i]
        for j in range(len(row)):
            row[j] = (sums[j] + TWO * sums[j + 1] + sums[j + 2] - FOUR * here[j]) * there[j]


@compiled
def _halved(large, unknown, sums, to):
    height, width = large.shape
    for i in range(to.shape[0]):
        upper, lower = large[2 * i], large[min(2 * i + 1, height - 1)]
        second = NEAR if 2 * i + 1 < height else ZERO
        above, below = large[max(2 * i - 1, 0)], large[min(2 * i + 2, height - 1)]
        after = FAR if 2 * i + 2 < height else ZERO
        if 2 * i + 2 == height:  # the last row counts for what would follow it
            after = FAR
        for j in range(width):
            sums[j] = NEAR * upper[j] + second * lower[j] + FAR * above[j] + after * below[j]
        for j in range(to.shape[1]):
            k = 2 * j
            value = NEAR * sums[k] + FAR * sums[max(k - 1, 0)]
            if k + 1 < width:
                value += NEAR * sums[k + 1] + FAR * sums[min(k + 2, width - 1)]
            to[i, j] = value * unknown[i, j]


@compiled
def _add_doubled(small, unknown, sums, x, to):
    height, width = small.shape
    for i in range(x.shape[0]):
        nearest = small[i // 2]
        next_nearest = small[max(i // 2 - 1, 0)] if i % 2 == 0 else small[min(i // 2 + 1, height - 1)]
        for j in range(width):
            sums[j] = NEAR * nearest[j] + FAR * next_nearest[j]
        here, there, row = x[i], unknown[i], to[i]
        for j in range(len(row)):
            k = j // 2
            beside = max(k - 1, 0) if j % 2 == 0 else min(k + 1, width - 1)
            row[j] = here[j] + there[j] * (NEAR * sums[k] + FAR * sums[beside])

"""Fill holes of images by linear interpolation, which solves a linear system for their pixels."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from vision_attn.fast.versions import fast_version

TOLERANCE = 1e-6
"""The largest error of a pixel, as a share of the range of the image's values."""
MOST = 200
"""The largest number of steps; a dozen are usual."""
SMALLEST, SWEEPS = 4, 16
"""The largest side of the coarsest copy of an image, and the number of sweeps there."""


def closed(image: Float[Tensor, "C Y X"], gone: Bool[Tensor, "N Y X"]) -> Float[Tensor, "N C Y X"]:
    """Return copies of the image in which each missing pixel equals the mean of its eight neighbours, those at a side
    with twice the weight of those at a corner. If all pixels are missing, they get the mean colour.

    The matrix of the system A x = b is symmetric and positive semidefinite. It is solved by conjugate gradients in
    float64, preconditioned by a multigrid cycle over copies of half the size, which also estimates the error for the
    stopping criterion.

    gone: the missing pixels of each copy.
    """
    device = "cpu" if image.device.type == "mps" else image.device  # which has no float64
    values, gone = image.to(device, torch.float64), gone.to(device)
    everything = gone.all(dim=2).all(dim=1)
    average = values.mean(dim=(1, 2))[:, None, None]
    partly = gone & ~everything[:, None, None]
    limit = TOLERANCE / 2 * (values.amax() - values.amin())  # of an estimate
    loops = fast_version("holes", values)
    filled = loops.solved(values, partly, average, limit) if loops else _solved(values, partly, average, limit)
    return torch.where(everything[:, None, None, None], average, filled).to(image)


class Level(NamedTuple):
    """A level of the multigrid: 1 where a pixel is unknown, else 0; and 1 / (the weight of its neighbours) for an
    unknown pixel."""

    unknown: Float[Tensor, "N 1 Y X"]
    inverse: Float[Tensor, "N 1 Y X"]


def _solved(
    image: Float[Tensor, "C Y X"],
    gone: Bool[Tensor, "N Y X"],
    average: Float[Tensor, "C 1 1"],
    limit: Float[Tensor, ""],
) -> Float[Tensor, "N C Y X"]:
    """Solve by tensor operations; `cpu` has loops."""
    unknown = gone[:, None].to(image.dtype)
    neighbours = around(torch.ones_like(unknown[:1]))
    levels = [Level(unknown, unknown / neighbours)]
    while max(unknown.shape[2:]) > SMALLEST:
        unknown = 1 - F.max_pool2d(1 - unknown, 2, ceil_mode=True)
        levels.append(Level(unknown, unknown / around(torch.ones_like(unknown[:1])).clamp(min=1)))
    unknown = levels[0].unknown
    x = torch.where(gone[:, None], average, image)
    left = (around(x) - neighbours * x) * unknown
    z = direction = _cycle(levels, left)
    product = _dot(left, z)
    for _ in range(MOST):
        if z.abs().amax() <= limit:
            break
        changed = (neighbours * direction - around(direction)) * unknown
        step = product / _dot(direction, changed).clamp(min=torch.finfo(x.dtype).tiny)
        x, left = x + step * direction, left - step * changed
        z, before = _cycle(levels, left), product
        product = _dot(left, z)
        direction = z + product / before.clamp(min=torch.finfo(x.dtype).tiny) * direction
    return x + z


def _dot(a: Tensor, b: Tensor) -> Float[Tensor, "N C 1 1"]:
    return (a * b).sum(dim=(2, 3), keepdim=True)


def _cycle(levels: list[Level], right: Float[Tensor, "N C Y X"]) -> Float[Tensor, "N C Y X"]:
    """Approximate A^-1 right by a symmetric cycle: a sweep, the same at half the size for the residual, and a sweep."""
    (unknown, inverse), *smaller = levels
    x = right * inverse
    if not smaller:
        for _ in range(SWEEPS):
            x = (right + around(x)) * inverse
        return x
    below = _halved(_halved(around(x) * unknown, 2), 3) * smaller[0].unknown
    height, width = x.shape[2:]
    x = x + _doubled(_doubled(_cycle(smaller, below), 3, width), 2, height) * unknown
    return (right + around(x)) * inverse


def around(x: Float[Tensor, "N C Y X"]) -> Float[Tensor, "N C Y X"]:
    """Return the sum over the neighbours of each pixel, with the weight 2 at a side and 1 at a corner."""
    rows = F.pad(x, (0, 0, 1, 1))
    rows = rows[:, :, :-2] + 2 * x + rows[:, :, 2:]
    columns = F.pad(rows, (1, 1))
    return columns[..., :-2] + 2 * rows + columns[..., 2:] - 4 * x


def _doubled(small: Tensor, axis: int, size: int) -> Tensor:
    """Interpolate linearly to pixels of half the side, along one axis."""
    before, after = (small.narrow(axis, place, 1) for place in (0, small.shape[axis] - 1))
    longer = torch.cat([before, small, after], dim=axis)
    ends = [0.75 * small + 0.25 * longer.narrow(axis, place, small.shape[axis]) for place in (0, 2)]
    return torch.stack(ends, dim=axis + 1).flatten(axis, axis + 1).narrow(axis, 0, size)


def _halved(large: Tensor, axis: int) -> Tensor:
    """Return the transpose of `_doubled`."""
    size = large.shape[axis]
    if size % 2:
        large = F.pad(large, (0, 0, 0, 1) if axis == 2 else (0, 1))
    first, second = large.unflatten(axis, (-1, 2)).unbind(dim=axis + 1)
    result, number = 0.75 * (first + second), first.shape[axis]
    result.narrow(axis, 0, 1).add_(first.narrow(axis, 0, 1), alpha=0.25)
    result.narrow(axis, number - 1, 1).add_(second.narrow(axis, number - 1, 1), alpha=0.25)
    result.narrow(axis, 1, number - 1).add_(second.narrow(axis, 0, number - 1), alpha=0.25)
    result.narrow(axis, 0, number - 1).add_(first.narrow(axis, 1, number - 1), alpha=0.25)
    return result

"""DRAW's filterbank on a GPU: filters, reads, writes and the gradients of windows, one kernel each. `cpu` has the same
functions, and explains them.

Products run on tensor cores in three TF32 passes, which are as accurate as float32 and faster than ordinary cores.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from vision_attn.fast.launch import launch, operation

TILE = 32
"""The number of pixel rows and columns of a tile of an image."""
MOST_FILTERS, MOST_PIXELS = 64, 8192
"""The largest number of filters along a side, which must fit into a tile, and the largest side of an image."""


def takes(size: int, pixels: int) -> bool:
    """Return whether the kernels support this grid and these images.

    size: the number of filters along a side.
    pixels: the longer side of an image.
    """
    return size <= MOST_FILTERS and pixels <= MOST_PIXELS


@operation("filterbank_filters")
def filters(centre: Tensor, stride: Tensor, sigma: Tensor, size: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return F_X (B, R, N, X) and F_Y (B, R, N, Y) of windows with a centre (B, R, 2), stride and sigma (B, R)."""
    B, R = stride.shape
    F_x, F_y = (centre.new_empty(B, R, size, pixels) for pixels in (width, height))
    tensors = *_solid(centre, stride, sigma), F_x, F_y
    launch(_filters, (B * R, size), *tensors, size, height, width, triton.next_power_of_2(max(height, width)))
    return F_x, F_y


@operation("filterbank_read")
def read(images: Tensor, F_x: Tensor, F_y: Tensor, intensity: Tensor, inverse: bool) -> Tensor:
    """Return gamma F_Y G F_X^T of images (B, C, Y, X), for each row and channel: (B, R, C, N, N). 1 / gamma if
    `inverse`."""
    (B, R, N, X), (C, Y) = F_x.shape, images.shape[1:3]
    patches = images.new_empty(B, R, C, N, N)
    tensors = *_solid(images, F_x, F_y, intensity), patches
    launch(_read, (B * R, C), *tensors, R, C, N, Y, X, inverse, _filters_of(N), TILE)
    return patches


@operation("filterbank_write")
def write(patches: Tensor, F_x: Tensor, F_y: Tensor, intensity: Tensor, inverse: bool) -> Tensor:
    """Return gamma F_Y^T A F_X of patches (B, R, C, N, N): (B, R, C, Y, X). 1 / gamma if `inverse`."""
    (B, R, N, X), C, Y = F_x.shape, patches.shape[2], F_y.shape[3]
    images = patches.new_empty(B, R, C, Y, X)
    tensors = *_solid(patches, F_x, F_y, intensity), images
    launch(_write, (B * R, C, triton.cdiv(X, TILE)), *tensors, C, N, Y, X, inverse, _filters_of(N), TILE)
    return images


@operation("filterbank_gradients")
def gradients(
    images: Tensor, patches: Tensor, centre: Tensor, stride: Tensor, sigma: Tensor, intensity: Tensor,
    F_x: Tensor, F_y: Tensor, inverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of gamma sum_ij A_ji (F_Y G F_X^T)_ji with respect to the centre, stride, sigma and
    intensity of each window, for G in `images` and A in `patches`. 1 / gamma if `inverse`."""
    (B, R, N, X), (C, Y) = F_x.shape, images.shape[1:3]
    of_centre, of_stride, of_sigma, of_intensity = (
        torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (centre, stride, sigma, stride)
    )
    outputs = of_centre, of_stride, of_sigma, of_intensity
    tensors = *_solid(images, patches, centre, stride, sigma, intensity, F_x, F_y), *outputs
    launch(_gradients, (B * R,), *tensors, R, C, N, Y, X, inverse, _filters_of(N), TILE)
    return outputs


def _solid(*tensors: Tensor) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


@filters.register_fake
def _(centre: Tensor, stride: Tensor, sigma: Tensor, size: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    F_x, F_y = (centre.new_empty(*stride.shape, size, pixels) for pixels in (width, height))
    return F_x, F_y


@read.register_fake
def _(images: Tensor, F_x: Tensor, F_y: Tensor, intensity: Tensor, inverse: bool) -> Tensor:
    B, R, N, _ = F_x.shape
    return images.new_empty(B, R, images.shape[1], N, N)


@write.register_fake
def _(patches: Tensor, F_x: Tensor, F_y: Tensor, intensity: Tensor, inverse: bool) -> Tensor:
    return patches.new_empty(*patches.shape[:3], F_y.shape[3], F_x.shape[3])


@gradients.register_fake
def _(images, patches, centre: Tensor, stride: Tensor, sigma: Tensor, intensity, F_x, F_y, inverse: bool):
    like = centre, stride, sigma, stride
    return tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in like)


def _filters_of(N: int) -> int:
    """Return the number of filters in a tile: tensor cores multiply 16 at least."""
    return max(16, triton.next_power_of_2(N))


@triton.jit
@no_type_check
def _filters(centres, strides, sigmas, F_x, F_y, N, Y, X, BLOCK: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1)
    stride, sigma = tl.load(strides + row), tl.load(sigmas + row)
    offset, precision = (i - (N - 1) / 2.0) * stride, 0.5 / (sigma * sigma)
    _gaussian(F_x + (row * N + i) * X, tl.load(centres + row * 2) + offset, precision, X, BLOCK)
    _gaussian(F_y + (row * N + i) * Y, tl.load(centres + row * 2 + 1) + offset, precision, Y, BLOCK)


@triton.jit
@no_type_check
def _gaussian(to, centre, precision, pixels, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    power = precision * _power(_nearest(centre, pixels), index + 1.0, centre)
    value = tl.exp(tl.where(index < pixels, power, -float("inf")))
    tl.store(to + index, value / tl.sum(value), mask=index < pixels)


@triton.jit
@no_type_check
def _nearest(centre, pixels):
    """Return the pixel nearest to a centre; NaN for NaN."""
    nearest = tl.floor(centre + 0.5)
    return tl.where(nearest < 1.0, 1.0, tl.where(nearest > pixels, pixels.to(tl.float32), nearest))


@triton.jit
@no_type_check
def _power(nearest, pixel, centre):
    return (nearest - pixel) * (pixel + (nearest - 2.0 * centre))


@triton.jit
@no_type_check
def _dot(a, b, sums):
    return tl.dot(a, b, sums, input_precision="tf32x3")


@triton.jit
@no_type_check
def _tile(matrix, rows, columns, height, width):
    """Load a tile of a matrix; 0 outside."""
    inside = (rows[:, None] < height) & (columns[None, :] < width)
    return tl.load(matrix + rows[:, None] * width + columns[None, :], mask=inside, other=0.0)


@triton.jit
@no_type_check
def _down(image, F_y, i, x, N, Y, X, FILTERS: tl.constexpr, TILE: tl.constexpr):
    """Compute F_Y G for the columns `x` of an image."""
    sums = tl.zeros([FILTERS, TILE], tl.float32)
    for start in range(0, Y, TILE):
        y = start + tl.arange(0, TILE)
        sums = _dot(_tile(F_y, i, y, N, Y), _tile(image, y, x, Y, X), sums)
    return sums


@triton.jit
@no_type_check
def _read(
    images, F_x, F_y, intensities, patches, R, C, N, Y, X,
    INVERSE: tl.constexpr, FILTERS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row, channel, i = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, FILTERS)
    image = images + (row // R * C + channel) * Y * X
    F_x += row * N * X
    F_y += row * N * Y
    patch = tl.zeros([FILTERS, FILTERS], tl.float32)
    for start in range(0, X, TILE):
        x = start + tl.arange(0, TILE)
        patch = _dot(_down(image, F_y, i, x, N, Y, X, FILTERS, TILE), tl.trans(_tile(F_x, i, x, N, X)), patch)
    inside = (i[:, None] < N) & (i[None, :] < N)
    patch *= _scale(intensities + row, INVERSE)
    tl.store(patches + (row * C + channel) * N * N + i[:, None] * N + i[None, :], patch, mask=inside)


@triton.jit
@no_type_check
def _write(
    patches, F_x, F_y, intensities, images, C, N, Y, X,
    INVERSE: tl.constexpr, FILTERS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row, channel, i = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, FILTERS)
    x = tl.program_id(2) * TILE + tl.arange(0, TILE)
    nothing = tl.zeros([FILTERS, TILE], tl.float32)
    patch = _tile(patches + (row * C + channel) * N * N, i, i, N, N)
    across = _dot(patch, _tile(F_x + row * N * X, i, x, N, X), nothing) * _scale(intensities + row, INVERSE)
    image = images + (row * C + channel) * Y * X
    for start in range(0, Y, TILE):
        y = start + tl.arange(0, TILE)
        rows = tl.trans(_tile(F_y + row * N * Y, i, y, N, Y))
        lines = _dot(rows, across, tl.zeros([TILE, TILE], tl.float32))
        tl.store(image + y[:, None] * X + x[None, :], lines, mask=(y[:, None] < Y) & (x[None, :] < X))


@triton.jit
@no_type_check
def _gradients(
    images, patches, centres, strides, sigmas, intensities, F_x, F_y, by_centres, by_strides, by_sigmas, by_intensities,
    R, C, N, Y, X, INVERSE: tl.constexpr, FILTERS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, FILTERS)
    image = images + row // R * C * Y * X
    patches += row * C * N * N
    F_x += row * N * X
    F_y += row * N * Y
    stride, sigma, scale = tl.load(strides + row), tl.load(sigmas + row), _scale(intensities + row, INVERSE)
    offset, precision = i - (N - 1) / 2.0, 0.5 / (sigma * sigma)
    by_centre = tl.zeros([FILTERS], tl.float32)
    by_precision = tl.zeros([FILTERS], tl.float32)
    for axis in tl.static_range(2):
        filter, pixels, centre = F_x, X, tl.load(centres + row * 2) + offset * stride
        if axis == 1:
            filter, pixels, centre = F_y, Y, tl.load(centres + row * 2 + 1) + offset * stride
        nearest = _nearest(centre, pixels)
        # with g the gradient of a filter F: sums over pixels of F g, and of F and F g times what the slopes hold
        along, before, power = by_precision * 0.0, by_precision * 0.0, by_precision * 0.0
        by_before, by_power = by_precision * 0.0, by_precision * 0.0
        for start in range(0, pixels, TILE):
            a = start + tl.arange(0, TILE)
            to = tl.zeros([FILTERS, TILE], tl.float32)
            for channel in range(C):
                patch = _tile(patches + channel * N * N, i, i, N, N)
                if axis == 0:
                    down = _down(image + channel * Y * X, F_y, i, a, N, Y, X, FILTERS, TILE)
                    to = _dot(tl.trans(patch), down, to)
                else:
                    for left in range(0, X, TILE):
                        x = left + tl.arange(0, TILE)
                        across = _dot(patch, _tile(F_x, i, x, N, X), tl.zeros([FILTERS, TILE], tl.float32))
                        to = _dot(across, tl.trans(_tile(image + channel * Y * X, a, x, Y, X)), to)
            f = _tile(filter, i, a, N, pixels)
            distance = nearest[:, None] - (a + 1.0)[None, :]
            by_a = _power(nearest[:, None], (a + 1.0)[None, :], centre[:, None])
            along += tl.sum(f * to, axis=1)
            before += tl.sum(f * distance, axis=1)
            power += tl.sum(f * by_a, axis=1)
            by_before += tl.sum(f * to * distance, axis=1)
            by_power += tl.sum(f * to * by_a, axis=1)
        slope = tl.where(i < N, -2.0 * precision * (by_before - along * before), 0.0)
        tl.store(by_centres + row * 2 + axis, scale * tl.sum(slope))
        if axis == 0:  # the sum itself: filters past the last one are 0
            total = tl.sum(along)
            tl.store(by_intensities + row, -scale * scale * total if INVERSE else total)
        by_centre += slope
        by_precision += tl.where(i < N, by_power - along * power, 0.0)
    tl.store(by_strides + row, scale * tl.sum(offset * by_centre))
    tl.store(by_sigmas + row, scale * (-2.0 * precision / sigma * tl.sum(by_precision)))


@triton.jit
@no_type_check
def _scale(intensity, INVERSE: tl.constexpr):
    gamma = tl.load(intensity)
    return 1.0 / gamma if INVERSE else gamma

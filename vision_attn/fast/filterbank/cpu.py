"""DRAW's filterbank on a CPU: fused loops for reads, writes and their gradients, compiled by numba.

With filters F_X and F_Y, reading an image G gives F_Y G F_X^T, and writing a patch A gives F_Y^T A F_X. Each is the
gradient of the other, and both have the same gradient of the window, that of sum_ij A_ji (F_Y G F_X^T)_ji. For a read,
G is the image and A the gradient of the patch; for a write, A is the patch and G the gradient of the image.

Rows are windows; an image has as many as there are rows per image. All tensors are float32.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.fast.loops import LOG2_E, compiled, exp2, in_threads, inlined

HALF, ONE, TWO = np.float32(0.5), np.float32(1), np.float32(2)
ZERO = np.float32(0)


def takes(size: int, pixels: int) -> bool:
    """Return whether the loops are used for reads and writes: only with a gradient. Otherwise tensor operations are
    used, whose products can be counted."""
    return torch.is_grad_enabled()


def filters(
    centre: Float[Tensor, "B R 2"],
    stride: Float[Tensor, "B R"],
    sigma: Float[Tensor, "B R"],
    size: int,
    height: int,
    width: int,
) -> tuple[Float[Tensor, "B R N X"], Float[Tensor, "B R N Y"]]:
    """Return F_X and F_Y of windows: Gregor et al. 2015, eq. 19, eq. 20, eq. 25 and eq. 26."""
    window = _window(centre, stride, sigma)
    F_x, F_y = (window.new_empty(*window.shape[:2], size, pixels) for pixels in (width, height))
    in_threads(_filters, 4 * (F_x.numel() + F_y.numel()), window.flatten(0, 1), F_x.flatten(0, 1), F_y.flatten(0, 1))
    return F_x, F_y


def read(
    images: Float[Tensor, "B C Y X"],
    F_x: Float[Tensor, "B R N X"],
    F_y: Float[Tensor, "B R N Y"],
    intensity: Float[Tensor, "B R"],
    inverse: bool,
) -> Float[Tensor, "B R C N N"]:
    """Return gamma F_Y G F_X^T of each row and channel; 1 / gamma if `inverse`."""
    (B, R, N, _), C = F_x.shape, images.shape[1]
    patches = images.new_empty(B, R, C, N, N)
    in_threads(_read, N * images.numel() * R, images.contiguous(), F_x, F_y, patches)
    return patches * _scale(intensity, inverse)[..., None, None, None]


def write(
    patches: Float[Tensor, "B R C N N"],
    F_x: Float[Tensor, "B R N X"],
    F_y: Float[Tensor, "B R N Y"],
    intensity: Float[Tensor, "B R"],
    inverse: bool,
) -> Float[Tensor, "B R C Y X"]:
    """Return gamma F_Y^T A F_X of each row and channel; 1 / gamma if `inverse`."""
    images = patches.new_empty(*patches.shape[:3], F_y.shape[-1], F_x.shape[-1])
    scaled = (patches * _scale(intensity, inverse)[..., None, None, None]).contiguous()
    in_threads(_write, len(patches[0, 0, 0]) * images.numel(), scaled, F_x, F_y, images)
    return images


def gradients(
    images: Float[Tensor, "B C Y X"],
    patches: Float[Tensor, "B R C N N"],
    centre: Float[Tensor, "B R 2"],
    stride: Float[Tensor, "B R"],
    sigma: Float[Tensor, "B R"],
    intensity: Float[Tensor, "B R"],
    F_x: Float[Tensor, "B R N X"],
    F_y: Float[Tensor, "B R N Y"],
    inverse: bool,
) -> tuple[Float[Tensor, "B R 2"], Float[Tensor, "B R"], Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Return the gradients of gamma sum_ij A_ji (F_Y G F_X^T)_ji with respect to the centre, stride, sigma and
    intensity of each window, for G in `images` and A in `patches`; 1 / gamma if `inverse`."""
    grad, scale = stride.new_empty(*stride.shape, 5), _scale(intensity, inverse)
    arrays = (images.contiguous(), patches.contiguous(), _window(centre, stride, sigma), F_x, F_y, grad)
    in_threads(_gradients, 2 * F_x.shape[2] * images.numel() * F_x.shape[1], *arrays)
    by_intensity = -scale.square() * grad[..., 4] if inverse else grad[..., 4]
    return scale[..., None] * grad[..., :2], scale * grad[..., 2], scale * grad[..., 3], by_intensity


def _window(centre: Tensor, stride: Tensor, sigma: Tensor) -> Float[Tensor, "B R 4"]:
    return torch.cat([centre, stride[..., None], sigma[..., None]], dim=-1)


def _scale(intensity: Tensor, inverse: bool) -> Tensor:
    return 1 / intensity if inverse else intensity


@inlined
def _gaussian(filter, centre, precision):
    """Compute exp(-p (a - mu)^2) of pixels a = 1, 2, .., divided by their sum: see `filterbank._Gaussians`."""
    nearest = _nearest(centre, len(filter))
    scale, total = precision * LOG2_E, ZERO
    for i in range(len(filter)):
        a = np.float32(i + 1)
        value = exp2(scale * ((nearest - a) * (a + (nearest - TWO * centre))))
        filter[i] = value
        total += value
    share = ONE / total
    for i in range(len(filter)):
        filter[i] *= share


@inlined
def _nearest(centre, pixels):
    """Return the pixel nearest to a centre; NaN for NaN."""
    nearest = np.floor(centre + HALF)
    return ONE if nearest < ONE else np.float32(pixels) if nearest > pixels else nearest


@inlined
def _slopes(filter, grad, centre, precision):
    """Return the gradients of the centre and of the precision of one filter, given the gradient of its values; and the
    sum of the values times their gradients."""
    nearest, along, by_centre, by_precision = _nearest(centre, len(filter)), ZERO, ZERO, ZERO
    for i in range(len(filter)):
        along += filter[i] * grad[i]
    for i in range(len(filter)):
        a = np.float32(i + 1)
        slope, before = filter[i] * (grad[i] - along), nearest - a
        by_centre += slope * before
        by_precision += slope * (before * (a + (nearest - TWO * centre)))
    return -TWO * precision * by_centre, by_precision, along


@compiled
def _filters(first, last, windows, F_x, F_y):
    size = F_x.shape[1]
    for row in range(first, last):
        x, y, stride, sigma = windows[row]
        precision = HALF / (sigma * sigma)
        for i in range(size):
            offset = np.float32(i - (size - 1) / 2) * stride
            _gaussian(F_x[row, i], x + offset, precision)
            _gaussian(F_y[row, i], y + offset, precision)


@inlined
def _add_product(matrix, rows, output):
    """Add the product: output += matrix rows. Four rows at a time, which saves most of the additions in memory."""
    number = len(rows)
    for k in range(0, number - 3, 4):
        row0, row1, row2, row3 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
        for j in range(len(output)):
            m0, m1, m2, m3 = matrix[j, k], matrix[j, k + 1], matrix[j, k + 2], matrix[j, k + 3]
            to = output[j]
            for x in range(len(to)):
                to[x] += (m0 * row0[x] + m1 * row1[x]) + (m2 * row2[x] + m3 * row3[x])
    for k in range(number - number % 4, number):
        row = rows[k]
        for j in range(len(output)):
            m, to = matrix[j, k], output[j]
            for x in range(len(to)):
                to[x] += m * row[x]


@inlined
def _add_products(rows, others, output):
    """Add the product: output += rows others^T. Four of `others` at a time."""
    number = len(others)
    for j in range(len(rows)):
        row, to = rows[j], output[j]
        for i in range(0, number - 3, 4):
            other0, other1, other2, other3 = others[i], others[i + 1], others[i + 2], others[i + 3]
            total0 = total1 = total2 = total3 = ZERO
            for x in range(len(row)):
                total0 += row[x] * other0[x]
                total1 += row[x] * other1[x]
                total2 += row[x] * other2[x]
                total3 += row[x] * other3[x]
            to[i] += total0
            to[i + 1] += total1
            to[i + 2] += total2
            to[i + 3] += total3
        for i in range(number - number % 4, number):
            other, total = others[i], ZERO
            for x in range(len(row)):
                total += row[x] * other[x]
            to[i] += total


@compiled
def _read(first, last, images, F_x, F_y, patches):
    rows, channels, size = patches.shape[1:4]
    sums = np.empty((size, F_x.shape[3]), np.float32)
    for image in range(first, last):
        for row in range(rows):
            for channel in range(channels):
                sums[:], patches[image, row, channel] = ZERO, ZERO
                _add_product(F_y[image, row], images[image, channel], sums)
                _add_products(sums, F_x[image, row], patches[image, row, channel])


@compiled
def _write(first, last, patches, F_x, F_y, images):
    rows, channels, size = patches.shape[1:4]
    sums = np.empty((size, F_x.shape[3]), np.float32)
    for image in range(first, last):
        for row in range(rows):
            for channel in range(channels):
                sums[:], images[image, row, channel] = ZERO, ZERO
                _add_product(patches[image, row, channel], F_x[image, row], sums)
                _add_product(F_y[image, row].T, sums, images[image, row, channel])


@compiled
def _gradients(first, last, images, patches, windows, F_x, F_y, grad):
    rows, channels, size = patches.shape[1:4]
    height, width = images.shape[2:]
    down, across = np.empty((size, width), np.float32), np.empty((size, width), np.float32)
    to_x, to_y = np.empty((size, width), np.float32), np.empty((size, height), np.float32)
    for image in range(first, last):
        for row in range(rows):
            to_x[:], to_y[:] = ZERO, ZERO
            for channel in range(channels):
                down[:], across[:] = ZERO, ZERO
                _add_product(F_y[image, row], images[image, channel], down)
                _add_product(patches[image, row, channel], F_x[image, row], across)
                _add_product(patches[image, row, channel].T, down, to_x)
                _add_products(across, images[image, channel], to_y)
            x, y, stride, sigma = windows[image, row]
            precision = HALF / (sigma * sigma)
            by_x, by_y, by_stride, by_precision, total = ZERO, ZERO, ZERO, ZERO, ZERO
            for i in range(size):
                offset = np.float32(i - (size - 1) / 2)
                slope_x, more, along = _slopes(F_x[image, row, i], to_x[i], x + offset * stride, precision)
                slope_y, most, _ = _slopes(F_y[image, row, i], to_y[i], y + offset * stride, precision)
                by_x += slope_x
                by_y += slope_y
                by_stride += offset * (slope_x + slope_y)
                by_precision += more + most
                total += along
            to = grad[image, row]
            to[0], to[1], to[2], to[3] = by_x, by_y, by_stride, -TWO * precision / sigma * by_precision
            to[4] = total

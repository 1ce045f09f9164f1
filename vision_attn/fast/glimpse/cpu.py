"""Glimpses on a CPU: fused loops that average the pixels of an image directly, without a pyramid.

A cell of a patch is the mean over a square. Each row of cells first sums its rows of pixels, over the width of the
whole patch, and then the columns of each cell. Pixels on the border of a cell count with the share of them inside.
"""

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.fast.loops import compiled, in_threads, inlined


def glimpses(
    images: Float[Tensor, "B C Y X"], corners: Float[Tensor, "B R K 2"], size: int, origins: Int[Tensor, "B 2"]
) -> Float[Tensor, "B R K C g g"]:
    """Extract patches from images, in the dtype of the images: float32 or float64.

    corners: the top left corner (x, y) of each patch, in pixels.
    origins: the coordinates of the first pixel of each image.
    """
    B, R, K, _ = corners.shape
    patches = images.new_empty(B, R, K, images.shape[1], size, size)
    numbers = patches.numel() * 4 ** (K - 1)  # pixels read, at most
    in_threads(_glimpses, numbers, images.contiguous(), corners.double().contiguous(), origins.contiguous(), patches)
    return patches


@compiled
def _glimpses(first, last, images, corners, origins, patches):
    rows, scales, channels, size = patches.shape[1:5]
    sums = np.empty(size * 2 ** (scales - 1) + 1, images.dtype)
    unit = sums.dtype.type(1)
    for image in range(first, last):
        for row in range(rows):
            for scale in range(scales):
                side = 2**scale
                reach = size * side
                wide = sums[: reach + 1]
                left, top = corners[image, row, scale]
                x, y = int(np.floor(left)), int(np.floor(top))
                right, down = sums.dtype.type(left - x), sums.dtype.type(top - y)
                x, y = x - origins[image, 0], y - origins[image, 1]
                for channel in range(channels):
                    pixels, patch = images[image, channel], patches[image, row, scale, channel]
                    for j in range(size):
                        at = y + j * side
                        _add(pixels, at, unit - down, at + side, down, x, wide, False)
                        for i in range(at + 1, at + side, 2):
                            _add(pixels, i, unit, i + 1, unit if i + 1 < at + side else unit - unit, x, wide, True)
                        for i in range(reach):
                            sums[i] += right * (sums[i + 1] - sums[i])
                        for halving in range(1, scale + 1):
                            for i in range(reach // 2**halving):
                                sums[i] = sums[2 * i] + sums[2 * i + 1]
                        for i in range(size):
                            patch[j, i] = sums[i] / (side * side)


@inlined
def _add(pixels, row, share, other_row, other_share, x, sums, more):
    """Add a share of the pixels from column `x` on of the pixel rows `row` and `other_row` to `sums`, or overwrite
    `sums`. 0 outside."""
    height, width = pixels.shape
    start, stop = max(0, -x), min(len(sums), width - x)
    if not 0 <= row < height:
        row, share = 0, share - share
    if not 0 <= other_row < height:
        other_row, other_share = 0, other_share - other_share
    if not more:
        sums[:start] = 0
        sums[max(0, stop) :] = 0
    first, second, to = pixels[row, x + start : x + stop], pixels[other_row, x + start : x + stop], sums[start:stop]
    if more:
        for i in range(len(to)):
            to[i] += share * first[i] + other_share * second[i]
    else:
        for i in range(len(to)):
            to[i] = share * first[i] + other_share * second[i]

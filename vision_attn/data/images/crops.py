"""Random crops of photographs, mirrored or not, cut and resized on the device of the training."""

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.nn import functional as F


def random_crops(
    smallest: float, mirrored: Bool[np.ndarray, "N"], rng: np.random.Generator
) -> Float[np.ndarray, "N 4"]:
    """Sample a random square (x0, y0, x1, y1) of each of N photographs.

    smallest: the smallest side of a square; the side of a photograph is 1.
    mirrored: the photographs to mirror; their squares have x0 > x1.

    The corners of a photograph are (-1, -1), top left, and (1, 1).
    """
    side = rng.uniform(smallest, 1, (len(mirrored), 1))
    centre = rng.uniform(-1, 1, (len(mirrored), 2)) * (1 - side)
    crops = np.concatenate([centre - side, centre + side], axis=1).astype(np.float32)
    return np.where(mirrored[:, None], crops[:, [2, 1, 0, 3]], crops)


@torch.no_grad()
def cropped(images: UInt8[Tensor, "B 3 S S"], crops: Float[Tensor, "B 4"]) -> UInt8[Tensor, "B 3 S S"]:
    """Cut crops (see `random_crops`) out of images, and resize them to the size of the whole image (bicubic). The crop
    (-1, -1, 1, 1) is the image itself, to the bit, and (1, -1, -1, 1) its mirror image.

    Not by `F.affine_grid`: its matrix product may run in TF32 or bfloat16, which misses pixels.
    """
    size = images.shape[-1]
    share = (torch.arange(size, device=images.device) + 0.5) / size
    start, end = crops[:, :2, None], crops[:, 2:, None]
    x, y = (start + (end - start) * share).unbind(dim=1)
    shape = (len(images), size, size)
    grid = torch.stack([x[:, None].expand(shape), y[:, :, None].expand(shape)], dim=-1)
    pixels = F.grid_sample(images.float(), grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    return pixels.round().clamp(0, 255).byte().contiguous(memory_format=torch.channels_last)

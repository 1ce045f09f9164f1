"""Glimpses: RAM's retina, which sees a place sharply and its surroundings ever more coarsely (Mnih et al., 2014, rho).

`pyramid(images)` runs once per batch, `forward(pyramid, locations)` once per glimpse: the inner loop of RAM.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class Pyramid(NamedTuple):
    """Images ready to be looked at, held once however many rows look at them."""

    averages: Tensor
    """(B, K, C, H, W): in scale k each pixel is the mean of the 2^k x 2^k image pixels to its right and below it, zeros
    counted where they leave the image. Nothing is left out between them, so a patch may begin at any pixel. The canvas
    is wider than the image by the pixels from which such a square reaches into it, and a margin of zeros."""
    cells: Tensor
    """(K, 2, g, g): x and y in a canvas of each cell of a glimpse at (0, 0), as `grid_sample` counts them."""
    extent: Tensor
    """(2,): how much of a canvas's width and height the image takes."""


class Retina(nn.Module):
    """K square patches around each location, of g, 2g, .. 2^(K-1) g pixels, all averaged down to g x g.

    A patch is zero outside the image. Where its window falls on whole pixels it equals slicing the image and averaging
    squares of 2^k pixels; elsewhere the window is interpolated bilinearly, which is the mean over the exact area when
    pixels are seen as squares. An even patch at the centre of an even image falls on whole pixels, an odd patch does
    so around the centre of a pixel.

    Nothing here has a gradient: locations are drawn, and images are given. Computed in float32 at least, whatever
    autocast does.
    """

    def __init__(self, *, size: int = 8, num_scales: int = 1):
        super().__init__()
        for name, number in (("size", size), ("num_scales", num_scales)):
            if number < 1:
                raise ValueError(f"Retina: {name} is {number}, and must be at least 1")
        self.size, self.num_scales = size, num_scales

    @torch.no_grad()
    def pyramid(self, images: Float[Tensor, "B C Y X"]) -> Pyramid:
        """What all glimpses at these images share. Scale k + 1 is the mean of four pixels of scale k, 2^k apart."""
        B, C, Y, X = images.shape
        dtype = torch.promote_types(images.dtype, torch.float32)
        before, after = 2 ** (self.num_scales - 1) - 1, 2 ** (self.num_scales - 1) // 2
        H, W = Y + before + after, X + before + after
        averages = images.new_zeros(B, self.num_scales, C, H, W, dtype=dtype)
        averages[:, 0, :, before : before + Y, before : before + X] = images
        for k in range(self.num_scales - 1):
            apart, finer, coarser = 2**k, averages[:, k], averages[:, k + 1]
            rows = torch.lerp(finer[..., :-apart, :], finer[..., apart:, :], 0.5)
            torch.lerp(rows[..., :-apart], rows[..., apart:], 0.5, out=coarser[..., :-apart, :-apart])

        side = 2 ** torch.arange(self.num_scales, device=images.device)  # (K,), image pixels to a cell
        place = torch.arange(-self.size / 2, self.size / 2, device=images.device, dtype=dtype)
        edge = side[:, None] * place  # (K, g), in image pixels from the glimpse's centre
        x, y = (edge * (2 / canvas) + ((length + 2 * before + 1) / canvas - 1) for length, canvas in ((X, W), (Y, H)))
        cells = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), dim=1)
        extent = torch.linspace(X / W, Y / H, 2, device=images.device, dtype=dtype)  # made where it is used: no waiting
        return Pyramid(averages, cells, extent)

    @torch.no_grad()
    def forward(self, pyramid: Pyramid, locations: Float[Tensor, "B R 2"]) -> Float[Tensor, "B R K C g g"]:
        """The glimpses at locations (x, y), where (-1, -1) is the image's top left corner and (1, 1) the opposite."""
        (B, K, C, H, W), R, g = pyramid.averages.shape, locations.shape[1], self.size
        centre = (locations * pyramid.extent).mT.contiguous()[:, None, :, :, None, None]
        # x and y each lie together in memory, (B, K, 2, R, g, g): written and read at twice the speed of pairs
        grid = (centre + pyramid.cells[:, :, None]).view(B * K, 2, R * g, g).permute(0, 2, 3, 1)
        patches = functional.grid_sample(pyramid.averages.view(B * K, C, H, W), grid, align_corners=False)
        return patches.view(B, K, C, R, g, g).permute(0, 3, 1, 2, 4, 5)

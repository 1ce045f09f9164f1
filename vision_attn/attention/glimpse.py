"""Glimpses: RAM's retina, which sees a place sharply and its surroundings ever more coarsely (Mnih et al., 2014, rho).

`pyramid(images)` runs once per batch, `forward(pyramid, locations)` once per glimpse: the inner loop of RAM.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from vision_attn.ranges import check_range
from vision_attn.shapes import require


class Pyramid(NamedTuple):
    """Images ready to be looked at, held once however many rows look at them."""

    averages: Tensor
    """(K, B, C, H, W): in scale k each pixel is the mean of the 2^k x 2^k image pixels to its right and below it, zeros
    counted where they leave the image. Nothing is left out between them, so a patch may begin at any pixel. A canvas
    has W - X columns and H - Y rows before the image's first: from there the widest square still reaches into it."""
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
        check_range("Retina", 1, 1000, size=size)
        check_range("Retina", 1, 10, num_scales=num_scales)  # each doubles the width of what it sees
        self.size, self.num_scales = size, num_scales

    @torch.no_grad()
    def pyramid(self, images: Float[Tensor, "B C Y X"]) -> Pyramid:
        """What all glimpses at these images share."""
        require("images", images, "B C Y X", "float")
        averages = _averages(images, self.num_scales)
        Y, X, H, W = *images.shape[-2:], *averages.shape[-2:]
        device, dtype = averages.device, averages.dtype
        side = 2 ** torch.arange(self.num_scales, device=device)[:, None]
        edge = side * torch.arange(-self.size / 2, self.size / 2, device=device, dtype=dtype)  # (K, g), in image pixels
        # `grid_sample` puts pixel q of a canvas at (2 q + 1) / W - 1, and q = W - X + X / 2 + edge
        x, y = ((2 * edge + canvas - image + 1) / canvas for canvas, image in ((W, X), (H, Y)))
        cells = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), dim=1)
        extent = torch.linspace(X / W, Y / H, 2, device=device, dtype=dtype)  # two numbers without a copy to a GPU
        return Pyramid(averages, cells, extent)

    @torch.no_grad()
    def forward(self, pyramid: Pyramid, locations: Float[Tensor, "B R 2"]) -> Float[Tensor, "B R K C g g"]:
        """What is seen at locations (x, y), where (-1, -1) is the image's top left corner and (1, 1) the opposite."""
        require("locations", locations, "B R 2", "float", B=pyramid.averages.shape[1])
        (K, B, C, H, W), R, g = pyramid.averages.shape, locations.shape[1], self.size
        centre = (locations * pyramid.extent).mT.contiguous()[..., None, None]
        # in memory (K, B, 2, R, g, g), all x and then all y: five times as fast to write as pairs
        grid = (centre + pyramid.cells[:, None, :, None]).view(K * B, 2, R * g, g).permute(0, 2, 3, 1)
        patches = functional.grid_sample(pyramid.averages.view(K * B, C, H, W), grid, align_corners=False)
        return patches.view(K, B, C, R, g, g).permute(1, 3, 0, 2, 4, 5)


@torch.library.custom_op("vision_attn::averages", mutates_args=())
def _averages(images: Tensor, num_scales: int) -> Tensor:
    """(K, B, C, H, W) of images (B, C, Y, X): scale k + 1 is the mean of four pixels of scale k, 2^k apart.

    All rows of all canvases are averaged as one line of numbers. Where a row ends, the next one's beginning stands for
    what lies to the right of it, and where a canvas ends, the next one's for what lies below: rightly, since both are
    zero there. One operator to `torch.compile`, which would take each scale's average anew in each of its readers.
    """
    averages = _canvases(images, num_scales)
    before = averages.shape[-1] - images.shape[-1]
    averages[0] = 0
    averages[0, ..., before:, before:] = images
    line, length = averages.view(-1), averages[0].numel()
    for k in range(num_scales - 1):
        right, down = 2**k, 2**k * averages.shape[-1]
        finer, coarser = line[k * length :], line[(k + 1) * length : (k + 2) * length]
        coarser[: down + right] = 0  # what lies below the last of the finer canvases, until it is overwritten
        rows = torch.lerp(finer[: length + right], finer[down : length + right + down], 0.5)
        torch.lerp(rows[:length], rows[right:], 0.5, out=coarser)
    return averages


@_averages.register_fake
def _canvases(images: Tensor, num_scales: int) -> Tensor:
    """Room for the averages: 2^(K-1) - 1 rows and columns before the image's first, in float32 at least."""
    B, C, Y, X = images.shape
    before = 2 ** (num_scales - 1) - 1
    dtype = torch.promote_types(images.dtype, torch.float32)
    return images.new_empty(num_scales, B, C, Y + before, X + before, dtype=dtype)

"""The glimpse sensor (retina) of RAM, rho in Mnih et al. (2014): patches around a location at several resolutions.

The narrowest patch is the sharpest; wider patches are coarser. `pyramid(images)` runs once per batch,
`forward(pyramid, locations)` once per glimpse: the inner loop of RAM. A glimpse is computed in one of two ways, with
the same result:

- A pyramid holds the averages of all pixels of small images, and glimpses are interpolated in it.
- From a large image, and from `Images`, each glimpse cuts a crop and computes the pyramid of that crop alone. So the
  cost of a glimpse does not depend on the size of the image.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from vision_attn.attention.images import Images
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.checks import check_range, require
from vision_attn.system.errors import UserError

LARGE = 300**2
"""The number of pixels above which an image is read in crops, without a pyramid. In batches of 32, crops are faster for
images wider than 200 to 300 pixels; for single images, wider than 1,500, but there a pyramid takes only milliseconds
(docs/results_runs.md)."""


class Pyramid(NamedTuple):
    """Images prepared for glimpses. Shared by all rows of an image."""

    averages: Tensor
    """(K, B, C, H, W), K canvases per image. In scale k each pixel is the mean of the 2^k x 2^k image pixels that start
    there and extend right and down; pixels outside the image count as 0. Scales are not subsampled, so a patch may
    start at any pixel. A canvas has W - X columns and H - Y rows of pixels before the first of the image: the widest
    square that starts in them still overlaps the image."""
    cells: Tensor
    """(K, 2, g, g): x and y of each cell of a glimpse at (0, 0), in the canvas coordinates of `grid_sample`."""
    extent: Tensor
    """(2,): the width and height of the image as a fraction of those of a canvas."""


class Uncut(NamedTuple):
    """Images without a pyramid: each glimpse reads a crop of them."""

    images: Float[Tensor, "B C Y X"] | Images

    def crops(self, origins: Int[Tensor, "B R 2"], side: int) -> Float[Tensor, "B R C {side} {side}"]:
        """Read squares of `side` pixels whose top left pixels are `origins` (x, y); 0 outside of the image."""
        if isinstance(self.images, Images):
            return self.images.crops(origins, side)
        B, C, Y, X = self.images.shape
        x, y = (origins[..., None] + torch.arange(side, device=origins.device)).unbind(dim=-2)
        pixel = y.clamp(0, Y - 1)[..., :, None] * X + x.clamp(0, X - 1)[..., None, :]  # (B, R, side, side)
        crops = self.images.flatten(2).gather(2, pixel.view(B, 1, -1).expand(-1, C, -1)).view(B, C, *pixel.shape[1:])
        inside = ((y >= 0) & (y < Y))[..., :, None] & ((x >= 0) & (x < X))[..., None, :]
        return (crops * inside[:, None]).transpose(1, 2)


class Retina(nn.Module):
    """Extracts K square patches around each location, g, 2g, .. 2^(K-1) g pixels wide, all averaged down to g x g.

    A patch is zero outside the image. Where its window falls on whole pixels, it equals slicing the image and averaging
    squares of 2^k pixels. Elsewhere the window is interpolated bilinearly, which is the mean over the exact area if
    pixels are squares of constant intensity. A patch of even width falls on whole pixels when centred on a corner
    between pixels, such as the centre of an image of even width; a patch of odd width does when centred on a pixel.

    Has no gradient: locations are sampled, and images are data. Runs in float32 or wider also under autocast.

    size: g, the width of patches in pixels.
    num_scales: K, the number of patches of a glimpse.

    Fast version: `fast.glimpse.FastRetina`.
    """

    reaches: Tensor
    edges: Tensor

    def __init__(self, *, size: int = 8, num_scales: int = 1):
        super().__init__()
        check_range("Retina", 1, 1000, size=size)
        check_range("Retina", 1, 10, num_scales=num_scales)  # each scale doubles the width of the widest patch
        self.size, self.num_scales = size, num_scales
        self.reach = size * 2 ** (num_scales - 1)
        """The width of the widest patch, in pixels of the image."""
        scales = 2 ** torch.arange(num_scales)[:, None]
        self.register_buffer("reaches", size * scales, persistent=False)  # of all (K, 1)
        self.register_buffer("edges", scales * (2 * torch.arange(size) - size), persistent=False)
        """Twice the offset of each cell's edge from the centre, in pixels of the image, (K, g). Computed once: at each
        glimpse it would cost several GPU kernels."""

    @torch.no_grad()
    def pyramid(self, images: Float[Tensor, "B C Y X"] | Images) -> Pyramid | Uncut:
        """Prepare images for glimpses: compute the averages that all glimpses share or, for images that are read in
        crops, return them as `Uncut`."""
        if isinstance(images, Images):
            return Uncut(images)
        require("images", images, "B C Y X", "float")
        if images.shape[-2] * images.shape[-1] > LARGE:
            return Uncut(at_least_float32(images))
        return self._pyramid(images)

    @torch.no_grad()
    def forward(self, pyramid: Pyramid | Uncut, locations: Float[Tensor, "B R 2"]) -> Float[Tensor, "B R K C g g"]:
        """Extract a glimpse at each of `locations` (x, y) in [-1, 1]: (-1, -1) is the top left corner of the image,
        (1, 1) the bottom right one."""
        if isinstance(pyramid, Tensor):
            raise UserError(
                "Retina: give what `pyramid(images)` returns, which all glimpses of a batch share, not images"
            )
        images = pyramid.averages[0] if isinstance(pyramid, Pyramid) else pyramid.images
        require("locations", locations, "B R 2", "float", B=images.shape[0])
        if isinstance(pyramid, Uncut):
            return self._cut(pyramid, locations)
        return self._interpolated(pyramid, locations)

    def _pyramid(self, images: Float[Tensor, "B C Y X"]) -> Pyramid:
        averages = self._averages(images)
        Y, X, H, W = *images.shape[-2:], *averages.shape[-2:]
        device, dtype = averages.device, averages.dtype
        edges = self.edges.to(device, dtype)
        # `grid_sample` puts pixel q of a canvas at (2 q + 1) / W - 1, and q = W - X + X / 2 + edge
        x = (edges + (W - X + 1)) / W
        y = x if (H, Y) == (W, X) else (edges + (H - Y + 1)) / H
        cells = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), dim=1)
        extent = torch.linspace(X / W, Y / H, 2, device=device, dtype=dtype)  # (X / W, Y / H) without a copy to a GPU
        return Pyramid(averages, cells, extent)

    def _averages(self, images: Float[Tensor, "B C Y X"]) -> Float[Tensor, "K B C H W"]:
        return computed_averages(images, self.num_scales)

    def _interpolated(self, pyramid: Pyramid, locations: Float[Tensor, "B R 2"]) -> Float[Tensor, "B R K C g g"]:
        (K, B, C, H, W), R, g = pyramid.averages.shape, locations.shape[1], self.size
        place, extent = locations.mT.contiguous()[..., None, None], pyramid.extent[:, None, None, None]
        # stored as (K, B, 2, R, g, g), all x before all y: five times as fast to write as (x, y) pairs
        grid = torch.addcmul(pyramid.cells[:, None, :, None], place, extent)
        grid = grid.view(K * B, 2, R * g, g).permute(0, 2, 3, 1)
        patches = functional.grid_sample(pyramid.averages.view(K * B, C, H, W), grid, align_corners=False)
        return patches.view(K, B, C, R, g, g).permute(1, 3, 0, 2, 4, 5)

    def _cut(self, uncut: Uncut, locations: Float[Tensor, "B R 2"]) -> Float[Tensor, "B R K C g g"]:
        """Extract each glimpse from one crop, which contains its widest patch and so all patches."""
        (B, R, _), images, side = locations.shape, uncut.images, self.reach + 1
        if isinstance(images, Images):  # places are computed where the images are
            locations, extents = locations.cpu().double(), images.extents
        else:
            locations = at_least_float32(locations)
            Y, X = images.shape[-2:]
            extents = torch.linspace(X, Y, 2, device=locations.device)[None]  # without a copy to a GPU
        corners = self._corners(locations, extents)
        origins = corners[:, :, -1].floor().long()
        crops = uncut.crops(origins, side).flatten(0, 1)
        return self._averaged(crops, corners, origins).unflatten(0, (B, R)).squeeze(2)

    def _averaged(self, crops: Tensor, corners: Float[Tensor, "B R K 2"], origins: Int[Tensor, "B R 2"]) -> Tensor:
        """Return the patches (B R, 1, K, C, g, g) at `corners` of crops (B R, C, side, side) whose top left pixels are
        `origins`."""
        side = crops.shape[-1]
        centres = corners[:, :, -1] - origins + self.reach / 2
        locations = (2 * centres / side - 1).to(crops).view(-1, 1, 2)
        return self._interpolated(self._pyramid(crops), locations)

    def _corners(
        self, locations: Float[Tensor, "B R 2"], extents: Int[Tensor, "#B 2"] | Float[Tensor, "#B 2"]
    ) -> Float[Tensor, "B R K 2"]:
        """Return the top left corner of each patch in pixels (x, y). A patch wholly outside the image is moved until it
        touches the image: it stays all zeros. A location that is NaN gives zeros too."""
        reaches = self.reaches.to(locations.device)
        corners = ((locations + 1) / 2 * extents[:, None])[:, :, None] - reaches / 2
        return corners.fmax(-reaches).fmin(extents[:, None, None])


def computed_averages(images: Tensor, num_scales: int) -> Tensor:
    """Compute the averages (K, B, C, H, W) of images (B, C, Y, X): a pixel of scale k + 1 is the mean of four pixels of
    scale k, 2^k apart.

    Treats all rows of all canvases as one contiguous line of pixels. Past the end of a row it therefore reads the
    start of the next row, and past the end of a canvas the start of the next canvas. Both are zero, as padding would
    be.
    """
    averages = canvases(images, num_scales)
    before = averages.shape[-1] - images.shape[-1]
    averages[0] = 0
    averages[0, ..., before:, before:] = images
    line, length = averages.view(-1), averages[0].numel()
    for k in range(num_scales - 1):
        right, down = 2**k, 2**k * averages.shape[-1]
        finer, coarser = line[k * length :], line[(k + 1) * length : (k + 2) * length]
        coarser[: down + right] = 0  # read as the zeros below the last finer canvas; overwritten afterwards
        vertical = torch.lerp(finer[: length + right], finer[down : length + right + down], 0.5)
        torch.lerp(vertical[:length], vertical[right:], 0.5, out=coarser)
    return averages


def canvases(images: Tensor, num_scales: int) -> Tensor:
    """Allocate canvases with 2^(K-1) - 1 rows and columns of pixels before the first of the image, in float32 or
    wider."""
    B, C, Y, X = images.shape
    before = 2 ** (num_scales - 1) - 1
    dtype = torch.promote_types(images.dtype, torch.float32)
    return images.new_empty(num_scales, B, C, Y + before, X + before, dtype=dtype)

"""A small convolutional encoder, trained along with the captioner: images -> annotation vectors.

Four 3x3 convolutions, of which the first two halve the image, leave a grid of a quarter of its size: 56x56 pixels give
14x14 regions a_i. A region sees 23x23 pixels around its place. That is enough to hold one whole thing of a drawn scene
(12 to 20 pixels), so that a region can tell a star from a cross, and hardly more, so that it can tell nothing about
things elsewhere: to say a word the decoder has to look where the thing is.

Normalised by groups, not over the batch: an image's regions do not depend on the images beside it, and two processes
that share a batch compute what one would.
"""

import hashlib

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vision_attn.contracts import Encoder
from vision_attn.ranges import check_range
from vision_attn.shapes import require


class ConvNet(Encoder):
    """uint8 images (B, 3, S, S) -> regions (B, L, D), row by row; L = (S / 4)^2.

    resolution: S, in pixels, a multiple of 4. region_size: D, a multiple of 8. width: channels of the second and third
    convolution, half of which the first has; a multiple of 16.

    To each region the learned vectors of its row and its column are added: words such as "left" and "above" compare
    places, and a convolution by itself does not know where it is.
    """

    trainable = True
    field = 23
    """Height and width, in pixels, of what a region sees."""

    def __init__(self, *, resolution: int = 56, region_size: int = 128, width: int = 64) -> None:
        super().__init__()
        if resolution < 4 or resolution % 4:
            raise ValueError(f"ConvNet: resolution={resolution} must be a multiple of 4 pixels")
        if region_size % 8 or width % 16 or min(region_size, width) < 1:
            raise ValueError(f"ConvNet: region_size={region_size} must be a multiple of 8, width={width} of 16")
        check_range("ConvNet", 4, 4096, resolution=resolution)
        self.resolution, self.region_size = resolution, region_size
        self.grid = (resolution // 4, resolution // 4)

        def layer(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
            convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
            return [convolution, nn.GroupNorm(8, outputs), nn.ReLU()]

        self.layers = nn.Sequential(
            *layer(3, width // 2, stride=2),
            *layer(width // 2, width, stride=2),
            *layer(width, width, stride=1),
            *layer(width, region_size, stride=1),
        )
        self.layers.to(memory_format=torch.channels_last)  # twice as fast on a CPU
        self.rows = nn.Parameter(0.1 * torch.randn(self.grid[0], 1, region_size))
        self.columns = nn.Parameter(0.1 * torch.randn(1, self.grid[1], region_size))

    def forward(self, images: UInt8[Tensor, "B 3 Y X"]) -> Float[Tensor, "B L D"]:
        """Raises ValueError for images of another size than `resolution`."""
        require("images", images, "B 3 Y X", "uint8", Y=self.resolution, X=self.resolution)
        pixels = images.to(self.rows.dtype).contiguous(memory_format=torch.channels_last) / 64 - 1
        regions = self.layers(pixels).permute(0, 2, 3, 1)
        return (regions + self.rows + self.columns).flatten(1, 2)

    def identity(self) -> dict[str, str | int]:
        """Which network this is; the checksum is that of its present weights."""
        checksum = hashlib.sha256()
        for name, weights in sorted(self.state_dict().items()):
            checksum.update(name.encode())
            checksum.update(weights.detach().float().cpu().contiguous().numpy().tobytes())
        return {
            "backbone": "convnet",
            "node": "regions",
            "resolution": self.resolution,
            "checksum": checksum.hexdigest(),
        }

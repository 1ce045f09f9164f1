"""A small convolutional encoder of strips of any width: their columns become annotation vectors, from left to right."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vision_attn.contracts import Encoder
from vision_attn.encoders.backbone import checksum
from vision_attn.system.checks import check_range, require
from vision_attn.system.errors import UserError


class Columns(Encoder):
    """Four convolutions: uint8 strips (B, 3, Y, X) -> one annotation vector for every four columns of pixels.

    The receptive field of a column is 23 pixels wide, a little more than a digit. Colours are averaged. Normalises
    each column by itself, so the columns of a strip do not depend on the padding of its batch.

    resolution: Y, the height of strips in pixels, a multiple of 8. X may be any multiple of 4.
    region_size: D, the size of an annotation vector.
    width: channels of the first convolution; the second and third have two and four times as many.
    """

    trainable = convolutional = True
    grid = (1, -1)
    """One row of as many columns as the strip has."""

    def __init__(self, *, resolution: int = 32, region_size: int = 64, width: int = 16) -> None:
        super().__init__()
        if resolution < 8 or resolution % 8:
            raise UserError(f"Columns: resolution={resolution} must be a multiple of 8 pixels")
        check_range("Columns", 8, 512, resolution=resolution)
        check_range("Columns", 1, 4096, region_size=region_size, width=width)
        self.resolution, self.region_size = resolution, region_size
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, stride=(2, 1), padding=1),
            nn.ReLU(),
            nn.Conv2d(4 * width, region_size, (resolution // 8, 3), padding=(0, 1)),
        )
        self.norm = nn.LayerNorm(region_size)
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        self.layers.to(memory_format=torch.channels_last)

    def forward(self, images: UInt8[Tensor, "B 3 Y X"]) -> Float[Tensor, "B L D"]:
        """Encode strips. Raises UserError for strips of another height than `resolution`."""
        require("images", images, "B 3 Y X", "uint8", Y=self.resolution)
        pixels = images.to(self.norm.weight.dtype).mean(dim=1, keepdim=True) / 255
        columns = self.layers(pixels.contiguous(memory_format=torch.channels_last)).squeeze(2).mT
        return self.norm(columns).relu()

    def identity(self) -> dict[str, str | int]:
        return {"backbone": "columns", "node": "regions", "resolution": self.resolution, "checksum": checksum(self)}

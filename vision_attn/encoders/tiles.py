"""A small encoder for images whose objects lie on a grid: each tile becomes one annotation vector. Trained with the
model."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vision_attn.contracts import Encoder
from vision_attn.encoders.backbone import checksum
from vision_attn.system.checks import check_range, require
from vision_attn.system.errors import UserError


class Tiles(Encoder):
    """A perceptron of two layers, the same for all tiles: uint8 images (B, 3, S, S) -> regions (B, L, D), row by row,
    of L = `tiles`^2 square tiles. Adds a learned embedding of its place to each region.

    For images whose objects lie on a grid: a region sees one tile and nothing of the others.

    resolution: S, the height and width of images in pixels, a multiple of `tiles`.
    tiles: the number of tiles along each side.
    hidden_size: the size of the first layer.
    region_size: D, the size of an annotation vector.
    """

    trainable = True

    def __init__(self, *, resolution: int = 54, tiles: int = 3, hidden_size: int = 128, region_size: int = 64) -> None:
        super().__init__()
        check_range("Tiles", 1, 4096, resolution=resolution, hidden_size=hidden_size, region_size=region_size)
        check_range("Tiles", 1, 64, tiles=tiles)
        if resolution % tiles:
            raise UserError(f"Tiles: resolution={resolution} must be a multiple of tiles={tiles}")
        self.resolution, self.region_size, self.grid = resolution, region_size, (tiles, tiles)
        self.side = resolution // tiles
        self.layers = nn.Sequential(
            nn.Linear(3 * self.side**2, hidden_size), nn.LayerNorm(hidden_size), nn.ReLU(),
            nn.Linear(hidden_size, region_size),
        )  # fmt: skip
        self.places = nn.Parameter(0.3 * torch.randn(tiles**2, region_size))

    def forward(self, images: UInt8[Tensor, "B 3 Y X"]) -> Float[Tensor, "B L D"]:
        """Encode images. Raises UserError for images of another size than `resolution`."""
        require("images", images, "B 3 Y X", "uint8", Y=self.resolution, X=self.resolution)
        pixels = images.to(self.places.dtype) / 64 - 1
        tiles = pixels.unflatten(3, (-1, self.side)).unflatten(2, (-1, self.side)).permute(0, 2, 4, 1, 3, 5)
        return self.layers(tiles.flatten(1, 2).flatten(2)) + self.places

    def identity(self) -> dict[str, str | int]:
        return {"backbone": "tiles", "node": "regions", "resolution": self.resolution, "checksum": checksum(self)}

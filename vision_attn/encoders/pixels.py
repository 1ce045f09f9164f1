"""The pixels themselves as annotation vectors, for models that take their own glimpses of an image."""

from jaxtyping import Float, UInt8
from torch import Tensor

from vision_attn.contracts import Encoder
from vision_attn.system.checks import check_range, require


class PixelColumns(Encoder):
    """Each column of grey pixels, from 0 to 1, is an annotation vector: strips (B, 3, Y, X) -> (B, X, Y). No weights.

    resolution: Y, the height of strips in pixels.
    """

    grid = (1, -1)
    """One row of as many columns as the strip has."""

    def __init__(self, *, resolution: int = 32) -> None:
        super().__init__()
        check_range("PixelColumns", 1, 1024, resolution=resolution)
        self.resolution = self.region_size = resolution

    def forward(self, images: UInt8[Tensor, "B 3 Y X"]) -> Float[Tensor, "B X Y"]:
        require("images", images, "B 3 Y X", "uint8", Y=self.resolution)
        return images.float().mean(dim=1).div(255).mT

    def frozen_part(self) -> None:
        """Return None: pixels need no cache."""

    def identity(self) -> dict[str, str | int]:
        return {"backbone": "pixels", "node": "columns", "resolution": self.resolution}

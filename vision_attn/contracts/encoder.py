"""The contract of an encoder: images to annotation vectors."""

from typing import Literal

from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.geometry.receptive_fields import Fields

Precision = Literal["fp32", "bf16"]
"""The precision in which a part computes: "bf16" is bfloat16 in any run, "fp32" is the precision of the run."""
Fit = Literal["centre", "whole"]
"""The part of a photograph that is resized to S x S pixels: its centre square, or the whole photograph with a changed
aspect ratio."""
STRIP = 8
"""The width divided by the height of the strips on which the receptive fields of an encoder of strips are measured."""


class Encoder(nn.Module):
    """uint8 images (B, 3, S, S) -> annotation vectors (B, L, D), regions row by row.

    Override `forward` and `identity`, and set `resolution`, `region_size` and `grid`.
    """

    resolution: int
    """S, the height and width of images in pixels."""
    region_size: int
    """D, the size of an annotation vector."""
    grid: tuple[int, int]
    """Rows and columns of regions; L is their product. (1, -1): one row of as many columns as an image has."""
    frames: int = 1
    """F, the number of frames of a film, uint8 (B, F, 3, S, S); `grid` is the grid of one frame. 1: it takes images."""
    pads: bool = False
    """Whether images have different numbers of regions. An image with fewer regions than others of its batch is padded
    with vectors of zeros (`layers/padding.py`)."""
    trainable: bool = False
    """Whether the encoder, or a part of it, is trained along with the captioner."""
    rate: float = 1.0
    """Factor on the learning rate of the encoder's weights."""
    fit: Fit = "centre"
    """The part of a photograph that it sees. Pictures show the same part, in its own aspect ratio."""
    precision: Precision = "fp32"
    """The precision in which it computes; see `Precision`."""
    convolutional: bool = False
    """Whether regions are the cells of a convolutional network, whose receptive fields `extent` must measure."""

    @property
    def layout(self) -> tuple[int, int, int]:
        """Frames, rows and columns of regions; L is their product."""
        return (self.frames, *self.grid)

    def frozen_part(self) -> "Encoder | None":
        """Return the part that training does not change, so that its outputs can be cached: the whole encoder, unless
        it is `trainable`. None if all of it is trained."""
        return None if self.trainable else self

    def finish(self, cached: Float[Tensor, "B _ _"]) -> Float[Tensor, "B L D"]:
        """Compute annotation vectors from outputs of `frozen_part()`."""
        return cached

    def extent(self, columns: int | None = None) -> Extent:
        """Return where the regions lie on the image. By default they cover it evenly.

        The receptive fields of a `convolutional` encoder are measured at the first call, and again when weights have
        changed (`geometry/receptive_fields.py`).

        columns: the number of columns of an image, where `grid` leaves it open.
        """
        if not self.convolutional:
            return WHOLE
        fields: Fields = self.__dict__.setdefault("_fields", Fields())
        rows, fixed = self.grid
        height, width = self.resolution, self.resolution * (1 if fixed > 0 else STRIP)
        device = next(self.parameters()).device

        def maps(images: UInt8[Tensor, "B 3 Y X"]) -> Float[Tensor, "B D rows columns"]:
            regions = self.forward(images.to(device)).mT
            return regions.reshape(*regions.shape[:2], rows, fixed)  # not compiled: the batch is another

        extent, (_, measured) = fields.of(None, self, maps, (height, width))
        if fixed > 0 or columns is None:
            return extent
        moved = (extent.x0 + extent.x1) / 2 * (measured / columns - 1)  # the offset is the same in pixels
        return extent._replace(x0=round(extent.x0 + moved, 4), x1=round(extent.x1 + moved, 4))

    def initialise(self) -> None:
        """Load pretrained weights. Called when a run starts from scratch, never when weights come from another run."""

    def identity(self) -> dict[str, str | int]:
        """Return the key of a cache of annotation vectors. Encoders with different outputs must return different
        keys."""
        raise NotImplementedError

    def forward(self, images: UInt8[Tensor, "B 3 S S"]) -> Float[Tensor, "B L D"]:
        raise NotImplementedError

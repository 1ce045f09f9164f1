"""Several encoders side by side, for ensembles of captioners."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.contracts import Encoder
from vision_attn.geometry.extents import Extent
from vision_attn.system.errors import UserError


class Concatenated(Encoder):
    """The annotation vectors of several encoders side by side: D is the sum of their sizes, and L the largest number of
    regions. Encoders with fewer regions are padded with zeros.

    Takes images of the largest resolution, which are reduced for encoders with a smaller one.
    """

    encoders: Any
    """An `nn.ModuleList` of encoders."""

    def __init__(self, encoders: Sequence[Encoder]):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.fit = encoders[0].fit
        if any(encoder.fit != self.fit for encoder in encoders):
            raise UserError("encoders of an ensemble must see the same part of a photograph: their `fit` differs")
        self.frames = encoders[0].frames
        if any(encoder.frames != self.frames for encoder in encoders):
            raise UserError("encoders of an ensemble must see the same frames: their `frames` differ")
        self.resolution = max(encoder.resolution for encoder in encoders)
        self.region_size = sum(encoder.region_size for encoder in encoders)
        self.grid = max((encoder.grid for encoder in encoders), key=prod)
        self.trainable = any(encoder.trainable for encoder in encoders)

    def extent(self, columns: int | None = None) -> Extent:
        """Return the mean extent of the encoders with this grid: maps are averaged region by region."""
        extents = [encoder.extent(columns) for encoder in self.encoders if encoder.grid == self.grid]
        return Extent(*(sum(edges) / len(edges) for edges in zip(*extents, strict=True)))

    def identity(self) -> dict[str, str | int]:
        identities = [encoder.identity() for encoder in self.encoders]
        return {f"{number}.{key}": value for number, own in enumerate(identities) for key, value in own.items()}

    def forward(self, images: UInt8[Tensor, "B 3 S S"]) -> Float[Tensor, "B L D"]:
        return self.joined([encoder(_reduced(images, encoder.resolution)) for encoder in self.encoders])

    def joined(self, regions: Sequence[Float[Tensor, "B _ _"]]) -> Float[Tensor, "B L D"]:
        """Join the annotation vectors of each encoder."""
        longest = prod(self.layout)
        return torch.cat([F.pad(vectors, (0, 0, 0, longest - vectors.shape[1])) for vectors in regions], dim=2)


def _reduced(images: UInt8[Tensor, "B 3 Y X"], resolution: int) -> UInt8[Tensor, "B 3 S S"]:
    """Reduce images by averaging pixels."""
    if images.shape[-1] == resolution:
        return images
    if images.dim() == 5:  # films
        return _reduced(images.flatten(0, 1), resolution).unflatten(0, images.shape[:2])
    size = (resolution, resolution)
    return F.interpolate(images.float(), size, mode="bicubic", antialias=True).round().clamp(0, 255).to(torch.uint8)

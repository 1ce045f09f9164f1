"""Compute glimpses on a CPU by loops that average the pixels of each patch, without a pyramid."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.attention.glimpse import Pyramid, Retina, Uncut, canvases, computed_averages
from vision_attn.attention.images import Images
from vision_attn.fast.versions import fast_version
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.checks import require


class Unprepared(NamedTuple):
    """Images for glimpses that fused loops average directly: see `cpu`."""

    averages: Tensor
    """The shape of `Pyramid.averages`, on the meta device."""
    images: Float[Tensor, "B C Y X"]


class FastRetina(Retina):
    """`Retina` by fused loops on a CPU; `torch.compile` sees the averages of a pyramid as one operator."""

    @torch.no_grad()
    def pyramid(self, images: Float[Tensor, "B C Y X"] | Images) -> Any:
        """Return a `Pyramid`, `Unprepared` or `Uncut`."""
        if isinstance(images, Images) or not fast_version("glimpse", images):
            return super().pyramid(images)
        require("images", images, "B C Y X", "float")
        return Unprepared(canvases(images.to("meta"), self.num_scales), at_least_float32(images))

    @torch.no_grad()
    def forward(
        self, pyramid: Pyramid | Unprepared | Uncut, locations: Float[Tensor, "B R 2"]
    ) -> Float[Tensor, "B R K C g g"]:
        if not isinstance(pyramid, Unprepared):
            return super().forward(pyramid, locations)
        images = pyramid.images
        require("locations", locations, "B R 2", "float", B=images.shape[0])
        Y, X = images.shape[-2:]
        corners = self._corners(locations.double(), torch.tensor([[X, Y]]))
        origins = torch.zeros(len(images), 2, dtype=torch.long)
        loops = fast_version("glimpse", images)
        assert loops is not None
        return loops.glimpses(images, corners, self.size, origins)

    def _averaged(self, crops: Tensor, corners: Float[Tensor, "B R K 2"], origins: Int[Tensor, "B R 2"]) -> Tensor:
        if not (loops := fast_version("glimpse", crops)):
            return super()._averaged(crops, corners, origins)
        return loops.glimpses(crops, corners.flatten(0, 1)[:, None], self.size, origins.flatten(0, 1))

    def _averages(self, images: Float[Tensor, "B C Y X"]) -> Float[Tensor, "K B C H W"]:
        return (computed_averages if torch.compiler.is_exporting() else _averages)(images, self.num_scales)


_averages = torch.library.custom_op("vision_attn::averages", computed_averages, mutates_args=())
"""Registered as a custom operator so that `torch.compile` does not recompute the averages for every consumer."""
_averages.register_fake(canvases)

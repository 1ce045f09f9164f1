"""VGG-16 and VGG-19 (Simonyan and Zisserman 2015): the annotation vectors of Show, Attend and Tell."""

from typing import Literal

from vision_attn.contracts import Fit
from vision_attn.encoders.backbone import Backbone
from vision_attn.layers.precision import Precision

_LAST_RELU = {16: "features.29", 19: "features.35"}
"""The node after the ReLU of conv5_3 or conv5_4, before the last max-pool, by the number of layers."""


class VGG(Backbone):
    """VGG-16 or VGG-19 as an encoder: (B, 3, 224, 224) -> (B, 196, 512), the map after the ReLU of the last
    convolution, before the last max-pool (a_i of Xu et al. 2015, section 3.1.1).

    layers: 16 or 19.
    resolution: height and width of images, in pixels; 224 gives 14 x 14 vectors.
    weights: "IMAGENET1K_V1" (downloaded by torchvision), a file, or None.
    trainable, precision, fit: as for `Backbone`.
    """

    def __init__(
        self,
        *,
        layers: Literal[16, 19] = 19,
        resolution: int = 224,
        weights: str | None = "IMAGENET1K_V1",
        trainable: bool = False,
        precision: Precision = "fp32",
        fit: Fit = "centre",
    ):
        super().__init__(
            name=f"vgg{layers}", node=_LAST_RELU[layers], resolution=resolution, weights=weights, trainable=trainable,
            precision=precision, fit=fit,
        )  # fmt: skip

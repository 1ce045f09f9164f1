"""Annotation vectors from vision transformers: their patch tokens, without the class token."""

from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vision_attn.contracts import Encoder, Fit
from vision_attn.encoders.backbone import HINT, IMAGENET_MEAN, IMAGENET_STD, Backbone, checksum, variants
from vision_attn.layers.precision import Precision, call_in
from vision_attn.system.checks import require
from vision_attn.system.errors import UserError


class Patches(Backbone):
    """A torchvision vision transformer (ViT) as an encoder: images (B, 3, S, S) -> patch tokens (B, (S / P)^2, D) after
    its last layer norm, for patches of P pixels. A ViT-B/16 at 224 pixels gives 196 annotation vectors of 768.

    name: vit_b_16, vit_b_32, vit_l_16, vit_l_32 or vit_h_14.
    resolution, weights, mean, std, trainable, precision, fit: as for `Backbone`; the weights must be of the same
        resolution.
    """

    convolutional = False
    """A token stands for its patch."""

    def __init__(
        self,
        *,
        name: str = "vit_b_16",
        resolution: int = 224,
        weights: str | None = "IMAGENET1K_V1",
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        trainable: bool = False,
        precision: Precision = "fp32",
        fit: Fit = "centre",
    ):
        super().__init__(
            name=name, node="encoder.ln", resolution=resolution, weights=weights, mean=mean, std=std,
            trainable=trainable, precision=precision, fit=fit,
        )  # fmt: skip

    @staticmethod
    def options(resolution: int) -> dict[str, Any]:
        return {"image_size": resolution}

    @staticmethod
    def layout_of(shape: torch.Size) -> tuple[int, tuple[int, int]] | None:
        """Return D and the grid of tokens (1, 1 + rows * columns, D)."""
        side = round((shape[1] - 1) ** 0.5) if len(shape) == 3 else 0
        return (shape[2], (side, side)) if side and side * side == shape[1] - 1 else None

    @staticmethod
    def regions_of(output: Float[Tensor, "B N D"]) -> Float[Tensor, "B L D"]:
        """Return the tokens after the class token, row by row."""
        return output[:, 1:]


class Timm(Encoder):
    """Any model of the `timm` library as an encoder, by name. Needs the extra `[hub]`.

    The annotation vectors are its patch tokens, without class and register tokens, or the last map of a convolutional
    network. `Backbone(name="timm:NAME")` cuts one at a node.

    The mean and standard deviation are those of the model.

    name: the model's name in timm.
    resolution: height and width of images, in pixels; None for the model's default.
    pretrained: whether to download the weights.
    trainable: whether all layers are trained.
    precision, fit: as for `Backbone`.
    """

    body: Any
    """A network of timm."""
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        *,
        name: str,
        resolution: int | None = None,
        pretrained: bool = True,
        trainable: bool = False,
        precision: Precision = "fp32",
        fit: Fit = "centre",
    ):
        super().__init__()
        self.name, self.pretrained, self.trainable = name, pretrained, trainable
        self.precision, self.fit = precision, fit
        self.body = self._create(name, resolution, pretrained=False)
        settings = self.body.pretrained_cfg
        self.resolution = resolution or settings["input_size"][-1]
        with torch.no_grad():
            self.region_size, self.grid, self.convolutional = self._layout(self.body.eval())
        self.body.requires_grad_(trainable)
        self.register_buffer("mean", torch.tensor(settings["mean"]).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(settings["std"]).view(3, 1, 1))

    @staticmethod
    def _create(name: str, resolution: int | None, *, pretrained: bool) -> Any:
        from vision_attn.encoders import networks  # imports torchvision, which encoders of other kinds do not need

        size = {"img_size": resolution} if resolution else {}
        return networks.timm_model(name, pretrained=pretrained, num_classes=0, **size)

    def _layout(self, body: Any) -> tuple[int, tuple[int, int], bool]:
        """Return D, the grid, and whether the network is convolutional."""
        output = body.forward_features(torch.zeros(1, 3, self.resolution, self.resolution))
        if output.dim() == 4:
            return output.shape[1], tuple(output.shape[2:]), True
        grid = tuple(body.patch_embed.grid_size)
        if output.shape[1] - body.num_prefix_tokens != grid[0] * grid[1]:
            raise UserError(f"timm's {self.name} gives {tuple(output.shape)}, not one token for each of {grid} patches")
        return output.shape[2], grid, False

    def initialise(self) -> None:
        if self.pretrained:
            self.body.load_state_dict(self._create(self.name, self.resolution, pretrained=True).state_dict())

    def identity(self) -> dict[str, str | int]:
        cut: dict[str, str | int] = {
            "backbone": f"timm:{self.name}",
            "node": "forward_features",
            "resolution": self.resolution,
        }
        return {**cut, "checksum": checksum(self), **variants(self)}

    def train(self, mode: bool = True) -> "Timm":
        return super().train(False)

    def forward(self, images: UInt8[Tensor, "B 3 S S"]) -> Float[Tensor, "B L D"]:
        require("images", images, "B 3 Y X", "uint8", Y=self.resolution, X=self.resolution, hint=HINT)
        images = (images.float() / 255 - self.mean) / self.std
        output = call_in(self.precision, self.body.forward_features, images)
        return output.flatten(2).mT if output.dim() == 4 else output[:, self.body.num_prefix_tokens :]

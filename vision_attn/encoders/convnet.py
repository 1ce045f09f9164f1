"""A small convolutional encoder, trained along with the captioner: images -> annotation vectors.

Four 3x3 convolutions, the first two of stride 2, map 56x56 pixels to 14x14 regions a_i. The receptive field of a region
is 23x23 pixels: large enough for a whole object of a drawn scene (12 to 20 pixels), so that a region can distinguish a
star from a cross, and hardly larger, so that a region contains nothing of other objects. To name an object, the decoder
has to attend to it.

Uses group normalisation, not batch normalisation: the regions of an image do not depend on the other images of the
batch, and two processes that split a batch compute the same as one.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vision_attn.contracts import Encoder
from vision_attn.encoders.backbone import checksum, load_state, read_state
from vision_attn.system.checks import check_range, require
from vision_attn.system.errors import UserError
from vision_attn.system.files import find_best, shipped


def waves(length: int, size: int) -> Float[Tensor, "N D"]:
    """Return initial embeddings of `length` positions: each of the `size` features is a sine of random phase, of at
    most one period, whose root mean square is about 0.3."""
    position = torch.tensor([(place + 0.5) / length for place in range(length)])
    phase = position[:, None] * torch.rand(size) + torch.rand(size)
    return 0.3 * 2**0.5 * torch.sin(2 * torch.pi * phase)


class ConvNet(Encoder):
    """Four convolutions: uint8 images (B, 3, S, S) -> regions (B, L, D), row by row; L = (S / 4)^2.

    Adds learned embeddings of the row and the column to each region, because words such as "left" and "above" compare
    positions, which a convolution does not know. They start as sines of low frequency, so that the embeddings of
    neighbours are similar.

    resolution: S, the height and width of images in pixels, a multiple of 4.
    region_size: D, the size of an annotation vector, a multiple of 8.
    width: channels of the second and third convolution, a multiple of 16; the first has half as many.
    weights: the folder of a run, or of packed weights such as `weights/drawn_scenes`, whose encoder gives the initial
        weights. None: random weights.
    trainable: whether it is trained along with the captioner.
    """

    convolutional = True
    field = 23
    """Height and width of the receptive field of a region, in pixels."""

    def __init__(
        self,
        *,
        resolution: int = 56,
        region_size: int = 128,
        width: int = 48,
        weights: str | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        if resolution < 4 or resolution % 4:
            raise UserError(f"ConvNet: resolution={resolution} must be a multiple of 4 pixels")
        if region_size % 8 or width % 16 or min(region_size, width) < 1:
            raise UserError(f"ConvNet: region_size={region_size} must be a multiple of 8, width={width} of 16")
        check_range("ConvNet", 4, 4096, resolution=resolution)
        self.resolution, self.region_size, self.weights, self.trainable = resolution, region_size, weights, trainable
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
        self.rows = nn.Parameter(waves(self.grid[0], region_size)[:, None])
        self.columns = nn.Parameter(waves(self.grid[1], region_size)[None])
        self.requires_grad_(trainable)

    def initialise(self) -> None:
        """Load `weights`. Raises UserError if the folder has none, or if they belong to another network."""
        if self.weights is not None:
            state, prefix = read_state(find_best(shipped(self.weights)) / "model.safetensors"), "encoder."
            state = {name.removeprefix(prefix): weight for name, weight in state.items() if name.startswith(prefix)}
            load_state(self, state, f"the weights of the encoder in {self.weights}")

    def forward(self, images: UInt8[Tensor, "B 3 Y X"]) -> Float[Tensor, "B L D"]:
        """Encode images. Raises UserError for images of another size than `resolution`."""
        require("images", images, "B 3 Y X", "uint8", Y=self.resolution, X=self.resolution)
        pixels = images.to(self.rows.dtype).contiguous(memory_format=torch.channels_last) / 64 - 1
        regions = self.layers(pixels).permute(0, 2, 3, 1)
        return (regions + self.rows + self.columns).flatten(1, 2)

    def identity(self) -> dict[str, str | int]:
        return {"backbone": "convnet", "node": "regions", "resolution": self.resolution, "checksum": checksum(self)}

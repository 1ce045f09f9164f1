"""Small convolutional networks for models that read an image in parts: `Context` sees the whole image at low resolution
(Ba et al., ICLR 2015, section 3.1), `PatchFeatures` the patches of a glimpse."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.attention.images import Images, overview
from vision_attn.layers.linear import Rectified
from vision_attn.system.checks import check_range


class Context(nn.Sequential):
    """Two 3x3 convolutions, the second of stride 2, over the image downsampled to `side` x `side` pixels.

    It reads only some of the pixels of large images (`Images.overview`). Its attribute `size` is the number of features
    of an image, `pixels` the number of pixels that it reads.

    side: height and width of the downsampled image, in pixels.
    filters: the numbers of filters of both convolutions.
    normalise: whether to divide each downsampled image by its largest intensity. This helps with small objects on a
        large canvas: averaged with the black around it, a digit of 28 pixels has an intensity of a hundredth, from
        which nothing is learned.

    Differs from the paper: it averages pixels, where the paper subsamples them. `Images` averages at most 16 x 16
    pixels for each pixel of the context.
    """

    def __init__(self, channels: int, *, side: int = 12, filters: tuple[int, int] = (16, 32), normalise: bool = False):
        check_range("Context", 1, 1000, side=side)
        super().__init__(*_convolutions(channels, filters))
        self.normalise = normalise
        self.side, self.size, self.pixels = side, filters[1] * ((side + 1) // 2) ** 2, channels * side**2

    def forward(self, images: Float[Tensor, "B C Y X"] | Images) -> Float[Tensor, "B N"]:
        small = overview(images, self.side)
        if self.normalise:
            small = small / small.amax(dim=(1, 2, 3), keepdim=True).clamp(min=torch.finfo(small.dtype).eps)
        return super().forward(small).flatten(1)


class PatchFeatures(nn.Module):
    """Two 3x3 convolutions, the second of stride 2, and a linear layer with a ReLU: `size` features of each patch.

    channels: K C, since all scales of a glimpse are channels of its patch.
    """

    def __init__(self, channels: int, side: int, *, size: int = 256, filters: tuple[int, int] = (32, 32)):
        super().__init__()
        self.convolutions = nn.Sequential(*_convolutions(channels, filters)).to(memory_format=torch.channels_last)
        self.size = size
        self.linear = Rectified(filters[1] * ((side + 1) // 2) ** 2, size)

    def forward(self, patches: Float[Tensor, "*rows K C g g"]) -> Float[Tensor, "*rows N"]:
        rows = patches.shape[:-4]
        images = patches.flatten(-4, -3).flatten(0, -4).contiguous(memory_format=torch.channels_last)
        features = self.convolutions(images).permute(0, 2, 3, 1).flatten(1)
        return self.linear(features.unflatten(0, rows))


def _convolutions(channels: int, filters: tuple[int, int]) -> list[nn.Module]:
    first, second = filters
    return [
        nn.Conv2d(channels, first, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(first, second, 3, stride=2, padding=1),
        nn.ReLU(),
    ]

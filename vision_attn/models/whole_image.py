"""Classifiers that see the whole image at once: the baselines in RAM's tables (Mnih et al. 2014)."""

from math import prod

from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.contracts import Classifier, ClassifierOutput, one_size
from vision_attn.layers.likelihood import class_log_prob
from vision_attn.layers.linear import Linear
from vision_attn.system.checks import check_range, require
from vision_attn.system.errors import UserError


class Whole(Classifier):
    """Classifies the whole image with `layers`. Deterministic: Monte Carlo copies of an image would be identical, so
    there is always one row."""

    def __init__(self, image_shape: tuple[int, int, int], layers: nn.Sequential):
        super().__init__()
        self.image_shape, self.pixels = image_shape, prod(image_shape)
        self.layers = layers

    def forward(self, images: Float[Tensor, "B C Y X"], rows: int = 1, mode: str = "sample") -> ClassifierOutput:
        C, Y, X = self.image_shape
        require("images", images, "B C Y X", "float", C=C, Y=Y, X=X)
        return ClassifierOutput(class_log_prob(self.layers(images))[:, None, None], None, None)


class FullyConnected(Whole):
    """Two fully connected layers of 256 rectified units (Mnih et al. 2014, tables 1 and 2)."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, *, hidden_size: int = 256):
        layers = [nn.Flatten(), Linear(prod(one_size("FullyConnected", image_shape)), hidden_size), nn.ReLU()]
        layers += [Linear(hidden_size, hidden_size), nn.ReLU(), Linear(hidden_size, num_classes)]
        super().__init__(image_shape, nn.Sequential(*layers))


class Convolutional(Whole):
    """8 convolutional filters of 10x10 pixels with stride 5, then 256 rectified units (Mnih et al. 2014, tables 1 and
    2).

    filters: the number of filters.
    size, stride: the size and stride of filters, in pixels.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        filters: int = 8,
        size: int = 10,
        stride: int = 5,
        hidden_size: int = 256,
    ):
        check_range("Convolutional", 1, 10_000, filters=filters, size=size, stride=stride)
        channels, *sides = one_size("Convolutional", image_shape)
        if min(sides) < size:
            raise UserError(f"Convolutional: filters of {size} pixels do not fit into images of {tuple(sides)}")
        positions = prod((side - size) // stride + 1 for side in sides)
        layers = [nn.Conv2d(channels, filters, size, stride), nn.ReLU(), nn.Flatten()]
        layers += [Linear(filters * positions, hidden_size), nn.ReLU(), Linear(hidden_size, num_classes)]
        super().__init__(image_shape, nn.Sequential(*layers))

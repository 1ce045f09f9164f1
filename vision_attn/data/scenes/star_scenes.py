"""`Targets`, a data set of drawn scenes for classifiers: the label is the colour of the only star among three objects.

A classifier has to find the star before it can answer, so maps that explain its answer can be checked against the box
of the star.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.data.generated_images import GeneratedImages
from vision_attn.data.random_streams import stream, uniform
from vision_attn.data.scenes.canvas import Arrangement, arrange, draw
from vision_attn.data.scenes.grammar import COLOURS, MAX_OBJECTS, SHAPES
from vision_attn.system.checks import check_range

TARGET = "star"


class TargetBatch(NamedTuple):
    """Scenes, each with the colour and the box of its star."""

    images: Float[Tensor, "B 3 Y X"]
    """RGB from 0 to 1."""
    labels: Int[Tensor, "B"]
    """The index of the star's colour in `Targets.class_names`."""
    boxes: Float[Tensor, "B 4"]
    """(x0, y0, x1, y1) in [-1, 1] of the star."""


class Targets(GeneratedImages):
    """Scenes of three objects of different colours and shapes, one of them a star; the label is the star's colour.

    size: height and width of the images in pixels; objects have sides of 12 to 16 pixels in images of 56.
    batch_size, epoch_images, val_images, test_images: as for `GeneratedImages`.

    Raises UserError for sizes and numbers that no scene can be drawn with.
    """

    class_names = tuple(COLOURS)
    num_classes = len(COLOURS)

    def __init__(
        self,
        *,
        size: int = 56,
        batch_size: int = 64,
        epoch_images: int = 12800,
        val_images: int = 500,
        test_images: int = 1000,
    ) -> None:
        super().__init__(
            batch_size=batch_size, epoch_images=epoch_images, val_images=val_images, test_images=test_images
        )
        check_range("Targets", 40, 512, size=size)
        self.check_pixels(size**2)
        self.size, self.image_shape = size, (3, size, size)

    def sample(self, name: str, numbers: tuple[int, ...], num_images: int) -> Arrangement:
        """Sample scenes. Objects are independent of the splits of `Scenes`, and the first one is a star."""
        bits = stream(*numbers)
        scenes = arrange(bits, num_images, "train", (0.0, 0.0, 1.0), self.size)
        star = SHAPES.index(TARGET)
        others = np.delete(np.arange(len(SHAPES)), star)
        shapes = others[uniform(bits, num_images, len(others)).argsort(1)[:, :MAX_OBJECTS]]
        shapes[:, 0] = star
        colours = uniform(bits, num_images, len(COLOURS)).argsort(1)[:, :MAX_OBJECTS]
        return scenes._replace(objects=colours * len(SHAPES) + shapes)

    def batch(self, name: str, scenes: Arrangement, ids: Sequence[int]) -> TargetBatch:
        corner, side = scenes.corner[:, 0], scenes.side[:, :1]
        edges = np.concatenate([corner, corner + side], axis=1) * (2 / self.size) - 1
        return TargetBatch(
            images=torch.from_numpy(draw(scenes, self.size)).float() / 255,
            labels=torch.from_numpy(scenes.objects[:, 0] // len(SHAPES)),
            boxes=torch.from_numpy(edges).float(),
        )

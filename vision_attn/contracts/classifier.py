"""The contract of a classifier: images to log-probabilities of classes, after each glimpse."""

from typing import Any, Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.contracts.drawing import Window
from vision_attn.contracts.samples import Choice
from vision_attn.system.errors import UserError

LocationMode = Literal["sample", "mean"]
"""How locations are chosen: sampled from the policy, or its means."""


class ClassifierOutput(NamedTuple):
    """The output of a classifier after each of its T glimpses; T = 1 if it sees the whole image at once."""

    log_prob: Float[Tensor, "B R T N"]
    """log p of each of N classes after each glimpse, in nats."""
    locations: Float[Tensor, "B R T 2"] | None
    """Where each glimpse was, (x, y) in [-1, 1]; None where the whole image is seen."""
    choice: Choice | None = None
    """The sampled locations: those of the last T - 1 glimpses, or of all T where the first was sampled too."""
    windows: Window | None = None
    """The windows of a filterbank, whose dimension R holds the T time steps, so that `read(images, windows)` returns
    all reads."""


class Glimpses(NamedTuple):
    """The patches that a retina extracted, for pictures."""

    patches: Float[Tensor, "B T K C g g"]


class Reads(NamedTuple):
    """The patches that a filterbank read, and where, for pictures."""

    patches: Float[Tensor, "B T C N N"]
    """The patches at intensity 1."""
    boxes: Float[Tensor, "B T 4"]
    """(x0, y0, x1, y1) in [-1, 1]."""
    sigma: Float[Tensor, "B T"]
    """The standard deviation of the filters, in pixels."""


class Classifier(nn.Module):
    """Images (B, C, Y, X) -> log-probabilities of classes. Override `forward` and set `pixels`.

    Constructed with the shape (C, Y, X) of an image and the number of classes. Y and X are 0 if images differ in size.
    """

    any_size: bool = False
    """Whether it takes images of any size, also `Images`. Others take only images of the shape with which they were
    constructed."""
    pixels: int
    """The number of pixels that one row reads from an image for one answer."""
    stochastic: bool = False
    """Whether the locations of glimpses can be sampled, so that an answer may differ from the one at the mean
    locations."""
    reinforced: bool = False
    """Whether its samples need a score-function estimator."""
    place_numbers: int = 0
    """The number of coordinates of a given glimpse: 2 for a location, 4 for a box; 0 if glimpses cannot be given."""
    state_size: int = 0
    """The size of the state that samples are computed from; needed where `reinforced`."""

    def forward(
        self,
        images: Float[Tensor, "B C Y X"],
        rows: int = 1,
        mode: LocationMode = "sample",
        given: Float[Tensor, "B T P"] | None = None,
    ) -> ClassifierOutput:
        """Classify `rows` Monte Carlo copies of each image. A deterministic model ignores `rows` and returns one row.

        mode: "sample" samples the locations of glimpses, "mean" takes the means of their distributions.
        given: where to take glimpses, P = `place_numbers`; NaN leaves a glimpse to the model. Not for training. Models
            whose `place_numbers` is 0 need not take it.
        """
        raise NotImplementedError

    def view(self, images: Any, glance: ClassifierOutput) -> Glimpses | Reads | None:
        """Return the patches that the first row of each image saw, for pictures; None where it saw the whole image.

        images: as for `forward`; `Images` for a model that takes images of all sizes.
        glance: the output of `forward` for these images.
        """
        return None

    def restart(self) -> None:
        """Restart the schedules of this model. Called when a run starts from the weights of another run."""


def one_size(model: str, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return `image_shape`. Raises UserError if images differ in size.

    model: the name of the model, for the message.
    """
    if 0 in image_shape:
        raise UserError(
            f"{model} takes images of one size, and those of this data set differ in size: set data.side and "
            "data.square=true, or use a model of glimpses such as vision_attn.models.ram.RAM"
        )
    return image_shape

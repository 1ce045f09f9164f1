"""Contracts of models, criteria and evaluators, and the NamedTuples of tensors that they return.

A new model derives from one of these classes and overrides what its docstring names. Tasks and decoding use nothing
else of it. `tests/test_contracts.py` builds the smallest class that fulfils each contract and takes it through
training, decoding, evaluation and pictures.

Shapes use one legend everywhere: B images, R rows (an image's captions or beams), L regions, D annotation size,
H hidden, A attention size, T time steps, K scales or heads, V words, C channels, Y X image.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.fields import Fields
from vision_attn.attention.filterbank import Window
from vision_attn.attention.places import WHOLE, Extent
from vision_attn.attention.reinforce import Choice
from vision_attn.attention.soft import looking_at_test
from vision_attn.layers.nested import Nested
from vision_attn.layers.precision import Precision
from vision_attn.task import Source

PAD, END = 0, 1
"""Word ids. PAD starts a caption and fills it up, and is never produced; END ends a caption."""
STRIP = 8
"""Width over height of the strips on which an encoder of strips is measured."""


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
    pads: bool = False
    """Whether images have different numbers of regions: vectors of zeros follow those of an image that has fewer than
    others of its batch (`layers/padding.py`)."""
    trainable: bool = False
    """Whether the encoder, or a part of it, is trained along with the captioner."""
    rate: float = 1.0
    """Factor on the learning rate of the encoder's weights."""
    precision: Precision = "fp32"
    """With "bf16" it computes in bfloat16, whatever the precision of the run."""
    convolutional: bool = False
    """Whether regions are the cells of a convolutional network, so that `extent` must measure where they look."""

    @property
    def layout(self) -> tuple[int, int, int]:
        """Frames, rows and columns of regions. An image has one frame."""
        return (1, *self.grid)

    def frozen_part(self) -> "Encoder | None":
        """The part whose outputs are cached, because training does not change them: all of it, unless it is
        `trainable`. None if all of it is trained."""
        return None if self.trainable else self

    def finish(self, cached: Float[Tensor, "B _ _"]) -> Float[Tensor, "B L D"]:
        """Annotation vectors from outputs of `frozen_part()`."""
        return cached

    def extent(self, columns: int | None = None) -> Extent:
        """Where the regions lie on the image: by default they cover it evenly.

        What the cells of a `convolutional` encoder see is measured at the first call, and again when weights have
        changed (`vision_attn.attention.fields`). `columns`: of an image, where `grid` leaves their number open.
        """
        if not self.convolutional:
            return WHOLE
        fields = self.__dict__.setdefault("_fields", Fields())
        rows, fixed = self.grid
        height, width = self.resolution, self.resolution * (1 if fixed > 0 else STRIP)
        device = next(self.parameters()).device

        def maps(images: UInt8[Tensor, "B 3 Y X"]) -> Float[Tensor, "B D rows columns"]:
            return self.forward(images.to(device)).mT.unflatten(2, (rows, fixed))  # not compiled: the batch is another

        found, (_, measured) = fields.of(None, self, maps, (height, width))
        if fixed > 0 or columns is None:
            return found
        moved = (found.x0 + found.x1) / 2 * (measured / columns - 1)  # the offset is the same in pixels
        return found._replace(x0=round(found.x0 + moved, 4), x1=round(found.x1 + moved, 4))

    def initialise(self) -> None:
        """Load pretrained weights. Called when a run starts from scratch, never when weights come from another run."""

    def identity(self) -> dict[str, str | int]:
        """The key of a cache of annotation vectors: encoders with different outputs must return different values."""
        raise NotImplementedError

    def forward(self, images: UInt8[Tensor, "B 3 S S"]) -> Float[Tensor, "B L D"]:
        raise NotImplementedError


class AttentionMap(NamedTuple):
    """Where a captioner looked for one word of each row."""

    alpha: Float[Tensor, "B R L"]
    """The weight of each region."""
    region: Int[Tensor, "B R"] | None = None
    """The one region that was seen; None where all regions were seen."""
    heads: Float[Tensor, "B R K L"] | None = None
    """The weights of each of K attention heads; `alpha` is their mean."""


class Caption(NamedTuple):
    """The output of a captioner for given words (teacher forcing). Positions past a caption's end hold zeros."""

    log_prob: Float[Tensor, "B R T"]
    """log p(y_t | y_1..t-1, image), in nats."""
    alpha: Float[Tensor, "B R T L"] | None = None
    """The weight of each region at each word; None where the model has no such map."""
    region: Int[Tensor, "B R T"] | None = None
    """The one region seen at each word; None where all regions were seen."""
    choice: Choice | None = None
    """The samples whose gradient must be estimated; None where there are none."""
    real: Bool[Tensor, "B L"] | None = None
    """Which regions are not padding; None: all."""


class Captioner(nn.Module):
    """Annotation vectors -> captions, word by word.

    Override `start`, `step` and `forward`. Words are ids: 0 pads and starts a caption, 1 ends it. An image has R rows:
    its R captions in training, its beams in decoding. `step` and `forward` agree to rounding.
    """

    reinforced: bool = False
    """Whether it samples where to look and needs a score-function estimator (`criteria/reinforce_attention.py`)."""
    state_size: int = 0
    """The size of the state that samples are computed from; needed where `reinforced`."""
    num_glimpses: int = 0
    """Glimpses that are taken for each word; 0 for a model that sees all regions."""
    ways: tuple[str, ...] = ()
    """The modes of attention at test time, where there are several: names for `looking`. Other code relies on three
    names: self-critical training uses "expectation", pictures "mode", and the variance of REINFORCE "sample"."""
    max_length: int | None = None
    """The largest number of words in a caption, END included; None: unlimited."""

    @property
    def way(self) -> str | None:
        """The one of `ways` that is in use; None where there is only one way."""
        return None

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[Nested, Nested]:
        """Return the memory of each image, and the state of `rows` rows per image before the first word.

        Both are tensors or nested tuples of tensors: (B, ...) in the memory and (B, R, ...) in the state. Decoding
        selects images of both and rows of the state, and uses them in no other way.
        """
        raise NotImplementedError

    def step(
        self, word: Int[Tensor, "B R"], state: Nested, memory: Nested
    ) -> tuple[Float[Tensor, "B R V"], Nested, AttentionMap | None]:
        """Return logits of the word after `word`, the new state, and where the model looked (None without a map).

        On a GPU its work is recorded and replayed for each word (`decode/replay.py`). So it remembers nothing outside
        the state, and reads no numbers from the device; the state keeps its shapes, or decoding is slower.
        """
        raise NotImplementedError

    def frames(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"] | None:
        """log p of each word at each region, where word 0 is the blank of CTC; None for a model that produces words one
        after the other. A model with frames is decoded by `decode/ctc.py`."""
        return None

    def glimpses(
        self, regions: Float[Tensor, "B L D"], num_words: int
    ) -> tuple[Float[Tensor, "B T 2"], "Glimpses"] | None:
        """Return the locations of the T glimpses for `num_words` words, (x, y) in [-1, 1], and what they see.

        None for a model that takes none.
        """
        return None

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"], runs: int = 1) -> Caption:
        """Run on given words (teacher forcing). Where `reinforced`, each caption is run `runs` times with independent
        samples: R * runs rows, the runs of a caption next to each other. Other models are called without `runs`."""
        raise NotImplementedError

    def leave_out_padding(self) -> None:
        """Take annotation vectors of zeros for padding from now on, and neither look at them nor average over them.
        Called where the encoder pads (`Encoder.pads`). Raises ValueError for a captioner that cannot."""
        raise ValueError(
            f"{type(self).__name__} cannot leave out padding, so it needs the same number of annotation vectors of all "
            "images: --task.encoder.grid=[1,36] for 36; or take ShowAttendTell, ShowAndTell or Transformer"
        )

    def looking(self, way: str) -> AbstractContextManager[None]:
        """Context manager: use one of `ways` at test time. The default is for models that keep it in `at_test`."""
        return looking_at_test(self, way)

    def restart(self) -> None:
        """Restart the schedules of this model. Called when a run starts from the weights of another run."""

    @torch.no_grad()
    def sharpen(self, temperature: float) -> None:
        """Divide the logits of all words by `temperature`, once, by scaling weights. The default is for models whose
        logits are those of a linear layer `output`. Raises ValueError for other models."""
        layer = getattr(self, "output", None)
        if not isinstance(layer, nn.Linear):
            raise ValueError(f"{type(self).__name__} has no layer of logits that a temperature could scale")
        for weight in layer.parameters():
            weight.div_(temperature)


class Criterion(nn.Module):
    """One term of the loss of a captioner. Constructed with the captioner.

    Override `forward`; a criterion that samples captions overrides `explore` instead, or its two halves, `sample` and
    `learn`.
    """

    num_runs: int = 1
    """How often each caption must be run, with independent samples."""
    samples: bool = False
    """Whether it samples captions from the captioner: `explore` is called in place of `forward`."""

    @property
    def uncapturable(self) -> str:
        """Why its steps cannot be captured in CUDA graphs (see `Task.uncapturable`)."""
        whole = self.samples and type(self).sample is Criterion.sample
        return "it samples captions in `explore`, without `sample` and `learn`" if whole else ""

    estimates: bool = False
    """Whether it estimates the gradient for what a captioner samples while it looks (`Captioner.reinforced`)."""
    highest_rate: float | None = None
    """The learning rate of AdamW above which it is known to harm a trained captioner; None: there is no such rate."""

    def prepare(self, source: Source) -> None:
        """Take what the loss needs from the training data. Called before training starts or is resumed."""

    def restart(self, model: Captioner) -> None:
        """Change the captioner for this loss. Called when a run starts from the weights of another run that did not
        have this criterion."""

    def forward(self, caption: Caption, words: Int[Tensor, "B R T"]) -> dict[str, Tensor]:
        """Return named scalars. "loss", a mean over captions, is added to the task's loss; the others are logged."""
        raise NotImplementedError

    def explore(
        self, model: Captioner, regions: Float[Tensor, "B L D"], references: Sequence[Sequence[str]]
    ) -> dict[str, Tensor]:
        """Sample captions of images with these references, and return named scalars as `forward` does."""
        return self.learn(model, regions, self.sample(model, regions, references))

    def sample(
        self, model: Captioner, regions: Float[Tensor, "B L D"], references: Sequence[Sequence[str]]
    ) -> tuple[Tensor, ...]:
        """The first half of `explore`: sample captions without a gradient. Returns what `learn` needs of them."""
        raise NotImplementedError

    def learn(
        self, model: Captioner, regions: Float[Tensor, "B L D"], sampled: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        """The second half of `explore`, which a CUDA graph can capture: the scalars of what `sample` returned."""
        raise NotImplementedError

    def measure(self, model: Captioner, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"]) -> dict[str, Any]:
        """Return further scalars of a full evaluation, at given words."""
        return {}


class DecodedCaption(NamedTuple):
    """A decoded caption, word by word, and where the model looked for each word."""

    text: str
    words: list[str]
    log_prob: list[float]
    """Of each word, in nats."""
    alpha: Float[Tensor, "T Y X"] | None = None
    """The weight of each region; None where the model has no map."""
    region: Int[Tensor, "T"] | None = None
    """The one region that each word saw; None where it saw all."""
    heads: Float[Tensor, "T K Y X"] | None = None
    """The weights of each attention head."""
    score: float | None = None
    """What captions are ordered by: log p of all words and the end, divided by their number to the power
    `length_power`. None if nothing was decoded."""
    cut: bool = False
    """Whether it was cut at `max_words`, before its end."""
    extent: Extent = WHOLE
    """Where the regions of the maps lie on the image."""

    @property
    def seen(self) -> Float[Tensor, "T L"] | None:
        """How much each word saw of each region: its weight, or, if only one was seen, 1 for it and 0 elsewhere."""
        if self.alpha is None:
            return None
        alpha = self.alpha.flatten(1)
        return alpha if self.region is None else F.one_hot(self.region, alpha.shape[1]).to(alpha.dtype)


class Results(NamedTuple):
    """The output of a captioning task for one batch of an evaluation."""

    caption: Caption
    """Of the references, with teacher forcing."""
    described: list[DecodedCaption]
    """The best decoded caption of each image."""
    by_way: dict[str, list[DecodedCaption]]
    """The same for each way to look at test time, if the model has several and the evaluation is a full one."""
    content_words: frozenset[str]
    """Words that name objects, if the source knows them."""


class Evaluator:
    """One group of metrics, collected batch by batch. Constructed for each evaluation."""

    notes: Sequence[str] = ()
    """Remarks for the user, printed after `compute`."""

    def update(self, batch: Any, results: Any) -> None:
        """Add one batch of the source, without its images, and the output of the task for it (`Results` of a captioning
        task)."""
        raise NotImplementedError

    def compute(self) -> dict[str, float]:
        """Return the metrics of all batches so far, with names of their own; NaN for a metric that failed."""
        raise NotImplementedError

    def write(self, folder: Path) -> None:
        """Write the inputs of the metrics into `folder`. Called in a full evaluation, after `compute`."""


class ClassifierOutput(NamedTuple):
    """The output of a classifier after each of its T glimpses; T = 1 if it sees the whole image at once."""

    log_prob: Float[Tensor, "B R T N"]
    """log p of each of N classes after each glimpse, in nats."""
    locations: Float[Tensor, "B R T 2"] | None
    """Where each glimpse was, (x, y) in [-1, 1]; None where the whole image is seen."""
    choice: Choice | None = None
    """The samples that placed the last glimpses: T - 1 of them, or T where the first was sampled too."""
    windows: Window | None = None
    """The windows of a filterbank, with T in place of a window's rows, so that `read(images, windows)` gives all T
    reads."""


class Glimpses(NamedTuple):
    """What a retina saw: for pictures."""

    patches: Float[Tensor, "B T K C g g"]


class Reads(NamedTuple):
    """What a filterbank read: for pictures."""

    patches: Float[Tensor, "B T C N N"]
    """At intensity 1."""
    boxes: Float[Tensor, "B T 4"]
    """(x0, y0, x1, y1) in [-1, 1]."""
    sigma: Float[Tensor, "B T"]
    """In pixels."""


class Classifier(nn.Module):
    """Images (B, C, Y, X) -> log-probabilities of classes. Override `forward` and set `pixels`.

    Constructed with the shape (C, Y, X) of an image, in which Y and X are 0 if images differ in size, and the number of
    classes.
    """

    any_size: bool = False
    """Whether it takes images of all sizes, also `Images`; others take those of the shape they are constructed with."""
    pixels: int
    """Pixels that one row reads from an image for one answer."""
    stochastic: bool = False
    """Whether glimpses can be sampled, so that sampled answers differ from those of mean locations."""
    reinforced: bool = False
    """Whether its samples need a score-function estimator."""
    state_size: int = 0
    """The size of the state that samples are computed from; needed where `reinforced`."""

    def forward(self, images: Float[Tensor, "B C Y X"], rows: int = 1, way: str = "sample") -> ClassifierOutput:
        """`rows` Monte Carlo copies of each image. `way`: "sample" samples locations, "mean" takes their means.
        A deterministic model ignores `rows` and returns one row."""
        raise NotImplementedError

    def view(self, images: Float[Tensor, "B C Y X"], glance: ClassifierOutput) -> Glimpses | Reads | None:
        """What the first row of each image saw, for pictures; None where it saw the whole image."""
        return None

    def restart(self) -> None:
        """Restart the schedules of this model. Called when a run starts from the weights of another run."""


def one_size(model: str, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the shape of all images. Raises ValueError, which names the `model`, if images differ in size."""
    if 0 in image_shape:
        raise ValueError(
            f"{model} takes images of one size, and those of this data set differ in size: set data.side and "
            "data.square=true, or use a model of glimpses such as vision_attn.models.ram.RAM"
        )
    return image_shape


class DrawOutput(NamedTuple):
    """Images drawn in T time steps: reconstructions with their cost, or new images without."""

    canvases: tuple[Float[Tensor, "B C Y X"], ...]
    """c_t after each time step: the logit of each pixel being 1."""
    writes: tuple[Window | None, ...]
    """Where each time step wrote; None without attention."""
    reads: tuple[Window | None, ...] = ()
    """Where each time step read; None without attention; empty for new images."""
    log_prob: Float[Tensor, "B"] | None = None
    """log p(x | c_T) in nats."""
    kl: Float[Tensor, "B T"] | None = None
    """KL(q(z_t | x, z_1..t-1) || p(z_t)) in nats."""
    log_ratio: Float[Tensor, "B T"] | None = None
    """log p(z_t) - log q(z_t | x, z_1..t-1) of the sampled z, in nats, without gradient."""

"""The contract of a captioner: annotation vectors to captions, word by word."""

from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vision_attn.contracts.classifier import Glimpses
from vision_attn.contracts.modes import in_mode
from vision_attn.contracts.nested import Nested
from vision_attn.contracts.samples import Choice
from vision_attn.system.errors import UserError

PAD, END = 0, 1
"""Word ids. PAD starts a caption and fills it up, and is never produced; END ends a caption."""


class AttentionMap(NamedTuple):
    """Where a captioner looked for one word of each row."""

    alpha: Float[Tensor, "B R L"]
    """The weight of each region."""
    region: Int[Tensor, "B R"] | None = None
    """The one region that was seen; None where all regions were seen."""
    heads: Float[Tensor, "B R K L"] | None = None
    """The weights of each of K attention heads; `alpha` is their mean."""


class Forced(NamedTuple):
    """The map that a captioner must use for one word of each row, in place of its own. See `Captioner.steer`."""

    alpha: Float[Tensor, "B *K R L"]
    """The weight of each region; sums to 1. K is the number of attention heads, or 1 if all heads share a map."""
    strength: Float[Tensor, "B *K R"]
    """From 0, which keeps the captioner's own map, to 1, which uses `alpha` alone."""

    def mixed(self, own: Float[Tensor, "*maps L"]) -> Float[Tensor, "*maps L"]:
        """Return the mean of the captioner's map `own` and `alpha`, weighted by `strength`: exactly `own` at 0, exactly
        `alpha` at 1."""
        strength = self.strength[..., None]
        return strength * self.alpha + (1 - strength) * own

    def heads(self, first: int, number: int) -> "Forced":
        """Return the maps of `number` heads, from head `first` on. If K is 1, all heads share one map."""
        if self.alpha.shape[1] == 1:
            return self
        return Forced(*(values[:, first : first + number] for values in self))


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
    mean_log_prob: Float[Tensor, "B R T"] | None = None
    """The mean of log p over all words of the vocabulary, in nats; None unless `Captioner.with_mean`."""


class WordGlimpses(NamedTuple):
    """The glimpses for several words, one after the other."""

    locations: Float[Tensor, "B T 2"]
    """(x, y) in [-1, 1]."""
    view: Glimpses
    """The patches that the glimpses see."""
    log_prob: Float[Tensor, "B T V"]
    """log p of each word after each glimpse, in nats, as if the word were predicted then."""


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
    """The number of glimpses for each word; 0 for a model that sees all regions."""
    modes: tuple[str, ...] = ()
    """The modes of attention at test time, where there are several: names for `in_mode`. Other code relies on three
    names: self-critical training uses "expectation", pictures "argmax", and the variance of REINFORCE "sample"."""
    with_mean: bool = False
    """Whether `forward` computes `Caption.mean_log_prob`. Set by a criterion that needs it."""
    bars_pad: bool = False
    """Whether `forward` gives PAD the probability 0, as sampling does, so that the other words sum to 1. A criterion
    sets this while it learns from samples. If a captioner ignores it, the gradients of samples are biased by the
    probability of PAD."""
    steerable: bool = False
    """Whether it can be made to look at chosen regions: `steer` is overridden."""
    max_length: int | None = None
    """The largest number of words in a caption, END included; None: unlimited."""
    accelerated: bool = False
    """Whether searches may use fused operations and CUDA graphs. Set by `fast.accelerate`."""

    @property
    def mode(self) -> str | None:
        """The current mode, one of `modes`; None for a captioner without modes."""
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

        On a GPU, a step is recorded once and replayed for each word (`decode/replay.py`). So it must not keep anything
        outside the state or read numbers from the device. If the shapes of the state change, decoding is slower.
        """
        raise NotImplementedError

    def frames(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"] | None:
        """Return log p of each word at each region, where word 0 is the blank of CTC; None for a model that produces
        words one after the other. A model with frames is decoded by `decode/ctc.py`."""
        return None

    def glimpses(self, regions: Float[Tensor, "B L D"], num_words: int) -> WordGlimpses | None:
        """Return the T glimpses for `num_words` words; None for a model that takes no glimpses."""
        return None

    def guided(self, locations: Float[Tensor, "B T 2"]) -> "Captioner":
        """Return a captioner with the same parameters that takes its first T glimpses of each image at `locations`,
        (x, y) in [-1, 1]; NaN leaves a glimpse to the model. Called for a model with `num_glimpses`."""
        raise NotImplementedError

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"]) -> Caption:
        """Run on given words (teacher forcing).

        A captioner that is `reinforced` takes a third argument, `runs: int = 1`: how often each caption is run with
        independent samples. It then returns R * runs rows, the runs of a caption next to each other.
        """
        raise NotImplementedError

    def leave_out_padding(self) -> None:
        """Treat annotation vectors of zeros as padding from now on: neither attend to them nor average over them.
        Called if the encoder pads (`Encoder.pads`). Raises UserError for a captioner that cannot do so."""
        raise UserError(
            f"{type(self).__name__} cannot leave out padding, so it needs the same number of annotation vectors of all "
            "images: --task.encoder.grid=[1,36] for 36; or take ShowAttendTell, TopDown, ShowAndTell or Transformer"
        )

    def in_mode(self, mode: str) -> AbstractContextManager[None]:
        """Context manager: use one of `modes` at test time. The default is for models that keep the mode in
        `at_test`."""
        return in_mode(self, mode)

    def seeing_each(self) -> AbstractContextManager[None] | None:
        """Context manager: `step` takes as many rows as there are regions, and row r sees region r alone instead of a
        weighted mean of all regions. None (the default) for a captioner that computes no such mean."""
        return None

    def steer(self, memory: Nested, forced: Forced) -> Nested:
        """Return a memory that makes the next `step` use the maps of `forced`. That step returns the map that it used,
        and computes from it the context and the carries of the score and of the attention. Called before each step of a
        `steerable` captioner. Raises UserError for maps that it cannot use."""
        raise NotImplementedError

    def restart(self) -> None:
        """Restart the schedules of this model. Called when a run starts from the weights of another run."""

    @torch.no_grad()
    def sharpen(self, temperature: float) -> None:
        """Divide the logits of all words by `temperature`, once, by scaling weights. The default is for models whose
        logits are those of a linear layer `output`. Raises UserError for other models."""
        layer = getattr(self, "output", None)
        if not isinstance(layer, nn.Linear):
            raise UserError(f"{type(self).__name__} has no layer of logits that a temperature could scale")
        for weight in layer.parameters():
            weight.div_(temperature)

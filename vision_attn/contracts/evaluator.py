"""The contract of an evaluator, which computes a group of metrics, and the results of captioning that it measures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vision_attn.contracts.captioner import Caption, Captioner
from vision_attn.geometry.extents import WHOLE, Extent


class DecodedCaption(NamedTuple):
    """A decoded caption, word by word, and where the model looked for each word."""

    text: str
    words: list[str]
    log_prob: list[float]
    """log p of each word, in nats."""
    alpha: Float[Tensor, "T *F Y X"] | None = None
    """The weight of each region (for a film, of each region of each frame); None where the model has no map."""
    region: Int[Tensor, "T"] | None = None
    """The one region that each word saw; None where it saw all."""
    heads: Float[Tensor, "T K *F Y X"] | None = None
    """The weights of each attention head."""
    score: float | None = None
    """The score that orders captions: log p of all words and the end, divided by their number to the power
    `length_power`. None if nothing was decoded."""
    cut: bool = False
    """Whether it was cut at `max_words`, before its end."""
    extent: Extent = WHOLE
    """Where the regions of the maps lie on the image."""
    content: Sequence[bool] | None = None
    """Whether each word is a content word, by the function words of the captions' language; None if the language is
    unknown, and English is assumed."""
    steered: Sequence[int] = ()
    """The numbers, from 1, of the words whose maps were given by the user (`attention.steered.Steered`). END counts as
    a word."""

    @property
    def steps(self) -> int:
        """The number of words, the end included where it was reached."""
        return len(self.words) + (self.score is not None and not self.cut)

    @property
    def seen(self) -> Float[Tensor, "T L"] | None:
        """The weight with which each word saw each region: that of the map or, where only one region was seen, 1 for
        this region and 0 for the others."""
        if self.alpha is None:
            return None
        alpha = self.alpha.flatten(1)
        return alpha if self.region is None else F.one_hot(self.region, alpha.shape[1]).to(alpha.dtype)


class Results(NamedTuple):
    """The output of a captioning task for one batch of an evaluation."""

    caption: Caption | None
    """The captioner's output for the references, with teacher forcing; None where it gives them no probability."""
    described: list[DecodedCaption]
    """The best decoded caption of each image."""
    by_mode: dict[str, list[DecodedCaption]]
    """The best decoded caption of each image in each mode at test time, where the model has several modes and the
    evaluation is a full one."""
    content_words: frozenset[str]
    """Words that name objects, if the source knows them."""
    probed: Any = None
    """The return value of the evaluator's own `probe` for this batch; None outside a full evaluation."""


class Evaluator:
    """One group of metrics, collected batch by batch. Constructed for each evaluation."""

    notes: Sequence[str] = ()
    """Remarks to print for the user after `compute`."""

    def probe(
        self,
        model: Captioner,
        regions: Float[Tensor, "B L D"],
        words: Int[Tensor, "B 1 T"],
        described: Sequence[DecodedCaption],
    ) -> Any:
        """Run the captioner again, on changed regions for example, for metrics that need more than its output. Returns
        numbers or tensors, which `update` gets as `results.probed`. The default runs nothing.

        Called in a full evaluation for each batch, in the process that predicts it, on another instance than `update`.

        regions: the annotation vectors of the batch.
        words: the ids of the decoded captions with END; PAD follows.
        described: the same captions as text, with their maps.
        """

    def examine(
        self,
        task: Any,
        batch: Any,
        regions: Float[Tensor, "B L D"],
        words: Int[Tensor, "B 1 T"],
        described: Sequence[DecodedCaption],
    ) -> Any:
        """Do what `probe` does, for metrics that also need the batch or the task. Override one of the two; the default
        calls `probe`.

        task: the captioning task, whose `described_from` decodes again.
        batch: the batch without its images; it has the boxes of objects, for example.
        """
        return self.probe(task.model, regions, words, described)

    def update(self, batch: Any, results: Any) -> None:
        """Add one batch.

        batch: the batch of the source, without its images.
        results: the output of the task for it; `Results` from a captioning task.
        """
        raise NotImplementedError

    def compute(self) -> dict[str, float]:
        """Return the metrics of all batches so far by name. A metric that failed is NaN, as is a share of nothing. No
        two evaluators may use the same name."""
        raise NotImplementedError

    def write(self, folder: Path) -> None:
        """Write the inputs of the metrics into `folder`. Called in a full evaluation, after `compute`."""

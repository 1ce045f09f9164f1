"""The standard evaluators of captioners; each collects one group of metrics, batch by batch."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from torch import Tensor

from vision_attn.contracts import PAD, DecodedCaption, Evaluator, Results
from vision_attn.geometry.extents import Extent
from vision_attn.metrics.attention import AttentionCorrectness, AttentionMotion, joined
from vision_attn.metrics.coco.captions import Report, caption_metrics
from vision_attn.metrics.coco.results import EACH, INTERVALS, Image, write_each, write_intervals, write_results
from vision_attn.metrics.coco.sums import estimates
from vision_attn.metrics.function_words import CaptionLanguage, content_marks
from vision_attn.metrics.variety import cut_short, few_images, repetition, same_caption, sameness
from vision_attn.system.errors import UserError
from vision_attn.system.word_spacing import shown


def measures(evaluator: Evaluator, known: Collection[str], key: str = "") -> dict[str, float]:
    """Return the metrics of an evaluator as Python numbers. Raises UserError for values that are no numbers, and for
    names of other metrics.

    known: the names of other metrics.
    key: the key of the evaluator in the config, for messages.
    """
    name, numbers = f"{key}: {type(evaluator).__name__}" if key else type(evaluator).__name__, {}
    if not isinstance(measured := evaluator.compute(), Mapping):
        raise UserError(f"{name}.compute must return a dict of numbers by name, not {measured!r:.80}")
    for metric, value in measured.items():
        if metric in known:
            raise UserError(f"{name} measures {metric}, which is measured already: rename it")
        try:
            numbers[metric] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{name} measures {metric}, but {value!r} is no number") from error
    return numbers


class ReferenceLikelihood(Evaluator):
    """`nll`: the mean negative log-likelihood of the references in the batch, in nats per word. For photographs these
    are the first `rows` captions, cut to `max_length` words. References that are impossible for the model, such as a
    transcript longer than its line for CTC, are left out."""

    def __init__(self) -> None:
        self.log_prob: Tensor | float = 0.0
        self.num_words = 0

    def update(self, batch: Any, results: Results) -> None:
        assert results.caption is not None
        log_prob = results.caption.log_prob.sum(dim=-1)
        possible = ~log_prob.isneginf()
        self.log_prob = self.log_prob + log_prob.where(possible, 0).sum()
        self.num_words += int(((batch.words != PAD) & possible[..., None]).sum())

    def compute(self) -> dict[str, float]:
        return {"nll": float(self.log_prob) / -self.num_words if self.num_words else float("nan")}


class CaptionScores(Evaluator):
    """BLEU, METEOR, ROUGE-L and CIDEr of decoded captions (`names` selects some), the share of identical captions and,
    without `names` and `split`, the share of captions that repeat a content word. A failed metric is NaN, with the
    reason in `notes`. `write` saves captions.json, in COCO's results format, scores.jsonl, the metrics of each image,
    and intervals.json, the intervals of metrics over images."""

    def __init__(
        self,
        names: Iterable[str] | None = None,
        split: Callable[[str], Sequence[str]] | None = None,
        unit: str = "image",
        pretrained: bool = False,
        language: CaptionLanguage | None = None,
    ) -> None:
        """names: the metrics to compute; None: all.
        split: a function that splits captions into words; None: at spaces, as in COCO's code.
        unit: the noun for a captioned item.
        pretrained: whether a captioner of transformers wrote the captions.
        language: the language of all captions of the data set, which decides on METEOR; None: that of these references.
        """
        self.names, self.split = None if names is None else list(names), split
        self.unit, self.pretrained, self.language = unit, pretrained, language
        self.candidates: dict[Image, str] = {}
        self.content: dict[Image, list[str]] = {}
        self.references: dict[Image, list[str]] = {}
        self.notes: list[str] = []
        self.report = Report({}, {})

    def update(self, batch: Any, results: Results) -> None:
        sources = getattr(batch, "sources", ())
        images = [*zip(sources, batch.ids, strict=True)] if sources else batch.ids
        for image, caption, references in zip(images, results.described, batch.references, strict=True):
            self.candidates[image], self.references[image] = caption.text, references
            self.content[image] = content_of(caption)

    def compute(self) -> dict[str, float]:
        report = caption_metrics(
            self.candidates, self.references, names=self.names, split=self.split, language=self.language
        )
        self.report = report
        self.notes = [f"{metric} could not be computed: {reason}" for metric, reason in report.failed.items()]
        metrics = report.metrics | dict.fromkeys(report.failed, float("nan")) | same_caption(self.candidates.values())
        if self.names is None:
            metrics |= repetition(self.content.values()) if self.split is None else {}
            self.notes += (*report.notes, *few_images(len(self.candidates), self.unit))
            self.notes += sameness(metrics, self.unit, pretrained=self.pretrained)
        return metrics

    def write(self, folder: Path) -> None:
        write_results(folder / "captions.json", self.candidates)
        write_each(folder / EACH, self.candidates, self.report.by_image)
        intervals = {name: estimate.interval(low=0) for name, estimate in estimates(self.report).items()}
        write_intervals(
            folder / INTERVALS, {name: ends.tolist() for name, ends in intervals.items() if ends is not None}
        )


def content_of(caption: DecodedCaption) -> list[str]:
    """Return the content words of a caption."""
    return [*compress(caption.words, content_marks(caption.words, caption.content))]


class CutShort(Evaluator):
    """`cut`: the share of decoded captions that were cut at `max_words`, before their end."""

    def __init__(self, full: bool = True, pretrained: bool = False) -> None:
        """full: whether to add a note. Validations have none, since captions of the first epochs rarely end.
        pretrained: whether a captioner of transformers wrote the captions.
        """
        self.full, self.pretrained, self.cut = full, pretrained, list[bool]()

    def update(self, batch: Any, results: Results) -> None:
        self.cut += [caption.cut for caption in results.described]

    def compute(self) -> dict[str, float]:
        share = sum(self.cut) / max(1, len(self.cut))
        self.notes = cut_short({"cut": share}, pretrained=self.pretrained) if self.full else ()
        return {"cut": share}


class Motion(Evaluator):
    """Sharpness and movement of maps: see `AttentionMotion`. No metrics for a captioner without maps.

    Content words are the words that name objects, or all but function words if the data do not say which these are.
    """

    def __init__(self) -> None:
        self.motion = AttentionMotion()

    def update(self, batch: Any, results: Results) -> None:
        for caption in results.described:
            if caption.alpha is not None:
                content = results.content_words or frozenset(content_of(caption))
                self.motion.update(caption.words, caption.alpha.flatten(1), content)

    def compute(self) -> dict[str, float]:
        return self.motion.compute()


class Pointing(Evaluator):
    """Whether attention lies in the boxes of the objects that words name, if boxes are known: see
    `AttentionCorrectness`. A captioner with several modes at test time also has `pointing_MODE` and `mass_MODE`, for
    the regions seen."""

    def __init__(self) -> None:
        self.correctness: dict[tuple[str, tuple[int, ...], Extent], AttentionCorrectness] = {}
        """The metrics by mode, grid and extent: strips of different widths have different numbers of regions."""

    def update(self, batch: Any, results: Results) -> None:
        for mode, described in {"": results.described, **results.by_mode}.items():
            for caption, boxes in zip(described, batch.boxes, strict=True):
                if caption.alpha is None or boxes is None:
                    continue
                grid = tuple(caption.alpha.shape[1:])
                weights = caption.seen if mode else caption.alpha.flatten(1)
                assert weights is not None
                key = (mode, grid, caption.extent)
                correctness = self.correctness.setdefault(key, AttentionCorrectness(grid, caption.extent))
                correctness.update([*map(shown, caption.words)], weights, boxes, content=results.content_words)

    def compute(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for mode in dict.fromkeys(mode for mode, *_ in self.correctness):
            computed = joined(
                [correctness for (other, *_), correctness in self.correctness.items() if other == mode]
            ).compute()
            if mode:
                computed = {f"{name}_{mode}": computed[name] for name in ("pointing", "mass")}
            metrics |= computed
        return metrics

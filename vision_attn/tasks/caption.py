"""`Captioning`, the task of captioning: trains a captioner on the criteria of its config, and evaluates decoded
captions."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.contracts import PAD, Captioner, Criterion, Encoder, Evaluator, Results
from vision_attn.contracts.criterion import summed
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.word_vectors import start_embedding
from vision_attn.decode import Decoding
from vision_attn.fast.likelihood import weighted_words
from vision_attn.fast.ragged import row_lengths
from vision_attn.layers.padding import padded
from vision_attn.metrics.attention import map_statistics
from vision_attn.metrics.coco.captions import ENGLISH
from vision_attn.metrics.evaluators import CaptionScores, CutShort, Motion, Pointing, ReferenceLikelihood
from vision_attn.metrics.function_words import FUNCTION_WORDS, CaptionLanguage
from vision_attn.metrics.information import MapInformation
from vision_attn.system.console import complain
from vision_attn.system.errors import UserError
from vision_attn.task import Batch, Source, Static
from vision_attn.tasks.caption_metrics import PredictedCaptions, evaluated
from vision_attn.tasks.describing import Describing
from vision_attn.tasks.loss_terms import Terms


class Captioning(Describing):
    """An encoder, a captioner, the criteria that train it and the evaluators that judge it.

    encoder: images -> annotation vectors (which may also come from a cache).
    model: constructed with the sizes of the vocabulary and of an annotation vector.
    criteria: the terms of the loss by name, each constructed with the model; the loss is their sum. By default the
        terms of Xu et al. 2015: likelihood, doubly stochastic penalty (eq. 14), and REINFORCE of sampled regions
        (eq. 12). If all terms sample captions, the model does not run on the given captions.
    evaluators: metrics in addition to the built-in ones, by name.
    beams: the width of the beam search that decodes captions.
    max_words: the largest number of words of a caption.
    min_words: the smallest number of words of a caption.
    no_repeat: the size of n-grams that may not occur twice in a caption; 0: no limit.
    content_once: whether a content word occurs at most once in a caption; content words are all words except the
        function words of the captions' language (`vocabulary.function_words`). For photographs, not for drawn scenes,
        which may have two stars.
    length_power: a beam search returns the caption with the highest log p / length ** length_power.
    diversity: for diverse captions, the penalty in nats on a word for each group of beams that has just used it.
    temperature: for sampled captions; divides the logits, so that below 1 likely words become likelier.
    top_p: for sampled captions, a word is sampled from the likeliest words that together have this probability.
    word_vectors: a file in GloVe's text format, whose vectors initialise the embedding, unless the run starts from
        another run.
    validate_with: the caption metrics computed in training; `evaluate` with a folder computes all.
    """

    kind = "captioner"
    verb = "caption"
    chosen_by: str | None = "task.validate_with"
    own = ("criteria.", "model.attention.batches", "model.batches")
    criteria: Terms
    evaluators: dict[str, Callable[[], Evaluator]]

    def __init__(
        self,
        source: Source,
        *,
        encoder: Encoder,
        model: Callable[[int, int], Captioner],
        criteria: dict[str, Callable[[Captioner], Criterion]] | None = None,
        evaluators: dict[str, Callable[[], Evaluator]] | None = None,
        beams: int = 3,
        max_words: int = 30,
        min_words: int = 0,
        no_repeat: int = 0,
        length_power: float = 0.0,
        diversity: float = 0.5,
        temperature: float = 1.0,
        top_p: float = 1.0,
        content_once: bool = False,
        word_vectors: str | None = None,
        validate_with: list[str] = ["BLEU-4", "CIDEr"],  # noqa: B006 (never changed)
    ):
        super().__init__()
        self.decoding = Decoding(
            beams, max_words, min_words, no_repeat, length_power, diversity, temperature, top_p, content_once
        )
        self.vocabulary = source.vocabulary
        if content_once and not self.vocabulary.splitter.content:
            raise UserError("task.content_once is for words, and data.words makes parts of words: leave one out")
        self.content_words: frozenset[str] = source.content_words
        self.encoder = encoder
        self.model = model(len(self.vocabulary), encoder.region_size)
        if encoder.frames > 1:
            self.unit = "film"
        if encoder.pads:
            self.model.leave_out_padding()
        self.criteria = Terms(self.model, criteria)
        if word_vectors is not None and not isinstance(getattr(self.model, "embedding", None), nn.Embedding):
            raise UserError(f"task.word_vectors: {type(self.model).__name__} has no `embedding` of words")
        self.word_vectors = word_vectors
        self.evaluators = evaluators or {}
        self.validate_with = list(validate_with)
        self.language: CaptionLanguage | None = None
        self._told = False

    @property
    def settings(self) -> dict[str, Any]:
        names = ("beams", "max_words", "min_words", "no_repeat", "length_power", "content_once")
        return {name: getattr(self.decoding, name) for name in names}

    def rates(self) -> list[tuple[nn.Module, float]]:
        return [(self.encoder, self.encoder.rate)]

    def initialise(self) -> None:
        self.encoder.initialise()
        if self.word_vectors is not None:
            embedding: Any = self.model.embedding
            start_embedding(embedding, self.vocabulary, self.word_vectors)

    def restart(self, before: Mapping[str, Any]) -> None:
        self.model.restart()
        self.criteria.restart(self.model, before)

    def prepare(self, source: Source) -> None:
        for criterion in self.criteria.members:
            criterion.prepare(source)
        if not {*ENGLISH}.isdisjoint(self.validate_with):
            self.prepare_evaluation(source)

    def prepare_evaluation(self, source: Source) -> None:
        self.language = source.caption_language

    @property
    def fine_tunes(self) -> bool:
        return bool(self.criteria.sampling) and not self.criteria.given

    @property
    def highest_rate(self) -> float | None:
        return min(
            (criterion.highest_rate for criterion in self.criteria.members if criterion.highest_rate), default=None
        )

    def compile(self, **options) -> None:
        """Compile the encoder, and the parts of the captioner that support it."""
        self.encoder.compile(**options)
        self.model.compile(**options)

    @property
    def uncapturable(self) -> str:
        return "several of its criteria sample captions" if len(self.criteria.sampling) > 1 else ""

    @torch.no_grad()
    def captured_batch(self, batch: Batch) -> CaptionBatch:
        """Return the tensors of a batch for a captured step: words padded to one of a few lengths, and the captions
        that a criterion has sampled, because sampling cannot be captured."""
        images, words = batch.images, batch.words
        lengths, crops = getattr(batch, "lengths", None), getattr(batch, "crops", None)
        if lengths is None:
            words = padded(words, self.model.max_length)
        sampled: tuple[Tensor, ...] = ()
        for criterion in self.criteria.sampling:
            device = next(self.parameters()).device
            images, crops = images.to(device), None if crops is None else crops.to(device)
            sampled = tuple(criterion.sample(self.model, self.regions(images, crops), batch.references))
        if not self.criteria.given:  # words are not used, and may have any shape
            words, lengths = words[:, :1, :1], None
        return CaptionBatch(
            images, words, ids=(), references=(), files=(), boxes=(), lengths=lengths, crops=crops, sampled=sampled
        )

    def forward(
        self,
        images: Tensor,
        words: Int[Tensor, "B R T"],
        ids: tuple | None = (),
        references: tuple | None = (),
        files: tuple | None = (),
        boxes: tuple | None = (),
        vectors: tuple | None = (),
        lengths: Static | None = None,
        crops: Float[Tensor, "B 4"] | None = None,
        sampled: tuple[Tensor, ...] | None = (),
        sources: tuple | None = (),
    ) -> dict[str, Tensor]:
        """Compute the loss and other scalars. The parameters are the fields of `CaptionBatch`, in their order."""
        regions = self.regions(images, crops)
        terms, statistics = [], {}
        if self.criteria.given:
            runs = {"runs": self.criteria.num_runs} if self.criteria.num_runs > 1 else {}
            with row_lengths(self.model, lengths):
                caption = self.model(regions, words, **runs)
            words = words.repeat_interleave(self.criteria.num_runs, dim=1) if runs else words
            terms += [criterion.checked(criterion(caption, words)) for criterion in self.criteria.given]
            if caption.alpha is not None:
                statistics = map_statistics(caption.alpha.detach(), words != PAD)
        for criterion in self.criteria.sampling:
            with weighted_words(self.model):
                learned = sampled and criterion.learn(self.model, regions, sampled)
                terms.append(criterion.checked(learned or criterion.explore(self.model, regions, references or ())))
        return summed([*terms, statistics])

    @torch.no_grad()
    def predict(self, batch: Batch, *, full: bool = False) -> PredictedCaptions:
        device = next(self.parameters()).device
        regions, words = self.regions(batch.images.to(device)), batch.words.to(device)
        placed = any(boxes is not None for boxes in batch.boxes)  # metrics of maps without boxes need no places
        decoded = self._decode(regions, self.decoding)
        results = Results(
            self.model(regions, words),
            self._described(decoded, regions, placed=placed),
            self._by_mode(regions, placed) if full and self.content_words else {},
            self.content_words,
        )
        predicted = PredictedCaptions(batch._replace(images=None), results, {}, {})
        if not full:
            return predicted
        measured = self.criteria.measure(self.model, regions, words)
        best, described = decoded.words[:, :1], results.described
        seen = self, predicted.batch, regions, best, described
        probed = {name: new().examine(*seen) for name, new in self.evaluators.items()}
        return predicted._replace(measured=measured, probed=probed)

    @torch.no_grad()
    def judge(self, predictions: Iterable[PredictedCaptions], folder: Path | None = None) -> dict[str, float]:
        """Compute metrics of decoded captions, the likelihood of the references and, where the boxes of objects are
        known, the share of attention in them. With a folder, compute all metrics, and write captions.json."""
        standard = partial(self.standard_evaluators, folder is not None)
        metrics = evaluated(predictions, standard, self.evaluators, folder)
        if line := self._on_language(folder is not None):
            complain(line)
        return metrics

    def _on_language(self, full: bool) -> str:
        """Return a line about the language of the references, once in training and in each full evaluation; empty if
        there is nothing to say."""
        language = self.language
        if language is None:
            return ""
        if not full:
            told, self._told = self._told, True
            why = f"it knows English, and {language.not_english}" if language.not_english else language.terse
            return f"task.validate_with: METEOR says little here: {why}" if why and not told else ""
        name, words = language.name, self.vocabulary.function_words
        if name in ("", "english") or words != FUNCTION_WORDS or not self.vocabulary.splitter.content:
            return ""
        return (
            f"the references are {name.capitalize()}, and content words of captions are told by the function words of "
            f"English: if captions are {name.capitalize()} too, add --data.function_words={name}"
        )

    def standard_evaluators(self, full: bool) -> list[Evaluator]:
        """Return the evaluators that every evaluation has.

        full: whether to include the metrics that take long.
        """
        names, words = None if full else self.validate_with, self.vocabulary.splitter
        scores = CaptionScores(names, words.scored, self.unit, language=self.language)
        standard = [scores, ReferenceLikelihood(), CutShort(full), Motion(), Pointing()]
        return [*standard, MapInformation()] if full else standard

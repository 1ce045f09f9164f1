"""Captioners of the transformers library as a task, so that they caption and are evaluated like captioners trained
here."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from vision_attn.contracts import Caption, DecodedCaption, Evaluator, Results
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.vocabulary import PAD, UNKNOWN
from vision_attn.decode import Decoding, Strategy
from vision_attn.explain.captioners.generation import GeneratedCaptions, Written, generate
from vision_attn.explain.captioners.prompts import default_prompt, generation_config, inputs_of
from vision_attn.explain.captioners.references import ends_of, log_prob_of_captions
from vision_attn.explain.captioners.word_maps import MOST_WORDS
from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.explain.map_extents import extent_of_tokens
from vision_attn.geometry.extents import Extent
from vision_attn.metrics.evaluators import CaptionScores, CutShort, Motion, Pointing, ReferenceLikelihood
from vision_attn.metrics.function_words import CaptionLanguage, content_marks, function_words_of
from vision_attn.system.errors import UserError
from vision_attn.task import Batch, Source, Task
from vision_attn.tasks.caption_metrics import PredictedCaptions, evaluated
from vision_attn.tasks.caption_pages import figure_of, write_pages
from vision_attn.viz.figures.paper import Paper

log = logging.getLogger(__name__)

ROWS = 64
"""The largest number of captions that are generated at once, counting all beams."""
OPTIONS = {
    "beams": "num_beams", "max_words": "max_new_tokens", "min_words": "min_new_tokens",
    "no_repeat": "no_repeat_ngram_size", "length_power": "length_penalty", "temperature": "temperature",
    "top_p": "top_p",
}  # fmt: skip
"""The names of the settings of `Decoding` in `generate` of transformers."""


@dataclass(frozen=True)
class Generating(Decoding):
    """The settings of decoding, counted in tokens instead of words, and the prompt."""

    prompt: str = ""
    """The beginning of the caption, or the text that asks for it."""


@dataclass(frozen=True)
class PretrainedSettings:
    """The settings for opening a captioner of transformers and for generating with it. None: the model's own
    setting."""

    prompt: str | None = None
    """The beginning of the caption, or the text that asks for it."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The type of its weights; "auto": as in the file."""
    device_map: str | None = None
    """Where its layers lie, such as "auto" for several GPUs; it needs the package accelerate."""
    beams: int | None = None
    max_words: int | None = None
    """The largest number of tokens. The next two settings count tokens, too."""
    min_words: int | None = None
    no_repeat: int | None = None
    length_power: float | None = None
    temperature: float | None = None
    top_p: float | None = None

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings of decoding that are not None."""
        names = ("prompt", *OPTIONS)
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class PretrainedCaptioning(Task):
    """A captioner of transformers. Its own processor prepares whole photographs. It generates with its own settings,
    except those that `decoding` changes. The map of a word is its attention to the image, averaged over heads and
    layers and normalised to sum to 1."""

    kind = "captioner"
    verb = "caption"
    fit = "whole"
    model: nn.Module
    """The weights of `opened`."""
    opened: OpenedModel
    decoding: Generating

    def __init__(
        self, model: OpenedModel, settings: PretrainedSettings = PretrainedSettings(), source: Source | None = None
    ) -> None:
        super().__init__()
        self.model, self.opened = model.module, model
        self.content_words = frozenset() if source is None else source.content_words
        theirs = generation_config(model.module)
        numbers: dict[str, Any] = {
            "beams": theirs.num_beams or 1,
            "max_words": theirs.max_new_tokens or theirs.max_length or MOST_WORDS,
            "min_words": theirs.min_new_tokens or 0,
            "no_repeat": theirs.no_repeat_ngram_size or 0,
            "length_power": 1.0 if theirs.length_penalty is None else theirs.length_penalty,
            "temperature": theirs.temperature or 1.0,
            "top_p": theirs.top_p or 1.0,
        }
        numbers["max_words"] = min(numbers["max_words"], 1000)
        numbers["min_words"] = min(numbers["min_words"], numbers["max_words"])
        self.usual = Generating(**numbers, diversity=0.0, prompt=default_prompt(model))
        self.decoding = self.usual.changed(**settings.decoding)
        self._told = False
        self.language: CaptionLanguage | None = None

    @property
    def encoder(self) -> "PretrainedCaptioning":
        """The task itself. A source asks its `encoder` how to read pictures: unchanged, without a cache."""
        return self

    def frozen_part(self) -> None:
        return None

    @property
    def settings(self) -> dict[str, Any]:
        settings = {name: value for name, value in asdict(self.decoding).items() if name in (*OPTIONS, "prompt")}
        return settings | {"dtype": str(self.model.dtype).removeprefix("torch.")}

    def steering(self, wanted: Any, seen: Sequence[Extent]) -> None:
        """Raise UserError: maps of transformers are recorded, not replaced."""
        raise UserError("a captioner of transformers cannot be steered: attend is for runs of this package")

    def describe(
        self,
        images: Sequence[Image.Image],
        captions: int | None = None,
        strategy: Strategy = "best",
        decoding: Generating | None = None,
        *,
        placed: bool = True,
        steering: None = None,
    ) -> list[Any]:
        """Return the best caption of each picture, or a list of `captions` for each: see `Describing.describe`. There
        is no strategy "diverse". Raises UserError for settings that `generate` does not have."""
        decoding, number = decoding or self.decoding, captions or 1
        options = self._options(decoding, number, strategy)
        at_once = max(1, ROWS // max(options.get("num_beams") or decoding.beams, number))
        captions_of: list[list[DecodedCaption]] = []
        for first in range(0, len(images), at_once):
            some = images[first : first + at_once]
            inputs = inputs_of(self.opened, some, decoding.prompt)
            generation = generate(self.opened, inputs, mean=True, **options)
            written = iter(generation.captions)
            for picture in some:
                extent = self._extent(generation, inputs, picture.size) if placed and generation.tokens else Extent()
                captions_of.append([_described(next(written), extent, decoding.length_power) for _ in range(number)])
            if generation.why_not and not self._told:
                self._told = True
                log.warning("captions have no maps: %s", generation.why_not)
        return captions_of if captions is not None else [several[0] for several in captions_of]

    def _options(self, decoding: Generating, number: int, strategy: Strategy) -> dict[str, Any]:
        """Return the arguments of `generate` for the settings that are not the model's own."""
        given, own = asdict(decoding), asdict(self.usual)
        for name in given.keys() - OPTIONS.keys() - {"prompt"}:
            if given[name] != own[name]:
                raise UserError(f"{name} is no setting of captioners of transformers: they have {', '.join(OPTIONS)}")
        options = {OPTIONS[name]: given[name] for name in OPTIONS if given[name] != own[name]}
        theirs = generation_config(self.model)
        if theirs.max_new_tokens is None and theirs.max_length is None:
            options["max_new_tokens"] = decoding.max_words
        if strategy == "diverse":
            raise UserError("captioners of transformers have no beams of groups that differ: sample the captions")
        if strategy == "sampled":
            options |= {"do_sample": True, "num_beams": 1, "num_return_sequences": number}
            options |= {"top_k": 0} if theirs.top_k is None else {}
        elif number > 1:
            options |= {"num_beams": max(decoding.beams, number), "num_return_sequences": number}
        return options

    def _extent(self, generation: GeneratedCaptions, inputs: dict[str, Tensor], size: tuple[int, int]) -> Extent:
        """Return where the maps of a picture of this size lie on it, measured once for each shape."""
        assert generation.tokens is not None
        shape = round(size[0] / size[1], 2), generation.tokens.grid
        if shape not in self._extents:
            self._extents[shape] = extent_of_tokens(self.opened, *generation.patches(self.opened, inputs), size)
        return self._extents[shape]

    @cached_property
    def _extents(self) -> dict[Any, Extent]:
        return {}

    @torch.no_grad()
    def predict(self, batch: Batch, *, full: bool = False) -> PredictedCaptions:
        pictures, references = list(_pictures(batch.images)), _references(batch)
        described = self.describe(pictures, placed=any(boxes is not None for boxes in batch.boxes))
        caption = Caption(self.log_prob_of(pictures, references)) if ends_of(self.opened) else None
        batch = batch._replace(images=None, words=_places_of_words(references))
        return PredictedCaptions(batch, Results(caption, described, {}, self.content_words), {}, {})

    def log_prob_of(self, images: Sequence[Image.Image], captions: Sequence[Sequence[str]]) -> Float[Tensor, "B R 1"]:
        """Return log p of R captions of each picture, their ends included, in nats: see
        `explain.captioners.references.log_prob_of_captions`."""
        at_once, log_prob = max(1, ROWS // len(captions[0])), []
        for first in range(0, len(images), at_once):
            some = slice(first, first + at_once)
            inputs = inputs_of(self.opened, images[some], self.decoding.prompt)
            log_prob.append(log_prob_of_captions(self.opened, inputs, captions[some]).sum(dim=2, keepdim=True))
        return torch.cat(log_prob)

    def prepare_evaluation(self, source: Source) -> None:
        self.language = source.caption_language

    def judge(self, predictions: Iterable[PredictedCaptions], folder: Path | None = None) -> dict[str, float]:
        """Compute the metrics of captions and maps that captioners of this package have.

        The metric `nll` differs from theirs. It is that of the references as they are written, with capitals,
        punctuation, rare words and all of a long caption, in the model's tokens. It is still in nats per word, where
        words are texts between spaces and the end of a caption. A model without a token that ends a caption has no
        `nll`.
        """

        def standard() -> list[Evaluator]:
            likelihood = [ReferenceLikelihood()] if ends_of(self.opened) else []
            scores = CaptionScores(pretrained=True, language=self.language)
            cut = CutShort(pretrained=True)
            return [scores, *likelihood, cut, Motion(), Pointing()]

        return evaluated(predictions, standard, {}, folder)

    way = "attention, the mean of all layers and heads"
    """How maps are made, in words."""

    def show(self, batch: CaptionBatch, folder: Path, **options: Any) -> list[Path]:
        """Write a sheet for each image and one page of all.

        options: as for `Describing.show`.
        """
        described = self.describe(list(_pictures(batch.images)))
        return write_pages(batch, described, self, folder, self.way, **options)

    def figure(self, batch: CaptionBatch, paper: Paper, **options: Any) -> Any:
        """Draw a row for each image: the map and the overlay of the word whose map is sharpest.

        options: as for `show`.
        """
        return figure_of(batch, self.describe(list(_pictures(batch.images))), self, paper, self.way, **options)


def _described(written: Written, extent: Extent, length_power: float) -> DecodedCaption:
    alpha = None
    if written.maps is not None:
        alpha = written.maps.mean(dim=(1, 2)).cpu()
        alpha = alpha / alpha.sum(dim=(1, 2), keepdim=True).clamp(min=1e-20)
    log_prob = written.token_log_prob
    score = sum(log_prob) / len(log_prob) ** length_power if log_prob else None
    content = content_marks(written.words, None, function_words_of(written.text))
    return DecodedCaption(
        written.text, written.words, written.log_prob, alpha, None, None, score, written.cut, extent, content
    )


def _references(batch: CaptionBatch) -> list[list[str]]:
    """Return the first R captions of each image as written, repeated if an image has fewer: the same captions on which
    a captioner of this package is measured."""
    rows = range(batch.words.shape[1])
    return [[captions[row % len(captions)] for row in rows] for captions in batch.references]


def _places_of_words(references: Sequence[Sequence[str]]) -> Int[Tensor, "B R T"]:
    """Return a placeholder for each word of each caption and for its end, in place of word ids; PAD after it."""
    numbers = torch.tensor([[len(text.split()) + 1 for text in captions] for captions in references])
    return torch.where(torch.arange(int(numbers.max())) < numbers[..., None], UNKNOWN, PAD)


def _pictures(images: Tensor | np.ndarray) -> Iterator[Image.Image]:
    """Yield the images of a batch as pictures.

    images: arrays as a source of photographs reads them, or a tensor of drawn images (B, 3, Y, X).
    """
    for image in images:
        drawn = isinstance(image, Tensor)
        yield Image.fromarray(image.permute(1, 2, 0).cpu().numpy()) if drawn else image

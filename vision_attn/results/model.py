"""`Model`: a trained run that the API, the commands and the web page use to caption, classify, transcribe, draw or
answer."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from vision_attn.decode import Strategy
from vision_attn.results.answering import AnswersQuestions
from vision_attn.results.captioned import CaptionRequest, captioned
from vision_attn.results.decoded import CaptionResult, TranscriptResult
from vision_attn.results.glimpse_places import Place, glimpse_places
from vision_attn.results.images import FILES, Picture, whole
from vision_attn.results.result_list import Images, ResultList, results_of
from vision_attn.system.errors import UserError
from vision_attn.system.locks import Turn
from vision_attn.task import Source
from vision_attn.tasks.steering import Attend, Wanted

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from vision_attn.results.classified import ClassificationResult, DrawnImages
    from vision_attn.results.explained import ExplanationResult
    from vision_attn.results.faithfulness import MeasureResult

    class CaptionOptions(TypedDict, total=False):
        strategy: Strategy
        seed: int | None
        placed: bool
        unreadable: list[str] | None
        attend: Attend | None
        strength: float | int
        beams: int
        max_words: int
        min_words: int
        no_repeat: int
        length_power: float
        diversity: float
        temperature: float
        top_p: float
        prompt: str

    class TranscribeOptions(TypedDict, total=False):
        placed: bool
        locations: Sequence[Place] | None
        unreadable: list[str] | None

    class ClassifyOptions(TypedDict, total=False):
        invert: bool
        locations: Sequence[Place] | None
        unreadable: list[str] | None


UNABLE = {
    "caption": "writes no captions",
    "transcribe": "transcribes no lines",
    "classify": "classifies no images",
    "draw": "draws no images",
    "answer": "answers no questions",
}
"""The message for a task without this verb."""


class Model(AnswersQuestions):
    """A trained run. Its task decides which of `caption`, `look`, `transcribe`, `classify`, `draw` and `answer` works.

    An image is a file (its name, its bytes, or an open file), a PIL image or an array, and gives one result. A list of
    images gives a list of results; an iterator gives an iterator of results, which reads ahead but keeps nothing. An
    image of a list or an iterator that cannot be read raises UserError or, if a list is passed as `unreadable`, is left
    out, and its message is appended to that list. The `file` of a result names its image.

    Threads may share a model: they read images at the same time, and the model answers one call after the other.
    """

    task: Any
    """A `Captioning`, `PretrainedCaptioning`, `Transcription`, `Classification`, `Generation` or `Answering`."""
    source: Any
    """The `Source` of its data; None for a captioner of transformers."""

    def __init__(
        self,
        task: Any,
        config: dict[str, Any],
        device: torch.device,
        source: Source | None = None,
        name: str = "this model",
    ) -> None:
        self.task, self.config, self.device, self.source, self.name = task, config, device, source, name
        self.turn = Turn()
        """A lock that is held while the model computes."""

    def __repr__(self) -> str:
        return f"<vision_attn model: {type(self.task).__name__}, {type(self.task.model).__name__}, on {self.device}>"

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config.get("run", {}).get("seed", 0))

    def choose_threads(self) -> None:
        """On a CPU, time the first calls with one thread of torch and with all, and use the faster setting afterwards.
        Each call sets the number of threads of the whole process, so only call this in programs that compute nothing
        else with torch at the same time, such as the commands."""
        self.turn.try_threads(self.device)

    @overload
    def caption(
        self, images: Picture, *, captions: None = ..., **options: "Unpack[CaptionOptions]"
    ) -> CaptionResult: ...
    @overload
    def caption(
        self, images: Picture, *, captions: int, **options: "Unpack[CaptionOptions]"
    ) -> ResultList[CaptionResult]: ...
    @overload
    def caption(
        self, images: Sequence[Picture], *, captions: None = ..., **options: "Unpack[CaptionOptions]"
    ) -> ResultList[CaptionResult]: ...
    @overload
    def caption(
        self, images: Sequence[Picture], *, captions: int, **options: "Unpack[CaptionOptions]"
    ) -> ResultList[ResultList[CaptionResult]]: ...
    @overload
    def caption(
        self, images: Iterator[Picture], *, captions: None = ..., **options: "Unpack[CaptionOptions]"
    ) -> Iterator[CaptionResult]: ...
    @overload
    def caption(
        self, images: Iterator[Picture], *, captions: int, **options: "Unpack[CaptionOptions]"
    ) -> Iterator[ResultList[CaptionResult]]: ...
    def caption(
        self,
        images: Images,
        *,
        captions: int | None = None,
        strategy: Strategy = "best",
        seed: int | None = None,
        placed: bool = True,
        unreadable: list[str] | None = None,
        attend: Attend | None = None,
        strength: float | int = 1.0,
        **settings: int | float | str,
    ) -> Any:
        """Caption an image, or each of several. Returns a `CaptionResult` with `text`, `words`, `log_prob` and `alpha`
        (one map per word), or a list of them.

        captions: return a list of this number of captions for each image, best first.
        strategy: "best", the captions of one beam; "diverse", the best captions of different groups of beams; or
            "sampled".
        seed: of samples.
        placed: whether to compute `extent`, the place of the maps on the image; measured once, which takes as long as
            encoding 16 to 48 images.
        attend: where the model must look for some words, such as {3: (0.3, -0.2)}. Words count from 1, the end
            included; a key is a number or (first, last). A place is a point (x, y), spread over its four nearest
            regions, a box (x0, y0, x1, y1) or a mask of weights (Y, X), by area; all in [-1, 1] of the whole
            photograph. For films, a point or a box may end with the number of a frame, from 1, and a mask is (F, Y, X).
            A mask in the shape of the maps (`alpha[t]`) is used as the map; one of shape (K, Y, X), such as
            `described.heads[t]`, has a map for each attention head, and a head whose map is all 0 keeps its own.
        strength: the weight of that place in the map, from 0 to 1; the rest is the model's own map.
        settings: settings of decoding for this call only: beams, max_words, min_words, no_repeat, length_power,
            diversity, temperature, top_p and, for captioners of transformers, prompt. docs/captioning.md describes
            them.
        """
        self.check("caption")
        if captions is None and strategy == "diverse":
            raise UserError("captions that differ are several: give their number as captions")
        if seed is not None and strategy != "sampled":
            raise UserError(f'a seed applies to sampled captions: give strategy="sampled", not {strategy!r}')
        wanted = None if attend is None else Wanted(attend, strength, self.task.decoding.changed(**settings).max_words)
        asked = CaptionRequest(captions, strategy, seed, placed, wanted, settings)
        return captioned(self, images, asked, unreadable)

    @overload
    def look(self, images: Picture, text: str | Sequence[str] | None = ..., **options: Any) -> "ExplanationResult": ...
    @overload
    def look(
        self, images: Sequence[Picture], text: str | Sequence[str] | None = ..., **options: Any
    ) -> "ResultList[ExplanationResult]": ...
    @overload
    def look(
        self, images: Iterator[Picture], text: str | Sequence[str] | None = ..., **options: Any
    ) -> "Iterator[ExplanationResult]": ...
    def look(self, images: Images, text: str | Sequence[str] | None = None, **options: Any) -> Any:
        """Explain a captioner, or a classifier of whole photographs, with maps: see `Explainer.look`."""
        from vision_attn.results.explainer import explainer_of_run

        explainer = explainer_of_run(self.task, self.source, self.name, self.device, self.turn)
        return explainer.look(images, text, **options)

    def intervene(self, images: Images, text: str | Sequence[str] | None = None, **options: Any) -> Any:
        """Answer with a classifier of whole photographs without attention to a box: see `Explainer.intervene`."""
        from vision_attn.results.explainer import explainer_of_run

        explainer = explainer_of_run(self.task, self.source, self.name, self.device, self.turn)
        return explainer.intervene(images, text, **options)

    def measure(
        self,
        images: Images | None = None,
        text: str | Sequence[str] | None = None,
        *,
        number: int = 24,
        **options: Any,
    ) -> "MeasureResult":
        """Measure whether this run's maps are faithful: see `vision_attn.results.faithfulness.measure`.

        images: None: the first `number` test images of a run on drawn scenes or digits, whose boxes are known.
        text: the class to explain, for a classifier that sees whole images.
        options: those of `vision_attn.results.faithfulness.measure`.
        """
        from vision_attn.faithfulness.own_images import OwnImages
        from vision_attn.results.explainer import explainer_of_run, sees_photographs
        from vision_attn.results.faithfulness import measure
        from vision_attn.tasks.subjects import subject_of_run

        if sees_photographs(self.task):
            explainer = explainer_of_run(self.task, self.source, self.name, self.device, self.turn)
            with self.turn:
                subject = explainer.subject([text] if isinstance(text, str) else text or ())
        elif text:
            raise UserError(f"{self.name} is measured on what it says itself: leave text out")
        else:
            subject = subject_of_run(self.task, self.name, self.device, self.seed)
            subject.turn = self.turn
        if images is None:
            own = OwnImages(self.task, self.source, self.name, number)
            images, options = iter(own), options | {"boxes": own, "total": number}
        return measure(subject, self.name, images, **options)

    @overload
    def transcribe(self, images: Picture, **options: "Unpack[TranscribeOptions]") -> "TranscriptResult": ...
    @overload
    def transcribe(
        self, images: Sequence[Picture], **options: "Unpack[TranscribeOptions]"
    ) -> "ResultList[TranscriptResult]": ...
    @overload
    def transcribe(
        self, images: Iterator[Picture], **options: "Unpack[TranscribeOptions]"
    ) -> "Iterator[TranscriptResult]": ...
    def transcribe(
        self,
        images: Images,
        *,
        placed: bool = True,
        locations: Sequence[Place] | None = None,
        unreadable: list[str] | None = None,
    ) -> Any:
        """Transcribe an image of a line of characters, or each of several. Returns a `TranscriptResult` whose `words`
        are the characters, or a list of them.

        placed: as for `caption`; also whether to keep glimpses for pictures.
        locations: for a model that takes glimpses (DRAM), where to take them instead: (x, y) in [-1, 1] of each glimpse
            of the first character, then of the second, and so on. The model itself chooses those that are None or left
            out. The glimpses are kept.
        """
        self.check("transcribe")
        from vision_attn.data.lines.text_lines import ink, max_width_of

        resolution, max_width = self.task.resolution, max_width_of(self.source)
        given = None
        if locations is not None:
            num_glimpses = self.task.model.num_glimpses * self.task.decoding.max_words
            given = glimpse_places(locations, num_glimpses, 2 if num_glimpses else 0, self.name).to(self.device)
        kept = placed or given is not None
        return results_of(
            images,
            lambda image: ink(whole(image, at_least=None), resolution, max_width),
            lambda some: [
                TranscriptResult(file, self.task.strip(line, Path(file).name, kept, given)) for file, line in some
            ],
            unreadable=unreadable,
            within=lambda: self.turn,
        )

    @overload
    def classify(self, images: Picture, **options: "Unpack[ClassifyOptions]") -> "ClassificationResult": ...
    @overload
    def classify(
        self, images: Sequence[Picture], **options: "Unpack[ClassifyOptions]"
    ) -> "ResultList[ClassificationResult]": ...
    @overload
    def classify(
        self, images: Iterator[Picture], **options: "Unpack[ClassifyOptions]"
    ) -> "Iterator[ClassificationResult]": ...
    def classify(
        self,
        images: Images,
        *,
        invert: bool = False,
        locations: Sequence[Place] | None = None,
        unreadable: list[str] | None = None,
    ) -> Any:
        """Classify an image, or each of several. A model that takes glimpses sees an image of any size as it is; others
        see it resized to fit. An array of uint8 (Y, X), also in a file (.npy), may be larger than memory. Returns a
        `ClassificationResult` with `label`, its `name`, `probabilities` (T, N) after each glimpse and `locations` (T,
        2), or a list of them. Samples depend only on the seed of the run, not on other images.

        invert: swap black and white.
        locations: where to take the glimpses instead: one place for each glimpse, from the first on, (x, y) in [-1, 1]
            or, for DRAW, a box (x0, y0, x1, y1). The model itself chooses those that are None or left out.
        """
        self.check("classify")
        from vision_attn.data.images.lazy import Inverted, open_pixels, resized
        from vision_attn.data.labelled.labelled_images import LabelledImages
        from vision_attn.results.classified import ClassificationResult

        source = self.source if isinstance(self.source, LabelledImages) else None

        def read(image: Picture) -> Any:
            if isinstance(image, FILES):
                return open_pixels(image) if source is None else source.open(image)
            if source is None and isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 2:
                return image  # as it is: it may be mapped from a file larger than memory
            picture = whole(image)
            if source is None or source.side is None:
                return np.array(picture)
            return resized(picture, source.side, source.square)

        def answer(file: str, pixels: Any) -> Any:
            seen = self.task.seen(Inverted(pixels) if invert else pixels)
            (classified,) = self.task.answer(seen, self.seed, given)
            view = classified.view and type(classified.view)(*(tensor[0].cpu() for tensor in classified.view))
            where = None if classified.glance.locations is None else classified.glance.locations[0, 0].cpu()
            after = classified.glance.log_prob[0].exp().mean(dim=0).cpu()
            return ClassificationResult(file, seen, after, where, view, self.task.class_names)

        model = self.task.model
        given = None
        if locations is not None:
            given = glimpse_places(locations, model.num_glimpses, model.place_numbers, self.name).to(self.device)
        return results_of(
            images,
            read,
            lambda some: [answer(*item) for item in some],
            unreadable=unreadable,
            within=lambda: self.turn,
        )

    @torch.no_grad()
    def draw(self, number: int = 16, *, steps: int | None = None, seed: int = 0) -> "DrawnImages":
        """Draw new images. Returns a `DrawnImages` with `images` (N, C, Y, X).

        number: the number of images.
        steps: the number of time steps; by default as in training.
        """
        self.check("draw")
        from vision_attn.results.classified import DrawnImages
        from vision_attn.tasks.generate import pictures, rectangles

        with self.turn:
            drawing = self.task.model.sample(number, steps, torch.Generator().manual_seed(seed))
            return DrawnImages(pictures(drawing.canvases).cpu(), rectangles(self.task.model.write, drawing.writes))

    def check(self, verb: str) -> None:
        """Raise UserError unless the task has this verb."""
        if (can := self.task.verb) != verb:
            hint = f": use {can}(), or on the command line vision-attn {can}" if can else ""
            raise UserError(f"{self.name} holds a {self.task.kind}, which {UNABLE[verb]}{hint}")

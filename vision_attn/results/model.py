"""A trained run, opened: what the Python API, the commands and the page ask of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from vision_attn.decode import Strategy
from vision_attn.results.answering import Answers
from vision_attn.results.captioned import Asked, captioned
from vision_attn.results.decoded import CaptionResult, TranscriptResult
from vision_attn.results.glimpse_places import Place, glimpse_places
from vision_attn.results.images import FILES, Picture, whole
from vision_attn.results.result_list import Images, ResultList, each
from vision_attn.system.errors import UserError
from vision_attn.system.locks import Turn
from vision_attn.task import Source
from vision_attn.tasks.steering import Attend, Wanted

if TYPE_CHECKING:
    from vision_attn.results.classified import ClassificationResult, DrawnImages
    from vision_attn.results.explained import ExplanationResult
    from vision_attn.results.faithfulness import MeasureResult

UNABLE = {
    "caption": "writes no captions",
    "transcribe": "transcribes no lines",
    "classify": "classifies no images",
    "draw": "draws no images",
    "answer": "answers no questions",
}
"""What is said of a task without this verb."""


class Model(Answers):
    """A trained run. Which of `caption`, `look`, `transcribe`, `classify`, `draw` and `answer` works: its task says.

    Images are a file (its name, its bytes, or open), a PIL image or an array, whose result is returned; a list of
    them, for a list of results; or an iterator, for an iterator of results, which reads ahead but keeps nothing. Of a
    list and of an iterator, images that cannot be read raise UserError, or, with a list as `unreadable`, are left out,
    and their messages are appended to it. The `file` of a result says which image it is of.

    Threads may share it: images are read at the same time, and the model answers one call after the other.
    """

    task: Any
    """A `Captioning`, `PretrainedCaptioning`, `Transcription`, `Classification`, `Generation` or `Answering`."""
    source: Any
    """The `Source` of its data; None of a captioner of transformers."""

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
        """Held while the model computes."""

    def __repr__(self) -> str:
        return f"<vision_attn model: {type(self.task).__name__}, {type(self.task.model).__name__}, on {self.device}>"

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config.get("run", {}).get("seed", 0))

    def choose_threads(self) -> None:
        """On a CPU, let the first calls find out whether the model is faster in one of torch's threads or in all of
        them, and the others use it. During each call this sets the number of threads of the whole process, so only
        programs whose threads compute nothing else may ask for it, as the commands do."""
        self.turn.try_threads(self.device)

    @overload
    def caption(
        self,
        images: Picture,
        *,
        captions: None = ...,
        strategy: Strategy = ...,
        seed: int | None = ...,
        placed: bool = ...,
        unreadable: list[str] | None = ...,
        attend: Attend | None = ...,
        strength: float | int = ...,
        **settings: int | float | str,
    ) -> CaptionResult: ...
    @overload
    def caption(
        self,
        images: Picture,
        *,
        captions: int,
        strategy: Strategy = ...,
        seed: int | None = ...,
        placed: bool = ...,
        unreadable: list[str] | None = ...,
        attend: Attend | None = ...,
        strength: float | int = ...,
        **settings: int | float | str,
    ) -> ResultList[CaptionResult]: ...
    @overload
    def caption(
        self,
        images: Sequence[Picture],
        *,
        captions: None = ...,
        strategy: Strategy = ...,
        seed: int | None = ...,
        placed: bool = ...,
        unreadable: list[str] | None = ...,
        attend: Attend | None = ...,
        strength: float | int = ...,
        **settings: int | float | str,
    ) -> ResultList[CaptionResult]: ...
    @overload
    def caption(
        self,
        images: Sequence[Picture],
        *,
        captions: int,
        strategy: Strategy = ...,
        seed: int | None = ...,
        placed: bool = ...,
        unreadable: list[str] | None = ...,
        attend: Attend | None = ...,
        strength: float | int = ...,
        **settings: int | float | str,
    ) -> ResultList[ResultList[CaptionResult]]: ...
    @overload
    def caption(
        self,
        images: Iterator[Picture],
        *,
        captions: None = ...,
        strategy: Strategy = ...,
        seed: int | None = ...,
        placed: bool = ...,
        unreadable: list[str] | None = ...,
        attend: Attend | None = ...,
        strength: float | int = ...,
        **settings: int | float | str,
    ) -> Iterator[CaptionResult]: ...
    @overload
    def caption(
        self,
        images: Iterator[Picture],
        *,
        captions: int,
        strategy: Strategy = ...,
        seed: int | None = ...,
        placed: bool = ...,
        unreadable: list[str] | None = ...,
        attend: Attend | None = ...,
        strength: float | int = ...,
        **settings: int | float | str,
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

        captions: return a list of this number of captions of each image, best first. strategy: "best" of one beam, the
            best of groups of beams that differ ("diverse"), or "sampled". seed: of samples.
        placed: whether `extent` tells where maps lie on the image; measured once, which takes as long as encoding 16 to
            48 images.
        attend: where to look for words instead, such as {3: (0.3, -0.2)}. Words count from 1, the end included; a key
            is a number or (first, last). A place is a point (x, y), spread over its four nearest regions, a box (x0,
            y0, x1, y1) or a mask of weights (Y, X), by area; all in [-1, 1] of the whole photograph. Of films, a point
            or a box may end with a frame, from 1, and a mask is (F, Y, X). A mask of the shape of the maps (`alpha[t]`)
            is one of them; in (K, Y, X), as `described.heads[t]`, each attention head has its own, or keeps it where
            that is all 0. strength: how much of the map is that place, from 0 to 1; the rest is the model's own map.
        settings: of decoding, for this call alone: beams, max_words, min_words, no_repeat, length_power, diversity,
            temperature, top_p, and for captioners of transformers prompt. What they mean: docs/captioning.md.
        """
        self.check("caption")
        if captions is None and strategy == "diverse":
            raise UserError("captions that differ are several: give their number as captions")
        if seed is not None and strategy != "sampled":
            raise UserError(f'a seed is of sampled captions: give strategy="sampled", not {strategy!r}')
        wanted = None if attend is None else Wanted(attend, strength, self.task.decoding.changed(**settings).max_words)
        asked = Asked(captions, strategy, seed, placed, wanted, settings)
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
        """Where a captioner, or a classifier of whole photographs, looked: see `Explainer.look`."""
        from vision_attn.results.explainer import explainer_of_run

        explainer = explainer_of_run(self.task, self.source, self.name, self.device, self.turn)
        return explainer.look(images, text, **options)

    def intervene(self, images: Images, text: str | Sequence[str] | None = None, **options: Any) -> Any:
        """The answer of a classifier of whole photographs without attention to a box: see `Explainer.intervene`."""
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

        images: None for the first `number` test images of a run on drawn scenes or digits, whose boxes are known.
        text: the class to explain, of a classifier that sees whole images.
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
    def transcribe(
        self, images: Picture, *, placed: bool = ..., unreadable: list[str] | None = ...
    ) -> "TranscriptResult": ...
    @overload
    def transcribe(
        self, images: Sequence[Picture], *, placed: bool = ..., unreadable: list[str] | None = ...
    ) -> "ResultList[TranscriptResult]": ...
    @overload
    def transcribe(
        self, images: Iterator[Picture], *, placed: bool = ..., unreadable: list[str] | None = ...
    ) -> "Iterator[TranscriptResult]": ...
    def transcribe(self, images: Images, *, placed: bool = True, unreadable: list[str] | None = None) -> Any:
        """Transcribe an image of a line of characters, or each of several, independently of the others. Returns a
        `TranscriptResult` whose `words` are the characters, or a list of them. placed: as for `caption`, and whether
        glimpses are kept for pictures."""
        self.check("transcribe")
        from vision_attn.data.lines.text_lines import ink, max_width_of

        resolution, max_width = self.task.resolution, max_width_of(self.source)
        return each(
            images,
            lambda image: ink(whole(image, at_least=None), resolution, max_width),
            lambda some: [
                TranscriptResult(file, self.task.strip(line, Path(file).name, glimpses=placed)) for file, line in some
            ],
            unreadable=unreadable,
            within=lambda: self.turn,
        )

    @overload
    def classify(
        self,
        images: Picture,
        *,
        invert: bool = ...,
        locations: Sequence[Place] | None = ...,
        unreadable: list[str] | None = ...,
    ) -> "ClassificationResult": ...
    @overload
    def classify(
        self,
        images: Sequence[Picture],
        *,
        invert: bool = ...,
        locations: Sequence[Place] | None = ...,
        unreadable: list[str] | None = ...,
    ) -> "ResultList[ClassificationResult]": ...
    @overload
    def classify(
        self,
        images: Iterator[Picture],
        *,
        invert: bool = ...,
        locations: Sequence[Place] | None = ...,
        unreadable: list[str] | None = ...,
    ) -> "Iterator[ClassificationResult]": ...
    def classify(
        self,
        images: Images,
        *,
        invert: bool = False,
        locations: Sequence[Place] | None = None,
        unreadable: list[str] | None = None,
    ) -> Any:
        """Classify an image, or each of several: a model that takes glimpses sees an image of any size as it is, others
        see it resized to fit. An array of uint8 (Y, X), or a file of one (.npy), may be larger than memory. Returns a
        `ClassificationResult` with `label`, its `name`, `probabilities` (T, N) after each glimpse and `locations`
        (T, 2), or a list of them. What is sampled depends on the seed of the run alone, and not on other images.

        invert: swap black and white.
        locations: where to look instead of where the model would: one for each glimpse, from the first on, (x, y) in
            [-1, 1] or, of DRAW, a box (x0, y0, x1, y1); None, and those that are left out, are the model's own.
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
            (found,) = self.task.answer(seen, self.seed, given)
            view = found.view and type(found.view)(*(part[0].cpu() for part in found.view))
            where = None if found.glance.locations is None else found.glance.locations[0, 0].cpu()
            after = found.glance.log_prob[0].exp().mean(dim=0).cpu()
            return ClassificationResult(file, seen, after, where, view, self.task.class_names)

        given = None if locations is None else glimpse_places(self.task.model, locations, self.name).to(self.device)
        return each(
            images,
            read,
            lambda some: [answer(*one) for one in some],
            unreadable=unreadable,
            within=lambda: self.turn,
        )

    @torch.no_grad()
    def draw(self, number: int = 16, *, steps: int | None = None, seed: int = 0) -> "DrawnImages":
        """Draw new images. `steps`: time steps, by default as trained. Returns a `DrawnImages` with `images` (N, C, Y,
        X)."""
        self.check("draw")
        from vision_attn.results.classified import DrawnImages
        from vision_attn.tasks.generate import pictures, rectangles

        with self.turn:
            drawing = self.task.model.sample(number, steps, torch.Generator().manual_seed(seed))
            return DrawnImages(pictures(drawing.canvases).cpu(), rectangles(self.task.model.write, drawing.writes))

    def check(self, verb: str) -> None:
        """Raise UserError unless this is what the task does."""
        if (can := self.task.verb) != verb:
            hint = f": use {can}(), or on the command line vision-attn {can}" if can else ""
            raise UserError(f"{self.name} holds a {self.task.kind}, which {UNABLE[verb]}{hint}")

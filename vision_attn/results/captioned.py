"""`captioned`, the work of `Model.caption`: read images, caption them in batches, and make their results."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from vision_attn.contracts import DecodedCaption
from vision_attn.data.films.files import film_input, open_film
from vision_attn.data.images.squares import seen_extent
from vision_attn.decode import Strategy
from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.results.decoded import CaptionResult
from vision_attn.results.images import Picture, encoded, whole
from vision_attn.results.result_list import BATCH, Images, ResultList, results_of
from vision_attn.system.locks import DRAWING, RandomStream, Turn
from vision_attn.tasks.steering import Wanted


@runtime_checkable
class _Captioner(Protocol):
    """The part of a `Model` that captioning needs."""

    task: Any
    name: str
    device: torch.device
    turn: Turn


class CaptionRequest(NamedTuple):
    """The options of `Model.caption`, which describes them."""

    captions: int | None
    strategy: Strategy
    seed: int | None
    placed: bool
    wanted: Wanted | None
    settings: dict[str, Any]


class _ReadImage(NamedTuple):
    """An image as it was given, and the model's input."""

    image: Picture
    pixels: Any
    times: list[float] | None = None
    """The moments of a film's frames, in seconds; None for other images."""
    seen: Extent = WHOLE
    """The part of the photograph that the model sees; known if the model is steered."""


def captioned(model: _Captioner, images: Images, asked: CaptionRequest, unreadable: list[str] | None) -> Any:
    """Caption images. Return a result, or a list or an iterator of results; see `Model.caption`."""
    task = model.task
    decoding = task.decoding.changed(**asked.settings) if asked.settings else None

    def answer(some: Sequence[tuple[str, _ReadImage]]) -> list[Any]:
        pixels: Any = [read.pixels for _, read in some]
        pixels = pixels if task.resolution is None else torch.stack(pixels).to(model.device)
        options: dict[str, Any] = {"placed": asked.placed}
        if asked.wanted is not None:
            options["steering"] = task.steering(asked.wanted, [read.seen for _, read in some])
        number = 1 if asked.captions is None else asked.captions
        described = task.describe(pixels, number, asked.strategy, decoding, **options)

        def result(file: str, read: _ReadImage, caption: DecodedCaption) -> CaptionResult:
            way = task.way + steered_at(caption.steered)
            return CaptionResult(file, read.image, caption, task.fit, task.frames, read.times, model.name, way)

        results = [
            ResultList(result(file, read, caption) for caption in several)
            for (file, read), several in zip(some, described, strict=True)
        ]
        return [several[0] for several in results] if asked.captions is None else results

    def read(image: Picture) -> _ReadImage:
        cropped = asked.wanted is not None and task.fit == "centre"
        if task.frames > 1:
            film = open_film(image, task.frames, task.resolution)
            seen = seen_extent(*film[0].size, task.fit) if cropped else WHOLE
            return _ReadImage(image, film_input(film, task.resolution, task.fit), film.times, seen)
        seen = seen_extent(*whole(image).size, task.fit) if cropped else WHOLE
        return _ReadImage(image, encoded(image, task.resolution, task.fit), None, seen)

    stream = None if asked.seed is None else RandomStream(asked.seed, model.device)

    @contextmanager
    def within() -> Iterator[None]:
        drawing = stream.going_on() if stream else DRAWING if asked.strategy == "sampled" else nullcontext()
        with model.turn, drawing:
            yield

    return results_of(images, read, answer, unreadable=unreadable, size=BATCH, within=within)


def steered_at(words: Sequence[int]) -> str:
    """Return the end of the description of a caption's maps, which names the steered words; empty if there are none.

    words: the numbers of the steered words, from 1.
    """
    if not words:
        return ""
    return f", but a chosen place at {'word' if len(words) == 1 else 'words'} {', '.join(map(str, words))}"

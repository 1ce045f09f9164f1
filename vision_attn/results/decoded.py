"""The results of captioning photographs and transcribing lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.contracts import DecodedCaption, Fit
from vision_attn.data.films.files import open_film, strip
from vision_attn.geometry.extents import WHOLE
from vision_attn.results.displayable import InteractiveResult
from vision_attn.results.images import Picture, around, pictured
from vision_attn.viz.alignment import Strip, Transcribed, write_alignments, write_transcripts
from vision_attn.viz.captions import write_item
from vision_attn.viz.foveated import GlimpseTrace
from vision_attn.viz.page import PageItem, write_page


class DecodedResult(InteractiveResult):
    """The words that a captioner decoded from a photograph, or a reader from a line."""

    unit = "word"
    described: DecodedCaption | Transcribed

    @property
    def text(self) -> str:
        return self.described.text

    @property
    def cut(self) -> bool:
        """Whether the text was cut at `max_words`, before its end."""
        return self.described.cut

    def record(self, *, maps: bool = False) -> dict[str, Any]:
        """Return each word (or character) with its `log_prob` in nats, None if it is unknown. With `maps`, also its
        `map`, a table of weights that sum to 1, and the `extent` of the maps on the image: their left, top, right and
        bottom edges, from -1 to 1."""
        log_prob: Sequence[float | None] = self.log_prob or [None] * len(self.words)
        words: list[dict[str, Any]] = [
            {self.unit: word, "log_prob": number} for word, number in zip(self.words, log_prob, strict=True)
        ]
        record: dict[str, Any] = {f"{self.unit}s": words}
        if maps:
            for number, word in enumerate(words):
                word["map"] = None if self.alpha is None else self.alpha[number].tolist()
            record["extent"] = list(self.extent)
        return record


@dataclass(repr=False)
class CaptionResult(DecodedResult):
    """A photograph with its caption."""

    file: str
    image: Picture
    """The image as it was given. A file is read again when `picture` is first used."""
    described: DecodedCaption
    fit: Fit
    frames: int = 1
    """The number of frames of a film; 1 for a photograph."""
    times: list[float] | None = None
    """The times of the frames of a film, in seconds from its beginning; None for a photograph and for a folder of
    frames."""
    model: str = ""
    """The name of the model."""
    way: str = ""
    """The method that made the maps."""

    @cached_property
    def picture(self) -> Image.Image:
        """The picture that the model saw: the photograph in its own shape, its centre square, or the frames of a film
        side by side."""
        return (
            pictured(self.image, self.fit) if self.frames == 1 else strip(open_film(self.image, self.frames), self.fit)
        )

    def record(self, *, maps: bool = False) -> dict[str, Any]:
        """Return the record with `score`, which orders the captions of an image; `times` of the frames of a film; and
        `steered`, if words were steered."""
        record: dict[str, Any] = {"caption": self.text, "score": self.score, "cut": self.cut}
        record |= {"times": self.times} if self.frames > 1 else {}
        record |= {"steered": [*self.steered]} if self.steered else {}
        return record | super().record(maps=maps)

    @property
    def score(self) -> float | None:
        """The score that orders the captions of an image, in nats: log p of all words and the end; for a beam divided
        by their number to the power `length_power`. None if nothing was decoded."""
        return self.described.score

    @property
    def steered(self) -> Sequence[int]:
        """The numbers of the words, from 1, at which the model was steered; see `Model.caption`."""
        return self.described.steered

    @property
    def page_item(self) -> PageItem:
        options: dict[str, Any] = {"log_prob": self.log_prob or None, "regions": self.described.region}
        options |= {"frames": self.frames, "content": self.described.content}
        picture, seen = (self.picture, WHOLE) if self.frames > 1 else around(self.image, self.fit)
        extent = self.extent.within(seen)
        return PageItem(self.title, picture, self.words, self.alpha, extent=extent, seen=seen, **options)

    def write_picture(self, path: Path, **view: Any) -> None:
        write_item(path, self.page_item._replace(title=self.of_picture), **view)


@dataclass(repr=False)
class TranscriptResult(DecodedResult):
    """A line with its transcript, whose `words` are the characters. A model that labels columns (CTC) has no
    `log_prob`."""

    file: str
    strip: Strip
    """A strip with one item."""

    unit = "character"

    @property
    def picture(self) -> Image.Image:
        """The whole line."""
        return self.strip.picture

    @property
    def described(self) -> Transcribed:
        return self.strip.items[0]

    @property
    def glimpses(self) -> GlimpseTrace | None:
        """The glimpses up to END: `locations` (T, 2) in [-1, 1], and `probabilities` (T, V) of each of the characters
        `names` if it were predicted after this glimpse. None if the model takes no glimpses or they were not kept."""
        return self.described.glimpses

    @property
    def answers(self) -> list[str]:
        """The likeliest character after each glimpse."""
        trace = self.glimpses
        if trace is None or trace.probabilities is None:
            return []
        return [trace.named(number) for number in trace.probabilities.argmax(dim=1).tolist()]

    @property
    def entropy(self) -> Float[Tensor, "T"] | None:
        """The entropy of the character after each glimpse, in nats: how undecided the model still was."""
        return None if self.glimpses is None else self.glimpses.entropy

    def record(self, *, maps: bool = False) -> dict[str, Any]:
        """Return the record with `glimpses`, if they were kept: the `location` (x, y), from -1 to 1, the `answer`,
        which is the likeliest character after this glimpse, and its `entropy` in nats."""
        record: dict[str, Any] = {"text": self.text} | super().record(maps=maps)
        if self.glimpses is not None and self.entropy is not None:
            taken = zip(self.glimpses.locations.tolist(), self.answers, self.entropy.tolist(), strict=True)
            record["glimpses"] = [
                {"location": location, "answer": answer, "entropy": entropy} for location, answer, entropy in taken
            ]
        return record

    @property
    def page_item(self) -> PageItem:
        return PageItem(self.title, self.picture, self.words, self.alpha, log_prob=self.log_prob, extent=self.extent)

    @classmethod
    def write_together(cls, path: Path, results: Sequence["TranscriptResult"], **view: Any) -> None:
        items = [result.page_item for result in results]
        write_page(path, items, title="Where each character looked", unit="character", **view)

    @classmethod
    def write_folder(cls, folder: Path, results: Sequence["TranscriptResult"], **view: Any) -> Path:
        return write_transcripts([result.strip for result in results], folder)[0]

    def write_picture(self, path: Path, **view: Any) -> None:
        write_alignments(path, self.strip.picture, self.strip.items)

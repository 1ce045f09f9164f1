"""The results of questions about stories and images: the answer, and the sentences or regions that each hop read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.contracts import Fit
from vision_attn.results.displayable import Displayable, InteractiveResult, origin_of
from vision_attn.results.images import Picture, around, pictured
from vision_attn.system.errors import UserError
from vision_attn.viz.memory_hops import (
    AnsweredImage,
    AnsweredStory,
    hops_item,
    write_hops_page,
    write_hops_sheet,
    write_story_hops,
)
from vision_attn.viz.page import PageItem

SHOWN = 3
"""The number of regions of a hop that `reading` shows."""
LEAST = 0.005
"""The smallest weight of a sentence that is shown."""


@dataclass(repr=False)
class AnswerResult(Displayable):
    """The answer to a question, with the weights of each hop: `StoryAnswer` or `SceneAnswer`."""

    file: str
    """The name of the file or the image; "story" for a story given as text."""
    described: AnsweredStory | AnsweredImage
    distribution: Float[Tensor, "V"]
    names: Sequence[str]
    """The words of the vocabulary, in order."""
    scored: bool
    """Whether `alpha` holds scores, which may be negative, from a model that still trains without the softmax of its
    hops."""
    unknown: Sequence[str]
    """The words of the question, and of a story, that the model does not know."""
    model: str = ""
    """The name of the model."""

    @property
    def question(self) -> str:
        return self.described.question

    @property
    def text(self) -> str:
        """The answer, one word."""
        return self.described.said

    @property
    def probability(self) -> float:
        """The probability of the answer."""
        return self.described.probability

    @property
    def probabilities(self) -> Float[Tensor, "V"]:
        """The probability of each word as the answer, in the order of `names`."""
        return self.distribution

    @property
    def alpha(self) -> Float[Tensor, "K L"] | Float[Tensor, "K Y X"]:
        """The weight of each sentence of a story, in its order, or of each region of an image, in each of K hops."""
        return self.described.alpha

    @property
    def reading(self) -> list[str]:
        """Return the sentences or regions that each hop read, as lines for a terminal."""
        raise NotImplementedError

    def record(self, *, maps: bool = False) -> dict[str, Any]:
        """Return the question, the answer with its probability, the `unknown` words, and for each hop the sentence or
        region with the largest weight.

        maps: whether to add all weights of each hop.
        """
        read = [{"fact": fact, "weight": weight} for fact, weight in self._most()]
        fields = {"question": self.question, "answer": self.text, "probability": self.probability, "read": read}
        fields |= {"unknown": list(self.unknown), "scored": self.scored}
        return fields | ({"hops": self.alpha.tolist()} if maps else {})

    def arrays(self) -> dict[str, np.ndarray]:
        """Return `maps` (K, L) or (K, Y, X), the weight of each sentence or region in each hop; `probabilities` (V) of
        the words `names` (V); `text` and `question` ()."""
        return {
            "maps": self.alpha.numpy(),
            "probabilities": self.probabilities.numpy(),
            "names": np.array([*self.names], dtype=np.str_),
            "text": np.array(self.text),
            "question": np.array(self.question),
        }

    @classmethod
    def write_together(cls, path: Path, results: Sequence[Any], **view: Any) -> None:
        """Write one page of several results. view: `overlay` and `scale`, for images."""
        raise NotImplementedError

    def write_page(self, path: Path, **view: Any) -> None:
        self.write_together(path, [self], **view)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.question} {self.text}, p {self.probability:.2f}>"

    def _most(self) -> Iterator[tuple[Any, float]]:
        """Yield the sentence or region with the largest weight in each hop, and this weight."""
        raise NotImplementedError


@dataclass(repr=False)
class StoryAnswer(AnswerResult):
    """The answer to a question about a story. It has a page and arrays, but no picture."""

    described: AnsweredStory

    @property
    def facts(self) -> Sequence[str]:
        """The sentences that the model read, in the order of the story."""
        return self.described.facts

    @property
    def alpha(self) -> Float[Tensor, "K L"]:
        return self.described.alpha[:, : len(self.facts)].flip(1)

    @property
    def reading(self) -> list[str]:
        """Return a line for each sentence, with its weight in each hop in percent, or its score."""
        heads = [f"hop {hop}" for hop in range(1, len(self.alpha) + 1)]
        wide = max(8 if self.scored else 5, *map(len, heads))
        lines = [" ".join(f"{head:>{wide}}" for head in heads)]
        for fact, weights in zip(self.facts, self.alpha.T.tolist(), strict=True):
            numbers = " ".join(f"{self._number(weight):>{wide}}" for weight in weights)
            lines.append(f"{numbers}  {fact}")
        return lines

    def _number(self, weight: float) -> str:
        if self.scored:
            return f"{weight:+.2f}"
        return f"{100 * weight:.0f}%" if weight >= LEAST else "."

    def _most(self) -> Iterator[tuple[str, float]]:
        for weights in self.alpha:
            place = int(weights.abs().argmax())
            yield self.facts[place], float(weights[place])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return also `facts` (L), the sentences."""
        return super().arrays() | {"facts": np.array([*self.facts], dtype=np.str_)}

    @classmethod
    def write_together(cls, path: Path, results: Sequence["StoryAnswer"], **view: Any) -> None:
        if view:
            raise UserError(f"{', '.join(view)} applies to maps on pictures, and a story has none")
        write_story_hops(path, [result.described for result in results], scored=results[0].scored, chosen=False)

    @classmethod
    def write_folder(cls, folder: Path, results: Sequence["StoryAnswer"], **view: Any) -> Path:
        """Write index.html. Returns its path."""
        cls.write_together(folder / "index.html", results, **view)
        return folder / "index.html"

    def write_picture(self, path: Path, **view: Any) -> None:
        raise UserError(f"{path}: a story has no picture: save its page (.html) or its arrays (.npz)")

    def _repr_png_(self) -> None:
        """Return None, so that a notebook shows the page."""


@dataclass(repr=False)
class SceneAnswer(AnswerResult, InteractiveResult):
    """The answer to a question about an image. Its page, pictures and figures show a map for each hop."""

    described: AnsweredImage
    image: Picture = ""
    """The image as it was given."""
    fit: Fit = "centre"
    way: str = ""

    unit = "hop"

    @cached_property
    def picture(self) -> Image.Image:
        """The part of the image that the model saw."""
        return pictured(self.image, self.fit)

    @property
    def words(self) -> Sequence[str]:
        """The names of the hops."""
        return [f"hop {hop}" for hop in range(1, len(self.described.alpha) + 1)]

    @property
    def log_prob(self) -> None:
        return None

    @property
    def page_item(self) -> PageItem:
        picture, seen = around(self.image, self.fit)
        extent = self.described.extent.within(seen)
        shown = self.described._replace(picture=picture, extent=extent)
        return hops_item(self.title, shown, self.scored)._replace(seen=seen)

    @property
    def reading(self) -> list[str]:
        """Return a line for each hop, with the regions of the largest weights, in percent, or of the largest absolute
        scores."""
        rows, columns = self.alpha.shape[1:]
        told = "; scores of any sign, since this model has no softmax" * self.scored
        lines = [f"regions: {rows} rows, {columns} columns, counted from the top left corner{told}"]
        for name, alpha in zip(self.words, self.alpha, strict=True):
            places = alpha.flatten().abs().topk(min(SHOWN, alpha.numel())).indices
            weights = alpha.flatten()[places]
            read = [
                f"{weight:+.2f}" * self.scored + f"{100 * weight:.0f}%" * (not self.scored)
                + f" row {place // columns + 1}, column {place % columns + 1}"
                for weight, place in zip(weights.tolist(), places.tolist(), strict=True)
                if self.scored or weight >= LEAST
            ]  # fmt: skip
            lines.append(f"{name}: {'; '.join(read)}")
        return lines

    def _most(self) -> Iterator[tuple[dict[str, int], float]]:
        for alpha in self.alpha:
            row, column = divmod(int(alpha.abs().argmax()), alpha.shape[1])
            yield {"row": row + 1, "column": column + 1}, float(alpha[row, column])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return also `extent` (4), where the maps lie on the picture."""
        return super().arrays() | {"extent": np.array(self.extent, dtype=np.float32)}

    @classmethod
    def write_together(cls, path: Path, results: Sequence["SceneAnswer"], **view: Any) -> None:
        items = [result.page_item for result in results]
        write_hops_page(path, items, scored=results[0].scored, origin=origin_of(results), **view)

    def write_picture(self, path: Path, **view: Any) -> None:
        write_hops_sheet(path, self.page_item, scored=self.scored, **view)

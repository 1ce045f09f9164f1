"""`ExplanationResult`: the explanation of a model's answer to a photograph, words with a map for each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.explain.explanation import Explanation
from vision_attn.geometry.extents import Extent
from vision_attn.metrics.function_words import content_marks, function_words_of
from vision_attn.results.displayable import InteractiveResult, origin_of
from vision_attn.system.word_spacing import joined
from vision_attn.viz.attention import write_sheet
from vision_attn.viz.page import GUIDE, KEYS, PageItem, Unit, write_page
from vision_attn.viz.page import P as P_OF_WORDS

TITLES = {
    "classifier": "What led to each answer",
    "matcher": "Where each text matches",
    "captioner": "Where each word looked",
    "encoder": "Where the model looks",
}
GUIDES = {
    "classifier": "Point at an answer, or tap it, to see what led to it.",
    "matcher": "Point at a text, or tap it, to see where the image matches it.",
    "encoder": "Point at the word below a picture, or tap it, to see the attention.",
}
UNITS: dict[str, Unit] = {"classifier": "answer", "matcher": "text", "encoder": "map"}
P = {
    "classifier": " p is the probability of an answer.",
    "matcher": " p is the probability of a text among all that were given.",
    "captioner": P_OF_WORDS["word"],
}
RANDOM = "The weights are random, so answers and maps mean nothing. "
DIALS = " The sliders show the attention of each layer and head."


@dataclass(repr=False)
class ExplanationResult(InteractiveResult):
    """A photograph with the words of a model (its answer, the texts to match, or its caption), each with a map."""

    file: str
    picture: Image.Image
    """The picture that the model saw, in its own shape: the photograph, or its centre square."""
    whole: Image.Image
    """The whole photograph."""
    seen: Extent
    """The part of the whole photograph that the model saw."""
    kind: str
    """"classifier", "encoder", "matcher" or "captioner"."""
    described: Explanation
    part: str = ""
    """The layer and the head whose attention was asked for, such as "layer 3, head 1"."""
    model: str = ""
    """The name of the model."""
    random: bool = False
    """Whether the weights of the model are random."""

    @property
    def layers(self) -> Float[Tensor, "T N K Y X"] | Sequence[Float[Tensor, "T _ _ _"]] | None:
        """The attention of K heads in each of N layers; a list of layers (T, K, Y, X) if they differ in size; None if
        they have no maps."""
        return self.described.layers

    @property
    def method(self) -> str:
        """How the maps were made: "attention", "rollout", "relevance" or "grad-cam"."""
        return self.described.method

    @property
    def likeliest(self) -> Sequence[tuple[str, float]]:
        """The five likeliest answers of a classifier with their probabilities, best first; empty for other models."""
        return self.described.likeliest

    @property
    def way(self) -> str:
        """The method, with the layer and the head."""
        return f"{self.method} of {self.part}" if self.part else self.method

    @property
    def origin(self) -> str:
        return super().origin + ", random weights" * self.random

    @property
    def text(self) -> str:
        """The answer of the model, in a line."""
        words, log_prob = self.words, self.log_prob
        if self.kind == "captioner":
            return joined(words)
        if log_prob is None:
            return ", ".join(words)
        return ", ".join(f"{word} ({math.exp(value):.2f})" for word, value in zip(words, log_prob, strict=True))

    @property
    def page_item(self) -> PageItem:
        options: dict[str, Any] = {
            "log_prob": self.log_prob,
            "layers": self.layers,
            "extent": self.extent.within(self.seen),
        }
        options |= {"layers_extent": self.described.layers_extent.within(self.seen), "seen": self.seen}
        if self.kind == "captioner":
            options["content"] = content_marks(self.words, None, function_words_of(self.text))
        else:
            options |= {"rest": int(np.argmax(self.log_prob)) if self.log_prob else 0, "answers": self.likeliest}
        return PageItem(self.title, self.whole, self.words, self.alpha, **options)

    @classmethod
    def write_together(cls, path: Path, items: Sequence["ExplanationResult"], **view: Any) -> None:
        class_name = items[0].kind
        dials = any(item.layers is not None for item in items)
        origin = origin_of(items) + (RANDOM if any(item.random for item in items) else "")
        told = P.get(class_name, "") if any(item.log_prob is not None for item in items) else ""
        guide = (
            (GUIDES[class_name] + KEYS if class_name in GUIDES else GUIDE.format("word"))
            + told
            + (DIALS if dials else "")
        )
        told_as: dict[str, Any] = {"title": TITLES[class_name], "guide": guide, "origin": origin}
        write_page(path, [item.page_item for item in items], unit=UNITS.get(class_name, "word"), **told_as, **view)

    def write_picture(self, path: Path, **view: Any) -> None:
        options: dict[str, Any] = {
            "title": f"{self.of_picture} · {self.way}",
            "log_prob": self.log_prob,
            "extent": self.extent.within(self.seen),
            "seen": self.seen,
            **view,
        }
        if self.kind != "captioner":
            options["caption"] = " · ".join(self.words)
        write_sheet(path, self.whole, self.words, self.alpha, **options)

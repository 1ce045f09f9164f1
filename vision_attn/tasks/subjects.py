"""The subjects of `vision-attn measure` for runs of this package: captioners, and classifiers that take glimpses or
read windows."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from vision_attn.contracts import Glimpses, Reads
from vision_attn.data.images.squares import encoder_input
from vision_attn.data.vocabulary import UNKNOWN
from vision_attn.explain.attributions import regions_of
from vision_attn.explain.captioners.generated_words import GeneratedWords
from vision_attn.explain.explained_models import ExplainedAnswer, Map, Subject
from vision_attn.explain.methods import EXTRA
from vision_attn.geometry.extents import Extent, middles
from vision_attn.geometry.places import RegionGrid
from vision_attn.system.errors import UserError
from vision_attn.tasks.caption import Captioning
from vision_attn.tasks.classify import Classification
from vision_attn.tasks.pretrained import PretrainedCaptioning
from vision_attn.tasks.word_control import WordControl

GRADIENTS = ("grad-cam", "layer-cam", *EXTRA, "score-cam")
SIDE = 224
"""The height and width in pixels of images for models that take any size."""


def subject_of_run(task: Any, name: str, device: torch.device, seed: int) -> Subject:
    """Return the subject of a run for `measure`. Raises UserError for tasks that do not answer images."""
    if isinstance(task, Captioning):
        check_photographs(task, name)
        return CaptionSubject(task, device)
    if isinstance(task, PretrainedCaptioning):
        return GeneratedWords(task.opened, task.decoding.prompt)
    if isinstance(task, Classification):
        return GlimpseSubject(task, device, seed)
    raise UserError(
        f"{name} holds a {task.kind}, and maps are measured of captioners and classifiers of images: vision-attn "
        f"eval {name} --show 8 draws what it sees"
    )


def check_photographs(task: Captioning, name: str) -> None:
    """Raise UserError for a captioner of films and for a reader of lines. The message says how to see its maps."""
    if task.unit != "image":
        command = f"transcribe {name} LINE" if task.unit == "line" else f"caption {name} FILM"
        raise UserError(
            f"{name} takes {task.unit}s, not photographs: vision-attn {command} --out look draws where it looked"
        )


class Word(NamedTuple):
    """A word of a caption, as the target of a measurement."""

    words: Int[Tensor, "T"]
    """The caption up to the word."""
    number: int


class CaptionSubject(Subject):
    """A captioner of this package. Images hold numbers from 0 to 255; gradients are those of the annotation vectors."""

    own = ("attention",)
    task: Captioning

    def __init__(self, task: Captioning, device: torch.device) -> None:
        self.task, self.module, self.device = task, task, device
        self.fit, self.index = task.fit, task.vocabulary.index

    def read(self, picture: Image.Image) -> Float[Tensor, "3 S S"]:
        return encoder_input(picture, self.task.resolution, "whole").float().to(self.device)

    @torch.no_grad()
    def questions(self, image: Float[Tensor, "3 S S"]) -> list[ExplainedAnswer]:
        (caption,) = self.task.describe(_bytes(image)[None], placed=False)
        ids = torch.tensor([self.index.get(word, UNKNOWN) for word in caption.words], dtype=torch.long)
        ids = ids.to(self.device)
        return [
            ExplainedAnswer(word, Word(ids[: number + 1], number), content)
            for number, (word, content) in enumerate(zip(caption.words, caption.content or (), strict=True))
        ]

    def methods(self, image: Float[Tensor, "3 S S"]) -> list[str]:
        own = (
            self.own
            if self._caption(self._regions(image[None]), self.questions(image)[0].target).alpha is not None
            else ()
        )
        return [*own, *GRADIENTS, "occlusion"]

    @torch.no_grad()
    def score(self, images: Float[Tensor, "N 3 S S"], target: Word) -> Float[Tensor, "N"]:
        return self.value(self._regions(images), target).exp()

    def controls(
        self,
        image: Float[Tensor, "3 S S"],
        questions: Sequence[ExplainedAnswer],
        boxes: Callable[[str], list[Any]],
        fill: Callable,
    ) -> list[list[float] | None] | None:
        asked = [question for question in questions if question.content]
        if not (self.task.model.steerable and asked):
            return None
        if not hasattr(self, "_control"):
            self._control = WordControl(
                self.task.model, RegionGrid(*self.task.encoder.grid, self._extent), self._regions
            )
        places = [question.target.number for question in asked]
        controls = self._control.of(
            image, questions[-1].target.words, places, [boxes(question.text) for question in asked], fill
        )
        return [None if control is None else [*control] for control in controls]

    def value(self, inputs: Float[Tensor, "N L D"], target: Word) -> Float[Tensor, "N"]:
        return self._caption(inputs, target).log_prob[:, 0, target.number]

    def inputs(self, image: Float[Tensor, "3 S S"]) -> Float[Tensor, "1 L D"]:
        return self._regions(image[None]).float()

    def pooled(self, attribution: Float[Tensor, "1 L D"]) -> Float[Tensor, "rows columns"]:
        return attribution.sum(dim=2)[0].unflatten(0, self.task.encoder.grid)

    def features(self, image: Float[Tensor, "3 S S"], target: Word) -> tuple[Tensor, Tensor]:
        regions = self.inputs(image).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self.value(regions, target).sum(), regions)
        grid = self.task.encoder.grid
        return regions.detach().mT.unflatten(2, grid), gradient.mT.unflatten(2, grid)

    def map(self, method: str, image: Float[Tensor, "3 S S"], target: Word) -> Map:
        if method == "attention":
            with torch.no_grad():
                alpha = self._caption(self._regions(image[None]), target).alpha[0, 0, target.number]
            weights = alpha.unflatten(0, self.task.encoder.grid)
        else:
            weights = self.weights(method, image, target)
        return Map(weights) if method == "occlusion" else Map(weights, self._extent)

    @property
    def _extent(self) -> Extent:
        if not hasattr(self, "_measured"):  # once: later weights may be random
            self._measured = self.task.encoder.extent()
        return self._measured

    @torch.no_grad()
    def _regions(self, images: Float[Tensor, "N 3 S S"]) -> Float[Tensor, "N L D"]:
        return self.task.regions(_bytes(images))

    def _caption(self, regions: Float[Tensor, "N L D"], target: Word) -> Any:
        return self.task.model(regions, target.words.expand(len(regions), 1, -1))


class GlimpseSubject(Subject):
    """A classifier of this package that takes glimpses or reads windows. Its map "glimpses" counts how often each place
    was in the finest patch of a glimpse, or in a window."""

    own = ("glimpses",)
    task: Classification

    def __init__(self, task: Classification, device: torch.device, seed: int) -> None:
        self.task, self.module, self.device, self.seed = task, task.model, device, seed
        channels, height, width = task.image_shape
        self.mode, self.size = "RGB" if channels == 3 else "L", (height or SIDE, width or SIDE)

    def read(self, picture: Image.Image) -> Float[Tensor, "C Y X"]:
        pixels = np.array(picture.convert(self.mode).resize(self.size[::-1], Image.Resampling.BICUBIC))
        image = torch.from_numpy(pixels.reshape(*self.size, -1)).permute(2, 0, 1)
        return image.float().to(self.device) / 255

    @torch.no_grad()
    def questions(self, image: Float[Tensor, "C Y X"]) -> list[ExplainedAnswer]:
        (answer,) = self.task.answer(image[None], self.seed)
        return [ExplainedAnswer(answer.name, int(answer.probabilities.argmax()))]

    def methods(self, image: Float[Tensor, "C Y X"]) -> list[str]:
        images = image[None].requires_grad_()
        with torch.enable_grad():
            value = self.value(images, 0).sum()
            (gradient,) = torch.autograd.grad(value, images, allow_unused=True) if value.requires_grad else (None,)
        by_gradient = [] if gradient is None else EXTRA  # RAM cuts glimpses without one
        return [*self.own, *by_gradient, "occlusion"]

    @torch.no_grad()
    def score(self, images: Float[Tensor, "N C Y X"], target: int) -> Float[Tensor, "N"]:
        return self._output(images).log_prob[:, :, -1, target].exp().mean(dim=1)

    def value(self, inputs: Float[Tensor, "N C Y X"], target: int) -> Float[Tensor, "N"]:
        return self._output(inputs).log_prob[:, :, -1, target].mean(dim=1)

    def map(self, method: str, image: Float[Tensor, "C Y X"], target: int) -> Map:
        return Map(self._seen_pixels(image) if method == "glimpses" else self.weights(method, image, target))

    @torch.no_grad()
    def _seen_pixels(self, image: Float[Tensor, "C Y X"]) -> Float[Tensor, "rows columns"]:
        images = image[None]
        glance = self._output(images)
        view = self.task.model.view(images, glance)
        if isinstance(view, Glimpses):
            half = torch.tensor([view.patches.shape[-1] / side for side in self.size[::-1]])
            centres = glance.locations[0, 0].cpu()
            boxes = torch.cat([centres - half, centres + half], dim=1)
        else:
            assert isinstance(view, Reads)
            boxes = view.boxes[0].cpu()
        rows, columns = regions_of(self.size)
        across, down = (
            ((at > low[:, None]) & (at < high[:, None])).float()
            for at, low, high in (
                (middles(4 * columns), boxes[:, 0], boxes[:, 2]), (middles(4 * rows), boxes[:, 1], boxes[:, 3])
            )
        )  # fmt: skip
        covered = down.mT @ across
        return covered.unflatten(1, (columns, 4)).unflatten(0, (rows, 4)).mean(dim=(1, 3))

    def _output(self, images: Float[Tensor, "N C Y X"]) -> Any:
        with self.task.seeded(self.seed):
            return self.task.model(images, **self.task.options(self.task.at_test))


def _bytes(images: Float[Tensor, "*rest 3 S S"]) -> Tensor:
    return images.round().clamp(0, 255).to(torch.uint8)

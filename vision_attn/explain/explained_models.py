"""`Subject`: the interface of a model for explaining and measuring its maps: answers, scores on changed images, and
maps.

`AnswerSubject` is a classifier, a matcher or an encoder of another library, or a classifier of this package that sees
whole images. `vision_attn.tasks.subjects` has captioners and classifiers that take glimpses.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.contracts import Fit
from vision_attn.explain.attributions import integrated_gradients, occlusion, regions_of, score_cam, smoothgrad
from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.explain.map_extents import reach_of
from vision_attn.explain.methods import EXTRA
from vision_attn.explain.recorded_answers import called, named, recorded, scores_of, texts_of, wanted
from vision_attn.explain.relevance import grad_cam, layer_cam
from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.system.errors import UserError

ATTRIBUTED = {"integrated-gradients": integrated_gradients, "smoothgrad": smoothgrad}
"""The function that computes each method of `EXTRA`."""


class ExplainedAnswer(NamedTuple):
    """An answer that a map explains: a class, a text, or a word of a caption."""

    text: str
    target: Any
    """The subject's own name for the answer, such as a class index."""
    content: bool = True
    """Whether the answer is measured; function words of a caption are not."""


class Map(NamedTuple):
    """A map of an image."""

    weights: Float[Tensor, "rows columns"]
    extent: Extent = WHOLE
    """Where the map lies on the image that the model takes."""


class Subject(ABC):
    """A model with the calls that explaining and measuring need. Images (C, Y, X) have the model's size and no batch
    axis."""

    module: nn.Module
    """The module whose weights are randomised."""
    own: tuple[str, ...] = ()
    """The names of methods that only this kind of model has."""
    fit: Fit = "centre"
    """The part of a picture that the model sees."""
    seen: Extent = WHOLE
    """The extent of the image on the part of the picture that `fit` names."""
    unit = "probability"
    """The name of the unit of scores."""
    random = False
    """Whether the weights are random, so that answers mean nothing."""
    turn: AbstractContextManager = nullcontext()
    """A lock that is held while the model computes, since its weights are random for a while: see `system.locks`."""

    @abstractmethod
    def read(self, picture: Image.Image) -> Float[Tensor, "C Y X"]:
        """Convert the part of a photograph that `fit` names to the input of the model."""

    @abstractmethod
    def questions(self, image: Float[Tensor, "C Y X"]) -> list[ExplainedAnswer]:
        """Return the answers that maps explain for this image."""

    @abstractmethod
    def score(self, images: Float[Tensor, "N C Y X"], target: Any) -> Float[Tensor, "N"]:
        """Return the score of an answer, such as its probability, for each of several changed images."""

    def methods(self, image: Float[Tensor, "C Y X"]) -> list[str]:
        """Return the names of the methods that work for this model, tried on one image, the cheapest first."""
        return [*self.own, "occlusion"]

    def weights(self, method: str, image: Float[Tensor, "C Y X"], target: Any) -> Float[Tensor, "rows columns"]:
        """Return the map of a method that is not one of `own`."""

        def score(images: Float[Tensor, "N C Y X"]) -> Float[Tensor, "N"]:
            return self.score(images, target)

        if method == "occlusion":
            return occlusion(score, image, regions_of(tuple(image.shape[1:])))
        if method in EXTRA:
            inputs = self.inputs(image)
            return self.pooled(ATTRIBUTED[method](lambda some: self.value(some, target), inputs))
        features, gradient = self.features(image, target)
        if method == "score-cam":
            return score_cam(score, image, features)
        return (grad_cam if method == "grad-cam" else layer_cam)(features, gradient)[0]

    def map(self, method: str, image: Float[Tensor, "C Y X"], target: Any) -> Map:
        """Return the map of a method, with its place on the image."""
        return Map(self.weights(method, image, target))

    def controls(
        self,
        image: Float[Tensor, "C Y X"],
        questions: Sequence[ExplainedAnswer],
        boxes: Callable[[str], list[Any]],
        fill: Callable,
    ) -> list[list[float] | None] | None:
        """Return for each measured question how often its answer becomes likelier when the model is steered to its
        place, and to a random place; None for a model that cannot be steered.

        boxes: a function from an answer to its boxes on the image.
        fill: fills removed regions of an image."""
        return None

    def inputs(self, image: Float[Tensor, "C Y X"]) -> Float[Tensor, "1 ..."]:
        """Return the tensor with respect to which gradients are taken: the image, or its annotation vectors."""
        return image[None]

    def value(self, inputs: Float[Tensor, "N ..."], target: Any) -> Float[Tensor, "N"]:
        """Return the score of an answer, before it becomes a probability, as a differentiable function of `inputs`."""
        raise NotImplementedError

    def pooled(self, attribution: Float[Tensor, "1 ..."]) -> Float[Tensor, "rows columns"]:
        """Convert an attribution of `inputs` to a map: the sum over channels, averaged over each region."""
        total = attribution.sum(dim=1)
        return F.adaptive_avg_pool2d(total, regions_of(tuple(total.shape[1:])))[0]

    def features(self, image: Float[Tensor, "C Y X"], target: Any) -> tuple[Tensor, Tensor]:
        """Return the map of features (1, D, Y, X) that CAMs take, and its gradient."""
        raise NotImplementedError


class AnswerSubject(Subject):
    """A model that answers with scores, or an encoder. The score of an encoder is the cosine similarity of its features
    with those of the unchanged image."""

    own = ("attention", "rollout", "attention-gradient", "relevance", "grad-cam", "layer-cam")
    model: OpenedModel

    def __init__(self, model: OpenedModel, texts: Sequence[str] = (), device: torch.device | None = None) -> None:
        """texts: the classes to explain, or the texts to match.
        device: the device of inputs; by default that of the weights.
        """
        self.model, self.module, self.texts, self.random = model, model.module, tuple(texts), model.random
        if model.kind == "matcher" and not texts:
            raise UserError("this model compares images with texts: give a text")
        self.device = device or next(model.module.parameters(), torch.empty(0)).device
        self.others = {key: value.to(self.device) for key, value in texts_of(model, texts).items()}
        reach = reach_of(model)
        if reach is None:
            raise UserError("this model takes an image in several pieces, which cannot be changed region by region")
        self.name, self.seen = reach.name, reach.extent
        self.rest = {key: value for key, value in reach.inputs.items() if key != reach.name}
        if model.kind == "encoder":
            self.unit = "likeness of features"

    def image(self, inputs: dict[str, Tensor]) -> Float[Tensor, "C Y X"]:
        """Return the image among the inputs of the model."""
        return inputs[self.name][0].to(self.device)

    def read(self, picture: Image.Image) -> Float[Tensor, "C Y X"]:
        return self.image(self.model.inputs(picture))

    def call(self, images: Float[Tensor, "N C Y X"]) -> Any:
        """Call the model on several images."""
        rest = {key: value.expand(len(images), *value.shape[1:]) for key, value in self.rest.items()}
        return called(self.model, {self.name: images, **rest, **self.others})

    def scores(self, images: Float[Tensor, "N C Y X"]) -> Float[Tensor, "N classes"]:
        """Return the scores of a classifier, or the similarities of a matcher."""
        scores = scores_of(self.call(images))
        if scores is None:
            raise UserError("this model returns no scores (B, N), so there is no answer to measure")
        return scores.float()

    @torch.no_grad()
    def questions(self, image: Float[Tensor, "C Y X"]) -> list[ExplainedAnswer]:
        if self.model.kind == "encoder":
            return [ExplainedAnswer("its features", _features(self.call(image[None]))[0])]
        scores = self.scores(image[None])
        if scores.shape[1] == 1:
            self.unit = "similarity" if self.model.kind == "matcher" else "score"
        answers = wanted(self.model, scores, self.texts)
        return [
            ExplainedAnswer(*pair)
            for pair in zip(named(self.model, scores, answers, self.texts)[0], answers, strict=True)
        ]

    @torch.no_grad()
    def score(self, images: Float[Tensor, "N C Y X"], target: Any) -> Float[Tensor, "N"]:
        if self.model.kind == "encoder":
            return F.cosine_similarity(_features(self.call(images)), target[None])
        scores = self.scores(images)
        return (scores if scores.shape[1] == 1 else scores.softmax(dim=1))[:, target]

    def value(self, inputs: Float[Tensor, "N C Y X"], target: Any) -> Float[Tensor, "N"]:
        return self.scores(inputs)[:, target]

    def methods(self, image: Float[Tensor, "C Y X"]) -> list[str]:
        answers = recorded(self.model, self._inputs(image))
        answers.explain(self.questions(image)[0].target if answers.scores is not None else 0)
        if answers.scores is None:
            return [*answers.methods(), "occlusion"]
        cams = ["score-cam"] if answers.activation.gradient is not None else []
        return [*answers.methods(), *EXTRA, *cams, "occlusion"]

    def weights(self, method: str, image: Float[Tensor, "C Y X"], target: Any) -> Float[Tensor, "rows columns"]:
        name, _, layer = method.partition(":")
        if name not in self.own:
            return super().weights(method, image, target)
        return self._explained(image, target).map(name, int(layer) if layer else None)[0]  # type: ignore[arg-type]

    def map(self, method: str, image: Float[Tensor, "C Y X"], target: Any) -> Map:
        weights = self.weights(method, image, target)
        if method.partition(":")[0] not in (*self.own, "score-cam"):
            return Map(weights)
        return Map(weights, self.extent(method, image, (weights.shape[0], weights.shape[1])))

    def extent(self, method: str, image: Float[Tensor, "C Y X"], size: tuple[int, int]) -> Extent:
        """Return where a map of the layers lies on the image; measured once for each method."""
        if not hasattr(self, "_extents"):
            self._extents: dict[str, Extent] = {}
        if method not in self._extents:
            explained = self._explained(image, 0)
            extent = explained.extents(size, method in ("grad-cam", "layer-cam", "score-cam"), self.others)[0]
            self._extents[method] = extent.seen_from(self.seen)
        return self._extents[method]

    def features(self, image: Float[Tensor, "C Y X"], target: Any) -> tuple[Tensor, Tensor]:
        return self._explained(image, target).features()

    def _explained(self, image: Float[Tensor, "C Y X"], target: Any) -> Any:
        answers = recorded(self.model, self._inputs(image))
        answers.explain(target if isinstance(target, int) else 0)
        return answers

    def _inputs(self, image: Float[Tensor, "C Y X"]) -> dict[str, Tensor]:
        return {self.name: image[None], **self.rest, **self.others}


def _features(output: Any) -> Float[Tensor, "N D"]:
    """Return the features of an encoder, one row for each image."""
    if not isinstance(output, Tensor):
        output = next(
            value for name in ("pooler_output", "last_hidden_state") if (value := output.get(name)) is not None
        )
    return output.float().flatten(1)

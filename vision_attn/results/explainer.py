"""`Explainer`: a model of another library, or a run of this package, whose answers are explained with maps.

`vision-attn look`, `vision_attn.load` and the web page all show their `ExplanationResult`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, overload

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from vision_attn.contracts import Classifier, Fit
from vision_attn.data.images.squares import encoder_input, seen_part
from vision_attn.explain.explanation import Explanation, chosen
from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.explain.look import look
from vision_attn.explain.recorded_answers import Method
from vision_attn.geometry.extents import Extent
from vision_attn.results.explained import ExplanationResult
from vision_attn.results.images import SIDE, Picture, around, shown, whole
from vision_attn.results.result_list import Images, ResultList, results_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import shipped
from vision_attn.system.locks import DRAWING, Turn
from vision_attn.task import Source
from vision_attn.tasks.caption import Captioning
from vision_attn.tasks.classify import Classification
from vision_attn.tasks.pretrained import PretrainedCaptioning
from vision_attn.tasks.subjects import check_photographs

if TYPE_CHECKING:
    from vision_attn.explain.intervention import Box, Intervention
    from vision_attn.results.faithfulness import MeasureResult

See = Callable[..., Explanation]
"""A function that explains a model's answer to a photograph, with the options of `vision_attn.explain.look.look`."""


class Explainer:
    """A model whose answers are explained: `look` returns maps of its answer, of a text, or of each of its words."""

    def __init__(
        self,
        name: str,
        kind: str,
        see: See,
        device: torch.device,
        *,
        at_least: int = SIDE,
        fit: Fit = "centre",
        model: OpenedModel | None = None,
        turn: Turn | None = None,
    ) -> None:
        self.name, self.kind, self.device, self.at_least = name, kind, device, at_least
        """The smallest side, in pixels, to which photographs may be reduced when they are read."""
        self._see, self._fit, self._model, self._turn = see, fit, model, turn or Turn()

    def __repr__(self) -> str:
        return f"<vision_attn model: {self.name}, {self.kind}, on {self.device}>"

    def __getattr__(self, name: str) -> Any:
        if name in ("caption", "classify", "transcribe", "draw"):
            raise AttributeError(f"{self.name} is not a run of this package, so it has no {name}: call look")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def choose_threads(self) -> None:
        """Choose the number of threads, like `Model.choose_threads`."""
        self._turn.try_threads(self.device)

    @overload
    def look(
        self,
        images: Picture,
        text: str | Sequence[str] | None = ...,
        *,
        layer: int | None = ...,
        head: int | None = ...,
        method: str = ...,
        unreadable: list[str] | None = ...,
    ) -> ExplanationResult: ...
    @overload
    def look(
        self,
        images: Sequence[Picture],
        text: str | Sequence[str] | None = ...,
        *,
        layer: int | None = ...,
        head: int | None = ...,
        method: str = ...,
        unreadable: list[str] | None = ...,
    ) -> ResultList[ExplanationResult]: ...
    @overload
    def look(
        self,
        images: Iterator[Picture],
        text: str | Sequence[str] | None = ...,
        *,
        layer: int | None = ...,
        head: int | None = ...,
        method: str = ...,
        unreadable: list[str] | None = ...,
    ) -> Iterator[ExplanationResult]: ...
    def look(
        self,
        images: Images,
        text: str | Sequence[str] | None = None,
        *,
        layer: int | None = None,
        head: int | None = None,
        method: str = "auto",
        unreadable: list[str] | None = None,
    ) -> Any:
        """Explain the model's answer to an image, or to each of several, with maps. `Model` describes the images.

        text: the text to match, the class to explain (by default the likeliest), or the beginning of the caption; or a
            list of them.
        layer, head: show the attention of this layer, and of this head; by default the mean of all.
        method: one of `explain.methods.METHODS`, such as "relevance", "rollout", "grad-cam" or "attention"; by default
            the one that fits the model.
        unreadable: a list that collects the messages of images that cannot be read: see `Model`.

        Returns an `ExplanationResult` with `text`, `words`, `alpha` (one map per word), `log_prob` and `layers`, or a
        list of them. Raises UserError for a method, layer or class that the model does not have.
        """
        if method not in get_args(Method):
            raise UserError(f"there is no method {method!r}; choose one of {', '.join(get_args(Method))}")
        texts = [text] if isinstance(text, str) else list(text or ())
        layers = ", ".join(f"{name} {n}" for name, n in (("layer", layer), ("head", head)) if n is not None)

        def explained(file: str, picture: Image.Image) -> ExplanationResult:
            with self._turn, DRAWING if method == "smoothgrad" else nullcontext():
                seen = self._see(picture, texts=texts, method=method, layer=layer, head=head)
            random = self._model is not None and self._model.random
            image, (photograph, extent) = shown(picture, self._fit), around(picture, self._fit)
            return ExplanationResult(file, image, photograph, extent, self.kind, seen, layers, self.name, random)

        read = partial(whole, at_least=self.at_least)
        return results_of(images, read, lambda some: [explained(*item) for item in some], unreadable=unreadable)

    def intervene(
        self,
        images: Images,
        text: str | Sequence[str] | None = None,
        *,
        without: "Box | None" = None,
        only: "Box | None" = None,
        layers: Sequence[int] | None = None,
        unreadable: list[str] | None = None,
    ) -> Any:
        """Answer with and without attention to the patches in a box (`without`), or to all others (`only`).

        without, only: (x0, y0, x1, y1) in [-1, 1] of the whole photograph.
        text, images, unreadable: as for `look`.
        layers: the layers in which attention is changed; by default all.

        Returns an `explain.intervention.Intervention` with `words`, `before` and `after`, their probabilities, or a
        list of them. Raises UserError for a model whose attention is not over patches, such as a convolutional one.
        """
        from vision_attn.explain.intervention import intervene

        model = self._model
        if model is None:
            raise UserError(
                f"{self.name} is a captioner of this package: make it look elsewhere with caption(attend=...)"
            )
        texts = [text] if isinstance(text, str) else list(text or ())

        def answered(file: str, picture: Image.Image) -> "Intervention":
            _, seen = around(picture, self._fit)
            boxes = {name: box and Extent(*box).seen_from(seen) for name, box in (("without", without), ("only", only))}
            square = seen_part(picture, self._fit)
            with self._turn:
                return intervene(model, square, **boxes, texts=texts, layers=layers)._replace(file=file)

        read = partial(whole, at_least=self.at_least)
        return results_of(images, read, lambda some: [answered(*item) for item in some], unreadable=unreadable)

    def measure(self, images: Images, text: str | Sequence[str] | None = None, **options: Any) -> "MeasureResult":
        """Measure whether the maps of this model are faithful: see `vision_attn.results.faithfulness.measure`."""
        from vision_attn.results.faithfulness import measure

        with self._turn:
            subject = self.subject([text] if isinstance(text, str) else text or ())
        return measure(subject, self.name, images, **options)

    def subject(self, texts: Sequence[str] = ()) -> Any:
        """Return the subject of `measure`: see `explain.explained_models`. Raises UserError for captioners."""
        from vision_attn.explain.explained_models import AnswerSubject

        if self._model is None:
            raise UserError(f"{self.name} is a captioner: its maps are measured by `load(...).measure`")
        subject = AnswerSubject(self._model, texts)
        subject.turn = self._turn
        return subject


def is_run_name(name: str | Path) -> bool:
    """Return whether `name` names a run, here or on the hub, or looks like a path and not like `library:name`."""
    path = Path(name)
    looks_like_one = path.is_absolute() or (len(path.parts) > 1 and ":" not in str(name))
    return str(name).startswith("hf:") or looks_like_one or os.path.isdir(shipped(name))


def explainer_of(model: OpenedModel, name: str, device: torch.device, turn: Turn | None = None) -> Explainer:
    """Return the explainer of a model of another library. Captioners see whole photographs, others the centre square.

    name: the name of the model, for results and messages.
    turn: the lock of the model, if other code computes with it, too.
    """
    fit: Fit = "whole" if model.kind == "captioner" else "centre"
    model = model.on(device)
    return Explainer(name, model.kind, lambda picture, **options: look(model, seen_part(picture, fit), **options),
                     device, fit=fit, model=model, turn=turn)  # fmt: skip


def explainer_of_run(
    task: Any, source: Source | None, name: str, device: torch.device, turn: Turn | None = None
) -> Explainer:
    """Return the explainer of a run. Raises UserError if the run does not see whole photographs.

    name: the name of the run, for results and messages.
    device: the device of the task.
    turn: the lock of the model, if other code computes with it, too.
    """
    if isinstance(task, PretrainedCaptioning):
        return explainer_of(task.opened, name, device, turn)
    if isinstance(task, Captioning):
        check_photographs(task, name)
        at_least = max(SIDE, 2 * task.resolution)
        describe = partial(_described, task, device)
        return Explainer(name, "captioner", describe, device, at_least=at_least, fit=task.fit, turn=turn)
    if not sees_photographs(task):
        instead = f"classify {name} IMAGE --out look" if isinstance(task, Classification) else f"eval {name} --show 8"
        raise UserError(
            f"{name} holds a {task.kind} that does not see whole photographs: vision-attn {instead} draws what it sees"
        )

    def inputs(picture: Image.Image) -> dict[str, Tensor]:
        return {"images": _pixels(picture, task.image_shape[1:]) / 255}

    names = tuple(getattr(source, "class_names", ()))
    return explainer_of(OpenedModel(_Scores(task.model), "classifier", inputs, names), name, device, turn)


def sees_photographs(task: Any) -> bool:
    """Return whether a task is a classifier that sees a whole photograph at once, not glimpses of it."""
    whole = isinstance(task, Classification) and type(task.model).view is Classifier.view
    return whole and task.image_shape[0] == 3 and 0 not in task.image_shape


class _Scores(nn.Module):
    """Adapts a classifier of this package to those of other libraries: images to scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "B 3 Y X"]) -> Float[Tensor, "B N"]:
        log_prob: Tensor = self.model(images).log_prob
        return log_prob[:, 0, -1]


def _pixels(picture: Image.Image, size: Sequence[int]) -> Tensor:
    """Return a picture as a batch of one image, from 0 to 255."""
    resized = picture.convert("RGB").resize((size[1], size[0]))
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)[None]


def _described(
    task: Captioning,
    device: torch.device,
    picture: Image.Image,
    *,
    texts: Sequence[str],
    method: Method,
    layer: int | None,
    head: int | None,
) -> Explanation:
    """Explain the caption that a captioner of this package decodes."""
    if method != "auto" or layer is not None or texts:
        raise UserError("the maps of a captioner of this package are its attention: leave method, layer and text out")
    (caption,) = task.describe(encoder_input(picture, task.resolution, task.fit)[None].to(device))
    if caption.alpha is None:
        raise UserError("this captioner has no attention, so there is nothing to look at")
    layers = None if caption.heads is None else caption.heads[:, None]
    if head is not None and layers is None:
        raise UserError("this captioner has a single head: leave --head out")
    alpha = caption.alpha if layers is None or head is None else chosen(layers, 0, head)
    return Explanation(caption.words, alpha, caption.log_prob, layers, "attention", caption.extent, caption.extent)

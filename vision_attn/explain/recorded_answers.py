"""Run a model on one image and record its scores, attention and features, from which the maps of its answers are
computed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.explain.attention_mode import AttentionRecord, RecordedAttention
from vision_attn.explain.explanation import chosen
from vision_attn.explain.libraries.opened_model import one_line
from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.explain.map_extents import extent_of_map, extent_of_picture, extent_of_tokens
from vision_attn.explain.map_placement import RANDOM, in_place, keys_of, once, unsteady
from vision_attn.explain.record import record_attention
from vision_attn.explain.relevance import Activation, activation_of, channels_first, grad_cam, layer_cam
from vision_attn.explain.tokens import NO_PRODUCT, ImageAttention, MapShapes, PatchGrid, map_shapes
from vision_attn.explain.windows import WindowAttention, Windows, last_tokens, window_layouts
from vision_attn.geometry.extents import Extent
from vision_attn.system.console import reason_of, suggest
from vision_attn.system.errors import UserError
from vision_attn.system.locks import forked

Method = Literal[
    "auto", "attention", "rollout", "relevance", "attention-gradient", "grad-cam", "layer-cam", "score-cam",
    "integrated-gradients", "smoothgrad", "occlusion",
]  # fmt: skip
LIKELIEST = 5
"""The number of a classifier's answers that are reported."""
NO_ANSWER = "attention"  # the word under a map of a model without an answer


class Pass(NamedTuple):
    """One forward pass of a model on one image, with its attention and the features for Grad-CAM."""

    model: OpenedModel
    scores: Float[Tensor, "1 N"] | None
    """The scores of a classifier or a matcher; None for an encoder, which has no answer."""
    record: AttentionRecord
    attention: ImageAttention | WindowAttention | None
    """The attention of layers with maps over the image; None if there is none."""
    activation: Activation
    place: Callable[[Tensor], Tensor]
    """A function that permutes an activation to (B, C, Y, X)."""
    shapes: MapShapes
    layouts: dict[str, Windows]
    has_features: Callable[[], bool]
    """A function that returns whether the cells of the features see the places where they are drawn."""

    def explain(self, answer: int) -> None:
        """Compute the gradients of the score `answer`."""
        self.activation.gradient = None
        for attention in self.record:
            attention.gradient = None
        if self.scores is not None:
            self.scores[0, answer].backward(retain_graph=True)
            self.model.module.zero_grad(set_to_none=True)

    def fitting(self) -> Method:
        """Return the method that "auto" stands for, after `explain`."""
        if self.attention is None:
            return "grad-cam"
        if self.scores is None:
            return "attention"
        if not self.attention.in_stages:
            return "relevance"
        return "grad-cam" if self._has_cams() else "attention"

    def methods(self) -> list[Method]:
        """Return the names of the methods that work for this model, after `explain`."""
        answers = self.scores is not None
        methods: list[Method] = ["attention"] if self.attention is not None else []
        if isinstance(self.attention, ImageAttention) and not self.attention.in_stages:
            methods += ["rollout"]
            if answers:
                methods += ["attention-gradient", "relevance"]
        if self._has_cams():
            methods += ["grad-cam", "layer-cam"]
        return methods

    def _has_cams(self) -> bool:
        return self.activation.gradient is not None and self.has_features()

    def features(self) -> tuple[Float[Tensor, "1 C Y X"], Float[Tensor, "1 C Y X"]]:
        """Return the features for Grad-CAM and their gradient, after `explain`. Raises UserError if there are none."""
        if self.activation.output is None or self.activation.gradient is None:
            raise UserError("no layer of this model gives a map (B, C, Y, X) that its answer depends on: no Grad-CAM")
        if not self.has_features():
            raise UserError(
                "the last layer of this model that gives a map (B, C, Y, X) does not change where the image does: no "
                "Grad-CAM; choose occlusion"
            )
        return self.place(self.activation.output), self.place(self.activation.gradient)

    def map(self, method: Method, layer: int | None = None, head: int | None = None) -> Float[Tensor, "1 Y X"]:
        """Return the map of the answer of the last call of `explain`. Raises UserError if the model has no such method,
        layer or head."""
        if method in ("grad-cam", "layer-cam"):
            return (grad_cam if method == "grad-cam" else layer_cam)(*self.features())
        if self.attention is None:
            raise UserError(
                "no layer of this model attends to the whole image, so it has no attention map of it: choose Grad-CAM"
            )
        if method == "attention":
            return chosen(self.attention.raw(), -1 if layer is None else layer, head)
        if self.attention.in_stages or isinstance(self.attention, WindowAttention):
            raise UserError(NO_PRODUCT)
        if method == "rollout":
            return self.attention.rolled()
        return self.attention.relevant() if method == "relevance" else self.attention.times_gradient()

    def extents(
        self, size: tuple[int, int] | None, of_features: bool, others: dict[str, Tensor]
    ) -> tuple[Extent, Extent]:
        """Return where a map of `size` and the patches lie on a picture.

        of_features: whether the map is that of Grad-CAM.
        others: inputs besides the image."""
        patches = extent_of_picture(self.model)  # those of windows are cut out of the image
        if isinstance(self.attention, ImageAttention):
            layer = self.shapes.first.get((self.attention.grid.rows, self.attention.grid.columns))
            patches = extent_of_tokens(self.model, layer, lambda inputs: self.model.module(**inputs, **others))
        raw = None if self.attention is None else self.attention.raw()
        of_patches = bool(self.layouts) or (raw is not None and size == tuple(raw[0].shape[-2:]))
        return (extent_of_map(self.model, others) if of_features and not of_patches else patches), patches


def recorded(model: OpenedModel, inputs: dict[str, Tensor]) -> Pass:
    """Run the model on one image, and record its attention and features. When a model is first seen, its maps are
    tested by `map_placement`. Raises UserError if the model answers the same image differently each time."""
    block = last_tokens(model.module)
    with (
        torch.enable_grad(),
        map_shapes(model.module, 1) as shapes,
        window_layouts(model.module) as layouts,
        activation_of(model.module, block) as activation,
        record_attention(model.module, queries="all", gradients=True) as record,
    ):
        raw = called(model, inputs)
    once(model.module, "steady", lambda: _steady(model, inputs, raw))
    output = scores_of(raw)

    def on(picture: Image.Image) -> dict[str, Tensor]:
        return inputs | model.inputs(picture)

    def tokens_in_place(attention: RecordedAttention, grid: PatchGrid) -> bool:
        def map_of(picture: Image.Image) -> Tensor:
            maps = keys_of(model.module, attention.name, lambda: model.module(**on(picture)))
            return grid.picture(maps)[0]

        return once(model.module, (attention.name, grid), lambda: in_place(map_of))

    def features_in_place() -> bool:
        def map_of(picture: Image.Image) -> Tensor:
            with activation_of(model.module, block) as held:
                model.module(**on(picture))
            return place(held.held())[0]

        of_image = activation.output is not None and len(activation.output) == 1  # in TNT, of each patch by itself
        return of_image and once(model.module, "features", lambda: in_place(map_of))

    attention: ImageAttention | WindowAttention | None = None
    if layouts:
        attention = WindowAttention(record, layouts)
    else:
        with suppress(UserError):
            attention = ImageAttention(record, shapes, 1, tokens_in_place)
    place = channels_first if block is None else layouts[block].picture
    scores = None if model.kind == "encoder" else output  # the features of an encoder are no answer
    return Pass(model, scores, record, attention, activation, place, shapes, layouts, features_in_place)


def _steady(model: OpenedModel, inputs: dict[str, Tensor], output: Any) -> bool:
    """Return True if the model gives `output` again for the same inputs; else raise UserError."""
    with torch.no_grad(), forked(device=next(iter(inputs.values())).device):
        again = model.module(**inputs)
    if any(unsteady(*pair) for pair in zip(_tensors(output), _tensors(again), strict=False)):
        raise UserError(RANDOM)
    return True


def _tensors(output: Any) -> list[Tensor]:
    """Return the floating-point tensors of an output: the tensor itself, or those of a sequence or a mapping."""
    values = [output] if isinstance(output, Tensor) else output.values() if isinstance(output, Mapping) else output
    return [
        value.detach() for value in values if isinstance(value, Tensor) and value.is_floating_point() and value.numel()
    ]


def called(model: OpenedModel, inputs: dict[str, Tensor]) -> Any:
    """Call the model. Raises UserError if it refuses images of this size, or fails otherwise."""
    rows, columns = next((value.shape[-2:] for value in inputs.values() if value.dim() == 4), (0, 0))
    hint = (
        ": if it takes another size, set its attribute `resolution`, a number of pixels or (rows, columns)"
        if model.own
        else ""
    )
    try:
        return model.module(**inputs)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"the model fails on an image of {rows} x {columns} pixels ({reason_of(error)}){hint}"
        ) from error


def scores_of(output: Any) -> Float[Tensor, "B N"] | None:
    """Return the scores of a classifier or the similarities of a matcher; None for an encoder."""
    if isinstance(output, Tensor):
        return output if output.dim() == 2 else None
    return next((getattr(output, key) for key in ("logits", "logits_per_image") if key in output), None)


def texts_of(model: OpenedModel, texts: Sequence[str]) -> dict[str, Tensor]:
    """Return the inputs of a matcher besides the image; empty for other models."""
    if model.kind != "matcher":
        return {}
    with one_line("the model's tokenizer fails"):
        tokens = model.processor.tokenizer(list(texts), return_tensors="pt", padding="max_length", truncation=True)
    return {key: tokens[key] for key in ("input_ids", "attention_mask") if key in tokens}


def wanted(model: OpenedModel, scores: Float[Tensor, "1 N"] | None, texts: Sequence[str]) -> list[int]:
    """Return the indices of the scores to explain."""
    if scores is None:
        return [0]
    if model.kind == "matcher":
        return list(range(len(texts)))
    if model.classes and len(model.classes) != scores.shape[1]:
        raise UserError(
            f"the model has {len(model.classes)} names of classes, but {scores.shape[1]} scores: each needs a name"
        )
    if not texts:
        return [int(scores[0].argmax())]
    known = list(model.classes)
    for text in texts:
        if text not in known:
            raise UserError(f"the classifier has no class {text!r}{suggest(text, known)}")
    return [known.index(text) for text in texts]


def likeliest(model: OpenedModel, scores: Float[Tensor, "1 N"] | None) -> list[tuple[str, float]]:
    """Return the likeliest classes of a classifier with their probabilities, best first; empty for other models."""
    if scores is None or model.kind != "classifier" or scores.shape[1] < 2:
        return []
    best = scores[0].detach().float().softmax(dim=-1).topk(min(LIKELIEST, scores.shape[1]))
    return list(zip((_class_name(model, index) for index in best.indices.tolist()), best.values.tolist(), strict=True))


def _class_name(model: OpenedModel, index: int) -> str:
    return model.classes[index] if index < len(model.classes) else f"class {index}"


def named(
    model: OpenedModel, scores: Float[Tensor, "1 N"] | None, answers: Sequence[int], texts: Sequence[str]
) -> tuple[list[str], list[float] | None]:
    """Return the names of answers and log p of each; None in place of log p if there is a single score, which is no
    probability."""
    if scores is None:
        return [NO_ANSWER], None
    log_prob = scores[0].detach().float().log_softmax(dim=-1) if scores.shape[1] > 1 else None
    if model.kind == "matcher":
        return list(texts), None if log_prob is None else log_prob.tolist()
    names = [_class_name(model, index) for index in answers]
    return names, None if log_prob is None else [float(log_prob[index]) for index in answers]

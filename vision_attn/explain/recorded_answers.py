"""A model's answers to one image, recorded: its scores, and the maps that its own attention and layers give of them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.explain.attention_mode import Attention, Record
from vision_attn.explain.explanation import chosen
from vision_attn.explain.in_place import RANDOM, in_place, keys_of, once, unsteady
from vision_attn.explain.libraries.opened_model import one_line
from vision_attn.explain.libraries.opening import Model
from vision_attn.explain.map_extents import extent_of_map, extent_of_picture, extent_of_tokens
from vision_attn.explain.record import record_attention
from vision_attn.explain.relevance import Activation, activation_of, channels_first, grad_cam, layer_cam
from vision_attn.explain.tokens import NO_PRODUCT, Grid, ImageAttention, MapShapes, map_shapes
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
"""How many answers of a classifier are told."""
NO_ANSWER = "attention"  # the word under a map of a model without an answer


class Pass(NamedTuple):
    """One forward pass of a model on one image, with its attention and the map that Grad-CAM takes."""

    model: Model
    scores: Float[Tensor, "1 N"] | None
    """Of a classifier or a matcher; None for an encoder, which has no answer."""
    record: Record
    attention: ImageAttention | WindowAttention | None
    """The attention that has maps over the image; None if there is none."""
    activation: Activation
    place: Callable[[Tensor], Tensor]
    """Puts an activation into the order (B, C, Y, X)."""
    shapes: MapShapes
    layouts: dict[str, Windows]
    has_features: Callable[[], bool]
    """Whether the cells of that map see the places where it is drawn."""

    def explain(self, answer: int) -> None:
        """Compute the gradients of the score `answer`."""
        self.activation.gradient = None
        for one in self.record:
            one.gradient = None
        if self.scores is not None:
            self.scores[0, answer].backward(retain_graph=True)
            self.model.module.zero_grad(set_to_none=True)

    def fitting(self) -> Method:
        """The method that "auto" stands for, after `explain`."""
        if self.attention is None:
            return "grad-cam"
        if self.scores is None:
            return "attention"
        if not self.attention.in_stages:
            return "relevance"
        return "grad-cam" if self._has_cams() else "attention"

    def methods(self) -> list[Method]:
        """The methods of which this model has maps, after `explain`."""
        answers = self.scores is not None
        found: list[Method] = ["attention"] if self.attention is not None else []
        if isinstance(self.attention, ImageAttention) and not self.attention.in_stages:
            found += ["rollout"]
            if answers:
                found += ["attention-gradient", "relevance"]
        if self._has_cams():
            found += ["grad-cam", "layer-cam"]
        return found

    def _has_cams(self) -> bool:
        return self.activation.gradient is not None and self.has_features()

    def features(self) -> tuple[Float[Tensor, "1 C Y X"], Float[Tensor, "1 C Y X"]]:
        """The map that Grad-CAM takes and its gradient, after `explain`. Raises UserError if there is none."""
        if self.activation.output is None or self.activation.gradient is None:
            raise UserError("no layer of this model gives a map (B, C, Y, X) that its answer depends on: no Grad-CAM")
        if not self.has_features():
            raise UserError(
                "the last layer of this model that gives a map (B, C, Y, X) does not change where the image does: no "
                "Grad-CAM; choose occlusion"
            )
        return self.place(self.activation.output), self.place(self.activation.gradient)

    def map(self, method: Method, layer: int | None = None, head: int | None = None) -> Float[Tensor, "1 Y X"]:
        """The map of the answer whose gradients were computed last. Raises UserError for what there is not."""
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
        """Where a map of `size`, and the patches, lie on a picture. of_features: whether it is of Grad-CAM's map.
        others: inputs besides the image."""
        patches = extent_of_picture(self.model)  # those of windows are cut out of the image
        if isinstance(self.attention, ImageAttention):
            layer = self.shapes.first.get((self.attention.grid.rows, self.attention.grid.columns))
            patches = extent_of_tokens(self.model, layer, lambda inputs: self.model.module(**inputs, **others))
        raw = None if self.attention is None else self.attention.raw()
        of_patches = bool(self.layouts) or (raw is not None and size == tuple(raw[0].shape[-2:]))
        return (extent_of_map(self.model, others) if of_features and not of_patches else patches), patches


def recorded(model: Model, inputs: dict[str, Tensor]) -> Pass:
    """Run the model on one image, and record what maps are made of. When a model is first seen, it is measured whether
    its maps lie where they are drawn. Raises UserError if it gives the same image another answer each time."""
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

    def tokens_in_place(one: Attention, grid: Grid) -> bool:
        def map_of(picture: Image.Image) -> Tensor:
            maps = keys_of(model.module, one.name, lambda: model.module(**on(picture)))
            return grid.picture(maps)[0]

        return once(model.module, (one.name, grid), lambda: in_place(map_of))

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


def _steady(model: Model, inputs: dict[str, Tensor], output: Any) -> bool:
    """True for a model that gives the same image the same output again. Raises UserError for any other."""
    with torch.no_grad(), forked(device=next(iter(inputs.values())).device):
        again = model.module(**inputs)
    if any(unsteady(*pair) for pair in zip(_tensors(output), _tensors(again), strict=False)):
        raise UserError(RANDOM)
    return True


def _tensors(output: Any) -> list[Tensor]:
    """The floating-point tensors of an output: one, or those of a sequence or a mapping."""
    values = [output] if isinstance(output, Tensor) else output.values() if isinstance(output, Mapping) else output
    return [one.detach() for one in values if isinstance(one, Tensor) and one.is_floating_point() and one.numel()]


def called(model: Model, inputs: dict[str, Tensor]) -> Any:
    """The output of the model. Raises UserError if it refuses images of this size, or fails otherwise."""
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
    """The scores of a classifier or the similarities of a matcher; None for an encoder."""
    if isinstance(output, Tensor):
        return output if output.dim() == 2 else None
    return next((getattr(output, key) for key in ("logits", "logits_per_image") if key in output), None)


def texts_of(model: Model, texts: Sequence[str]) -> dict[str, Tensor]:
    """The inputs of a matcher besides the image; none of others."""
    if model.kind != "matcher":
        return {}
    with one_line("the model's tokenizer fails"):
        tokens = model.processor.tokenizer(list(texts), return_tensors="pt", padding="max_length", truncation=True)
    return {key: tokens[key] for key in ("input_ids", "attention_mask") if key in tokens}


def wanted(model: Model, scores: Float[Tensor, "1 N"] | None, texts: Sequence[str]) -> list[int]:
    """Which scores to explain."""
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


def likeliest(model: Model, scores: Float[Tensor, "1 N"] | None) -> list[tuple[str, float]]:
    """The likeliest classes of a classifier with their probabilities, best first; empty for other models."""
    if scores is None or model.kind != "classifier" or scores.shape[1] < 2:
        return []
    best = scores[0].detach().float().softmax(dim=-1).topk(min(LIKELIEST, scores.shape[1]))
    return list(zip((_class_name(model, index) for index in best.indices.tolist()), best.values.tolist(), strict=True))


def _class_name(model: Model, index: int) -> str:
    return model.classes[index] if index < len(model.classes) else f"class {index}"


def named(
    model: Model, scores: Float[Tensor, "1 N"] | None, answers: Sequence[int], texts: Sequence[str]
) -> tuple[list[str], list[float] | None]:
    """The names of answers, and log p of each; None for a single score, which is no probability."""
    if scores is None:
        return [NO_ANSWER], None
    log_prob = scores[0].detach().float().log_softmax(dim=-1) if scores.shape[1] > 1 else None
    if model.kind == "matcher":
        return list(texts), None if log_prob is None else log_prob.tolist()
    names = [_class_name(model, index) for index in answers]
    return names, None if log_prob is None else [float(log_prob[index]) for index in answers]

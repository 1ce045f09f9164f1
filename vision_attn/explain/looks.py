"""Where a model of another library looked: for its answer, for a text, or for each word that it generates."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.explain.captioners import look_of_words
from vision_attn.explain.explanation import Explanation, chosen
from vision_attn.explain.models import Model
from vision_attn.explain.places import extent_of_map, extent_of_picture, extent_of_tokens
from vision_attn.explain.record import record_attention
from vision_attn.explain.recorder import Record
from vision_attn.explain.relevance import Activation, activation_of, channels_first, grad_cam
from vision_attn.explain.tokens import NO_PRODUCT, ImageAttention, map_shapes
from vision_attn.explain.windows import WindowAttention, Windows, last_tokens, window_layouts
from vision_attn.system.console import reason_of, suggest

Method = Literal["auto", "attention", "rollout", "relevance", "grad-cam"]
NO_ANSWER = "attention"  # the word under a map of a model without an answer


def look(
    model: Model,
    picture: Image.Image,
    *,
    texts: Sequence[str] = (),
    method: Method = "auto",
    layer: int | None = None,
    head: int | None = None,
) -> Explanation:
    """Find out where `model` looked in a square picture.

    texts: what to match (needed for "matcher" models), the classes to explain (default: the likeliest), or the
        beginning of the caption.
    method: "auto" is relevance where there is an answer and full attention, Grad-CAM for convolutional networks and
        windows, and attention for captioners and encoders. layer, head: counted from 0, negative from the end (head:
        from 0), for "attention"; by default the last layer and the mean of its heads; for captioners, the mean of all
        layers. Captioners have "attention" and "relevance". Within windows, "attention" is what each token receives
        (`vision_attn.explain.windows`), and there is no rollout and no relevance.

    Raises ValueError for what the model does not have.
    """
    if layer is not None or head is not None:
        if method not in ("auto", "attention"):
            raise ValueError(f"a layer and a head are of the method attention, not of {method}")
        method = "attention"
    if model.kind == "captioner":
        if method not in ("auto", "attention", "relevance"):
            raise ValueError(f"for captioners there are the methods attention and relevance, not {method}")
        return look_of_words(model, picture, texts, layer, head, related=method == "relevance")
    if model.kind == "matcher" and not texts:
        raise ValueError("this model compares images with texts: give a text")
    if model.kind == "encoder" and texts:
        raise ValueError("this model has no answer: leave the text out")
    return _answers(model, picture, texts, method, layer, head)


def _answers(
    model: Model, picture: Image.Image, texts: Sequence[str], method: Method, layer: int | None, head: int | None
) -> Explanation:
    """A map of each answer of a classifier, or of each text of a matcher."""
    inputs = model.inputs(picture)
    if model.kind == "matcher":
        tokens = model.processor.tokenizer(list(texts), return_tensors="pt", padding="max_length", truncation=True)
        inputs |= {key: tokens[key] for key in ("input_ids", "attention_mask") if key in tokens}
    block = last_tokens(model.module)
    with (
        torch.enable_grad(),
        map_shapes(model.module) as shapes,
        window_layouts(model.module) as layouts,
        activation_of(model.module, block) as activation,
        record_attention(model.module, queries="all", gradients=True) as record,
    ):
        output = _scores(_called(model, inputs))
    if model.kind == "encoder":  # its features are no answer
        output = None
    if output is None and method in ("relevance", "grad-cam"):
        raise ValueError(f"{method} explains an answer, and this model has none: choose rollout, or a layer")
    wanted, maps = _wanted(model, output, texts), list[Tensor]()
    attention = _attention(record, shapes, layouts)
    place = channels_first if block is None else layouts[block].picture
    for answer in wanted:
        activation.gradient = None
        for one in record:
            one.gradient = None
        if output is not None:
            output[0, answer].backward(retain_graph=True)
            model.module.zero_grad(set_to_none=True)
        if method == "auto":
            method = _fitting(attention, activation, has_answer=output is not None)
        maps.append(_map(method, attention, activation, place, layer, head))
    words, log_prob = _named(model, output, wanted, texts)
    raw = None if attention is None else attention.raw()
    if isinstance(raw, Tensor):
        raw = raw.expand(len(words), -1, -1, -1, -1)
    elif raw is not None:
        raw = [layer.expand(len(words), -1, -1, -1) for layer in raw]
    others = {name: value for name, value in inputs.items() if name not in model.inputs(picture)}
    patches = extent_of_picture(model)  # those of windows are cut out of the image
    if isinstance(attention, ImageAttention):
        layer = shapes.first.get((attention.grid.rows, attention.grid.columns))
        patches = extent_of_tokens(model, layer, lambda inputs: model.module(**inputs, **others))
    found = torch.cat(maps)
    of_patches = bool(layouts) or (raw is not None and found.shape[1:] == raw[0].shape[-2:])
    extent = extent_of_map(model, others) if method == "grad-cam" and not of_patches else patches
    return Explanation(words, found, log_prob, raw, method, extent, patches)


def _called(model: Model, inputs: dict[str, Tensor]) -> Any:
    """The output of the model. Raises ValueError if a model of the user's refuses images of this size."""
    try:
        return model.module(**inputs)
    except (AssertionError, RuntimeError, ValueError) as error:
        if not model.own or isinstance(error, torch.OutOfMemoryError):
            raise
        rows, columns = next(value.shape[-2:] for value in inputs.values() if value.dim() == 4)
        raise ValueError(
            f"the model fails on an image of {rows} x {columns} pixels ({reason_of(error)}): if it takes another size, "
            "set its attribute `resolution`, a number of pixels or (rows, columns)"
        ) from error


def _attention(
    record: Record, shapes: Sequence[tuple[int, int]], layouts: dict[str, Windows]
) -> ImageAttention | WindowAttention | None:
    """The attention that has maps over the image; None if there is none."""
    if layouts:
        return WindowAttention(record, layouts)
    try:
        return ImageAttention(record, shapes, 1)
    except ValueError:
        return None


def _fitting(attention: ImageAttention | WindowAttention | None, activation: Activation, *, has_answer: bool) -> Method:
    """The method that "auto" stands for."""
    if attention is None:
        return "grad-cam"
    if not has_answer:
        return "attention"
    if not attention.in_stages:
        return "relevance"
    return "attention" if activation.gradient is None else "grad-cam"


def _scores(output: Any) -> Float[Tensor, "1 N"] | None:
    """The scores of a classifier or the similarities of a matcher; None for an encoder."""
    if isinstance(output, Tensor):
        return output if output.dim() == 2 else None
    return next((getattr(output, key) for key in ("logits", "logits_per_image") if key in output), None)


def _wanted(model: Model, output: Tensor | None, texts: Sequence[str]) -> list[int]:
    """Which scores to explain."""
    if output is None:
        return [0]
    if model.kind == "matcher":
        return list(range(len(texts)))
    if model.classes and len(model.classes) != output.shape[1]:
        raise ValueError(
            f"the model has {len(model.classes)} names of classes, but {output.shape[1]} scores: each needs a name"
        )
    if not texts:
        return [int(output[0].argmax())]
    known = list(model.classes)
    for text in texts:
        if text not in known:
            raise ValueError(f"the classifier has no class {text!r}{suggest(text, known)}")
    return [known.index(text) for text in texts]


def _named(
    model: Model, output: Tensor | None, wanted: list[int], texts: Sequence[str]
) -> tuple[list[str], list[float] | None]:
    if output is None:
        return [NO_ANSWER], None
    log_prob = output[0].detach().float().log_softmax(dim=-1)
    if model.kind == "matcher":
        return list(texts), log_prob.tolist() if len(texts) > 1 else None
    names = [model.classes[index] if index < len(model.classes) else f"class {index}" for index in wanted]
    return names, [float(log_prob[index]) for index in wanted]


def _map(
    method: Method,
    attention: ImageAttention | WindowAttention | None,
    activation: Activation,
    place: Callable[[Tensor], Tensor],
    layer: int | None,
    head: int | None,
) -> Float[Tensor, "1 Y X"]:
    if method == "grad-cam":
        if activation.output is None or activation.gradient is None:
            raise ValueError("no layer of this model gives a map (B, C, Y, X) that its answer depends on: no Grad-CAM")
        return grad_cam(place(activation.output), place(activation.gradient))
    if attention is None:
        raise ValueError(
            "no layer of this model attends to the whole image, so it has no attention map of it: choose Grad-CAM"
        )
    if method in ("rollout", "relevance") and attention.in_stages:
        raise ValueError(NO_PRODUCT)
    if method == "rollout":
        return attention.rolled()
    if method == "relevance":
        return attention.relevant()
    return chosen(attention.raw(), -1 if layer is None else layer, head)

"""Where a model of another library looked: for its answer, for a text, or for each word that it generates."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.explain.models import Model
from vision_attn.explain.record import Attention, record_attention
from vision_attn.explain.relevance import activation_of, channels_first, grad_cam
from vision_attn.explain.tokens import Grid, ImageAttention, grid_of, map_shapes

Method = Literal["auto", "attention", "rollout", "relevance", "grad-cam"]
MOST_WORDS = 40  # of a generated caption
NO_ANSWER = "attention"  # the word under a map of a model without an answer


class Seen(NamedTuple):
    """Words, each with a map, and the attention that the maps can be compared with."""

    words: list[str]
    alpha: Float[Tensor, "T Y X"]
    log_prob: list[float] | None = None
    """log p of each word, in nats; None where there is no such thing."""
    layers: Float[Tensor, "T N K Y X"] | None = None
    """The attention of K heads in each of N layers."""
    method: str = ""
    """How `alpha` was made."""


def look(
    model: Model,
    picture: Image.Image,
    *,
    texts: Sequence[str] = (),
    method: Method = "auto",
    layer: int | None = None,
    head: int | None = None,
) -> Seen:
    """Find out where `model` looked in a square picture.

    texts: what to match (needed for "matcher" models), the classes to explain (default: the likeliest), or the
        beginning of the caption.
    method: "auto" is relevance where there is an answer and full attention, Grad-CAM for convolutional networks and
        windows, and attention for captioners and encoders. layer, head: counted from 0, negative from the end (head:
        from 0), for "attention"; by default the last layer and the mean of its heads; for captioners, the mean of all
        layers.

    Raises ValueError for what the model does not have.
    """
    if layer is not None or head is not None:
        if method not in ("auto", "attention"):
            raise ValueError(f"a layer and a head are of the method attention, not of {method}")
        method = "attention"
    if model.kind == "captioner":
        if method not in ("auto", "attention"):
            raise ValueError(f"for captioners there is the method attention, not {method}")
        return _caption(model, picture, texts, layer, head)
    if model.kind == "matcher":
        if not texts:
            raise ValueError("this model compares images with texts: give a text")
        return _answers(model, picture, list(texts), method, layer, head)
    return _answers(model, picture, texts, method, layer, head)


def _answers(
    model: Model, picture: Image.Image, texts: Sequence[str], method: Method, layer: int | None, head: int | None
) -> Seen:
    """A map of each answer of a classifier, or of each text of a matcher."""
    inputs = model.inputs(picture)
    if model.kind == "matcher":
        tokens = model.processor.tokenizer(list(texts), return_tensors="pt", padding="max_length", truncation=True)
        inputs |= {key: tokens[key] for key in ("input_ids", "attention_mask") if key in tokens}
    wanted: list[int] | None = None
    maps: list[Tensor] = []
    attention: ImageAttention | None = None
    while wanted is None or len(maps) < len(wanted):  # one backward pass for each answer
        with (
            torch.enable_grad(),
            map_shapes(model.module) as shapes,
            activation_of(model.module) as activation,
            record_attention(model.module, queries="all", gradients=True) as record,
        ):
            output = _scores(model.module(**inputs))
            if wanted is None:
                wanted = _wanted(model, output, texts)
            if output is not None:
                output[0, wanted[len(maps)]].backward()
        try:
            attention = ImageAttention(record, shapes, 1)
        except ValueError:
            if method not in ("auto", "grad-cam"):
                raise
            method = "grad-cam"
        if method == "auto":
            method = "attention" if output is None else "relevance"
        maps.append(_map(method, attention, activation, layer, head))
        model.module.zero_grad(set_to_none=True)
    raw = None if attention is None else attention.raw()
    words, log_prob = _named(model, output, wanted, texts)
    repeated = None if raw is None else raw.expand(len(words), -1, -1, -1, -1)
    return Seen(words, torch.cat(maps), log_prob, repeated, method)


def _scores(output: Any) -> Float[Tensor, "1 N"] | None:
    """The scores of a classifier or the similarities of a matcher; None for an encoder."""
    if isinstance(output, Tensor):
        return output if output.dim() == 2 else None
    return next((getattr(output, key) for key in ("logits", "logits_per_image") if key in output), None)


def _wanted(model: Model, output: Tensor | None, texts: Sequence[str]) -> list[int]:
    """Which scores to explain."""
    if model.kind == "encoder" or output is None:
        return [0]
    if model.kind == "matcher":
        return list(range(len(texts)))
    if not texts:
        return [int(output[0].argmax())]
    known = list(model.classes)
    for text in texts:
        if text not in known:
            from vision_attn.mistakes import suggest

            raise ValueError(f"the classifier has no class {text!r}{suggest(text, known)}")
    return [known.index(text) for text in texts]


def _named(
    model: Model, output: Tensor | None, wanted: list[int], texts: Sequence[str]
) -> tuple[list[str], list[float] | None]:
    if model.kind == "encoder" or output is None:
        return [NO_ANSWER], None
    log_prob = output[0].detach().float().log_softmax(dim=-1)
    if model.kind == "matcher":
        return list(texts), log_prob.tolist() if len(texts) > 1 else None
    names = [model.classes[index] if index < len(model.classes) else f"class {index}" for index in wanted]
    return names, [float(log_prob[index]) for index in wanted]


def _map(
    method: Method, attention: ImageAttention | None, activation: Any, layer: int | None, head: int | None
) -> Float[Tensor, "1 Y X"]:
    if method == "grad-cam":
        if activation.output is None or activation.gradient is None:
            raise ValueError("no layer of this model gives a map (B, C, Y, X) that its answer depends on: no Grad-CAM")
        return grad_cam(channels_first(activation.output), channels_first(activation.gradient))
    if attention is None:
        raise ValueError("no layer of this model attends to the whole image")
    if method == "rollout":
        return attention.rolled()
    if method == "relevance":
        return attention.relevant()
    return chosen(attention.raw(), -1 if layer is None else layer, head)


def chosen(raw: Float[Tensor, "T N K Y X"], layer: int | None, head: int | None) -> Float[Tensor, "T Y X"]:
    """The maps of one layer and head, or the mean over what is None. Raises ValueError if there is no such one."""
    _, N, K, _, _ = raw.shape
    if layer is not None and not -N <= layer < N:
        raise ValueError(f"there is no layer {layer}: they are numbered from 0 to {N - 1}")
    if head is not None and not 0 <= head < K:
        raise ValueError(f"there is no head {head}: they are numbered from 0 to {K - 1}")
    raw = raw.mean(dim=1) if layer is None else raw[:, layer]
    return raw.mean(dim=1) if head is None else raw[:, head]


@torch.no_grad()
def _caption(model: Model, picture: Image.Image, texts: Sequence[str], layer: int | None, head: int | None) -> Seen:
    """A map of each generated word: the attention of the step that generated it, to the tokens of the image."""
    tokenizer = model.processor.tokenizer
    inputs = model.inputs(picture)
    images_in_text = getattr(
        model.module.config, "image_token_id", getattr(model.module.config, "image_token_index", None)
    )
    if images_in_text is not None:
        prompt = " ".join(texts) if texts else f"{model.processor.image_token}"
        prompt = prompt if model.processor.image_token in prompt else f"{model.processor.image_token}{prompt}"
        inputs = dict(model.processor(text=prompt, images=picture.convert("RGB"), return_tensors="pt"))
    elif texts:
        inputs |= dict(tokenizer(" ".join(texts), return_tensors="pt"))
    with map_shapes(model.module) as shapes, record_attention(model.module, queries=-1) as record:
        result = model.module.generate(
            **inputs, max_new_tokens=MOST_WORDS, num_beams=1, do_sample=False, return_dict_in_generate=True,
            output_logits=True,
        )  # fmt: skip
    steps = len(result.logits)
    ids = result.sequences[0, -steps:].tolist()
    positions = None
    if images_in_text is not None:
        positions = (inputs["input_ids"][0] == images_in_text).nonzero()[:, 0]
    raw = torch.stack(_of_steps(record, shapes, steps, positions), dim=1)  # (T, N, K, Y, X)
    log_prob = [
        float(logits[0].float().log_softmax(dim=-1)[word]) for logits, word in zip(result.logits, ids, strict=True)
    ]
    words, groups = _words(tokenizer, ids)
    raw = torch.stack([raw[group].mean(dim=0) for group in groups]) if groups else raw[:0]
    return Seen(
        words, chosen(raw, layer, head), [sum(log_prob[step] for step in group) for group in groups], raw, "attention"
    )


def _of_steps(
    record: Sequence[Attention], shapes: Sequence[tuple[int, int]], steps: int, positions: Tensor | None
) -> list[Float[Tensor, "T K Y X"]]:
    """Of each layer that attends to the image once per generated token, the maps of all tokens."""
    by_name: dict[str, list[Attention]] = {}
    for one in record:
        by_name.setdefault(one.name, []).append(one)
    layers = []
    grid: Grid | None = None
    for calls in by_name.values():
        if len(calls) < steps or any(one.num_queries != 1 for one in calls[1:steps]):
            continue
        if positions is None:
            keys = {one.maps.shape[-1] for one in calls[:steps]}
            grid = grid_of(keys.pop(), shapes) if len(keys) == 1 else None
            if grid is None or (steps == 1 and calls[0].num_queries == calls[0].maps.shape[-1]):
                continue
            layers.append(torch.cat([grid.picture(one.maps[0, :, 0])[None] for one in calls[:steps]]))
        elif calls[0].maps.shape[-1] > int(positions.max()):
            grid = grid_of(len(positions), shapes)
            if grid is None or grid.prefix:
                raise ValueError(f"the {len(positions)} tokens of the image form no grid, so they have no map")
            layers.append(torch.stack([grid.picture(one.maps[0, :, 0, positions]) for one in calls[:steps]]))
    if not layers:
        raise ValueError("no layer of this model attends to the image in each step of its generation")
    shape = layers[-1].shape
    return [maps for maps in layers if maps.shape == shape]


def _words(tokenizer: Any, ids: list[int]) -> tuple[list[str], list[list[int]]]:
    """The words of a generated text, and which steps each came from; special tokens belong to none."""
    words: list[str] = []
    groups: list[list[int]] = []
    for step in range(len(ids)):
        if ids[step] in tokenizer.all_special_ids:
            continue
        words = tokenizer.decode(ids[: step + 1], skip_special_tokens=True).split()
        if len(words) > len(groups):
            groups += [[] for _ in range(len(words) - len(groups))]
        if groups:
            groups[-1].append(step)
    return words, groups

"""Compute the map of each word that a captioner of transformers generated: its attention, or its relevance."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vision_attn.explain.attention_mode import AttentionRecord, RecordedAttention
from vision_attn.explain.captioners.generation import generate
from vision_attn.explain.captioners.image_tokens import ImageTokens
from vision_attn.explain.captioners.prompts import inputs_of, num_queries
from vision_attn.explain.explanation import Explanation, chosen
from vision_attn.explain.libraries.opened_model import one_line
from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.explain.map_extents import extent_of_tokens
from vision_attn.explain.record import record_attention
from vision_attn.explain.relevance import cross_relevance, relevance
from vision_attn.explain.tokens import PatchGrid
from vision_attn.system.errors import UserError

MOST_WORDS = 40  # of a generated caption


def explain_words(
    model: OpenedModel,
    picture: Image.Image,
    texts: Sequence[str],
    layer: int | None,
    head: int | None,
    *,
    related: bool,
) -> Explanation:
    """Generate a caption, and return a map for each word: the attention to the tokens of the image in the step that
    generated the word or, with `related`, the gradient-weighted relevance of these tokens (Chefer et al. 2021).

    texts: the beginning of the caption.
    layer, head: for attention; None: the mean of all.
    """
    inputs = inputs_of(model, [picture], " ".join(texts))
    if related and num_queries(model):
        raise UserError(f"{num_queries(model)} queries stand for the image in this model: it has attention alone")
    generation = generate(model, inputs, num_beams=1, do_sample=False, max_new_tokens=MOST_WORDS)
    (caption,), tokens = generation.captions, generation.tokens
    if tokens is None:
        raise UserError(generation.why_not)
    if related:
        alpha = caption.of_words(relevance_of_steps(model, inputs, generation.sequences, generation.steps, tokens))
    else:
        assert caption.maps is not None  # as there are tokens
        alpha = chosen(caption.maps, layer, head)
    extent = extent_of_tokens(model, *generation.patches(model, inputs), picture.size)
    method = "relevance" if related else "attention"
    return Explanation(caption.words, alpha, caption.log_prob, caption.maps, method, extent, extent)


def teacher_forced(
    model: OpenedModel, inputs: dict[str, Any], sequence: Int[Tensor, "1 S"], steps: int
) -> Float[Tensor, "N T V"]:
    """Return the logits of the last `steps` tokens of a sequence for N images, computed in one pass."""
    given = {key: value for key, value in inputs.items() if key not in ("input_ids", "attention_mask")}
    if (kinds := given.get("mm_token_type_ids")) is not None:  # 0 for text, of which there is more now
        given["mm_token_type_ids"] = F.pad(kinds, (0, sequence.shape[1] - 1 - kinds.shape[1]))
    ids = sequence[:, :-1].expand(len(given["pixel_values"]), -1)
    given["decoder_input_ids" if model.module.config.is_encoder_decoder else "input_ids"] = ids
    with one_line("the model fails on the words that it generated"):
        return model.module(**given).logits[:, -steps:]


def relevance_of_steps(
    model: OpenedModel,
    inputs: dict[str, Any],
    sequence: Int[Tensor, "1 S"],
    steps: int,
    tokens: ImageTokens,
    chosen: Sequence[int] | None = None,
) -> Float[Tensor, "T Y X"]:
    """Return the relevance of the image for each of the last `steps` tokens of a sequence, or for the `chosen` ones."""
    with torch.enable_grad(), record_attention(model.module, queries="all", gradients=True) as record:
        logits = teacher_forced(model, inputs, sequence, steps)[0]
    pictures = []
    for number in range(steps) if chosen is None else chosen:
        logits[number, sequence[0, number - steps]].backward(retain_graph=True)
        pictures.append(tokens.picture(_layers_relevance(record, tokens)[number - steps]))
        model.module.zero_grad(set_to_none=True)
        for attention in record:
            attention.gradient = None
    return torch.stack(pictures)


def _layers_relevance(record: AttentionRecord, tokens: ImageTokens) -> Float[Tensor, "S N"]:
    """Return the relevance of the layers' keys for each token of the text, after `backward`."""
    to_image = [attention for attention in record if attention.name in tokens.layers]
    if tokens.positions is not None:
        return relevance(to_image)[0]
    assert isinstance(tokens.grid, PatchGrid)  # an encoder sees no tiles
    decoder = record.index(to_image[0]) - 1  # it begins with a self-attention
    before = record[:decoder]
    windowed = any(len(attention.maps) > 1 for attention in before)  # then no relevance of the whole encoder is defined
    encoder = [
        attention
        for attention in before
        if attention.gradient is not None and not windowed and _over(attention, tokens.grid.tokens)
    ]
    pairs: list[tuple[RecordedAttention | None, RecordedAttention | None]] = []
    for attention in record[decoder:]:
        if attention.name in tokens.layers:
            pairs.append((None, attention))
        elif _over(attention, to_image[0].num_queries):
            pairs.append((attention, None))
    identity = torch.eye(tokens.grid.tokens, device=to_image[0].maps.device)[None]
    return cross_relevance(pairs, relevance(encoder) if encoder else identity)[0]


def _over(attention: RecordedAttention, tokens: int) -> bool:
    """Return whether this is self-attention over `tokens` tokens."""
    return attention.num_queries == attention.maps.shape[-1] == tokens

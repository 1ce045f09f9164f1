"""Where a captioner of transformers looked for each word that it generated.

Four kinds are known: those with cross-attention to the tokens of an image (BLIP, a ViT with GPT-2); those that read the
tokens of the image between the words (LLaVA and other vision-language models); those whose one sequence begins with the
tokens of the image, which are no words (GIT); and those that read a few queries in the place of the image (BLIP-2).
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vision_attn.explain.explanation import Explanation, chosen
from vision_attn.explain.image_tokens import ImageTokens, find_tokens
from vision_attn.explain.models import Model
from vision_attn.explain.places import extent_of_tokens
from vision_attn.explain.record import record_attention
from vision_attn.explain.recorder import Attention, Record
from vision_attn.explain.relevance import cross_relevance, relevance
from vision_attn.explain.tokens import Grid, grid_of, map_shapes

MOST_WORDS = 40  # of a generated caption


def look_of_words(
    model: Model, picture: Image.Image, texts: Sequence[str], layer: int | None, head: int | None, *, related: bool
) -> Explanation:
    """A map of each generated word: the attention to the tokens of the image in the step that generated it, or, if
    `related`, their gradient-weighted relevance for it (Chefer et al. 2021).

    texts: the beginning of the caption. layer, head: for attention; None: the mean of all.
    """
    device = next(model.module.parameters()).device
    inputs = {name: value.to(device) for name, value in _inputs(model, picture, texts).items()}
    if related and _num_queries(model):
        raise ValueError(f"{_num_queries(model)} queries stand for the image in this model: it has attention alone")
    result, record, shapes = _generated(model, inputs, max_new_tokens=MOST_WORDS)
    steps = len(result.logits)
    ids = result.sequences[0, -steps:].tolist()
    where = _where(model, inputs)
    if steps == 1:  # a layer that runs once may be of the encoder
        _, two, shapes = _generated(model, inputs, min_new_tokens=2, max_new_tokens=2)
        tokens = find_tokens(two, shapes, 2, **where)
    else:
        tokens = find_tokens(record, shapes, steps, **where)
    maps = [torch.stack([tokens.picture(one.maps[0, :, 0]) for one in record[name][:steps]]) for name in tokens.layers]
    raw = torch.stack(maps, dim=1)  # (T, N, K, Y, X)
    log_prob = [
        float(logits[0].float().log_softmax(dim=-1)[word]) for logits, word in zip(result.logits, ids, strict=True)
    ]
    words, groups = _words(model.processor.tokenizer, ids)

    def of_words(values: Tensor) -> Tensor:
        """The mean of the tokens of each word."""
        return torch.stack([values[group].mean(dim=0) for group in groups]) if groups else values[:0]

    raw = of_words(raw)
    if related:
        alpha = of_words(_relevance(model, inputs, result.sequences, steps, tokens))
    else:
        alpha = chosen(raw, layer, head)
    method = "relevance" if related else "attention"
    texted = {name: value for name, value in inputs.items() if name not in model.inputs(picture)}

    def generate(images: dict[str, Tensor]) -> None:
        model.module.generate(**texted, **images, max_new_tokens=1, num_beams=1, do_sample=False)

    extent = extent_of_tokens(model, shapes.first.get((tokens.grid.rows, tokens.grid.columns)), generate)
    numbers = [sum(log_prob[step] for step in group) for group in groups]
    return Explanation(words, alpha, numbers, raw, method, extent, extent)


def _inputs(model: Model, picture: Image.Image, texts: Sequence[str]) -> dict[str, Tensor]:
    """The image, and the text that begins the caption or asks."""
    inputs, processor, text = model.inputs(picture), model.processor, " ".join(texts)
    if number := _num_queries(model):
        # The processor puts the tokens of the queries before a text; without one, `generate` does.
        if not texts and hasattr(processor, "qformer_tokenizer"):
            raise ValueError('this model answers an instruction: give it as text, such as "Describe the image."')
        if not texts:
            return inputs
        processor.num_query_tokens = number
    elif _image_token(model) is not None:
        token = str(processor.image_token)  # which may be an AddedToken
        text = text if token in text else f"{token}{text}"
    elif texts:
        return inputs | {"input_ids": processor.tokenizer(text, return_tensors="pt")["input_ids"]}
    else:
        return inputs
    return dict(processor(text=text, images=picture.convert("RGB"), return_tensors="pt"))


def _where(model: Model, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """What is known of the tokens of the image: arguments of `find_tokens`."""
    device = inputs["pixel_values"].device
    if number := _num_queries(model):
        return {"positions": torch.arange(number, device=device), "queries": _patches_of_queries(model, inputs)}
    token = _image_token(model)
    if token is not None:
        return {"positions": (inputs["input_ids"][0] == token).nonzero()[:, 0]}
    return {"given": inputs["input_ids"].shape[1] if "input_ids" in inputs else 0}


def _image_token(model: Model) -> int | None:
    """The word that stands for a token of the image in a text."""
    config = model.module.config
    return getattr(config, "image_token_id", getattr(config, "image_token_index", None))


def _num_queries(model: Model) -> int:
    """How many learned queries stand for an image (Li et al. 2023, "BLIP-2", section 3.1); 0: there are none."""
    return getattr(model.module.config, "num_query_tokens", None) or 0


def _patches_of_queries(model: Model, inputs: dict[str, Tensor]) -> tuple[Grid, Float[Tensor, "Q N"]]:
    """The grid of the image's patches, and the attention of each query to its N tokens: the mean over layers and heads
    of the cross-attention of the Q-Former. Raises ValueError if there is none."""
    number = _num_queries(model)
    with (
        torch.no_grad(),
        map_shapes(model.module) as shapes,
        record_attention(model.module, queries="all", layers="crossattention") as record,
    ):
        model.module.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=1)
    maps = [one.maps[0].mean(dim=0) for one in record if one.num_queries == number]
    grid = grid_of(maps[0].shape[-1], shapes) if maps else None
    if grid is None or any(one.shape[-1] != grid.tokens for one in maps):
        raise ValueError(f"the {number} queries that stand for the image form no grid, so the words have no map")
    return grid, torch.stack(maps).mean(dim=0)


def _generated(model: Model, inputs: dict[str, Tensor], **options: int) -> tuple[Any, Record, list[tuple[int, int]]]:
    """The most likely words, the attention of the last query of each call, and the shapes of maps on the way."""
    with torch.no_grad(), map_shapes(model.module) as shapes, record_attention(model.module, queries=-1) as record:
        result = model.module.generate(
            **inputs, **options, num_beams=1, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    return result, record, shapes


def _relevance(
    model: Model,
    inputs: dict[str, Any],
    sequences: Int[Tensor, "1 S"],
    steps: int,
    tokens: ImageTokens,
) -> Float[Tensor, "T Y X"]:
    """The relevance of the image for each of the last `steps` tokens of `sequences`, all of which are read at once."""
    given = {key: value for key, value in inputs.items() if key not in ("input_ids", "attention_mask")}
    if (kinds := given.get("mm_token_type_ids")) is not None:  # 0 for text, of which there is more now
        given["mm_token_type_ids"] = F.pad(kinds, (0, sequences.shape[1] - 1 - kinds.shape[1]))
    given["decoder_input_ids" if model.module.config.is_encoder_decoder else "input_ids"] = sequences[:, :-1]
    with torch.enable_grad(), record_attention(model.module, queries="all", gradients=True) as record:
        logits = model.module(**given).logits[0, -steps:]
    pictures = []
    for number, (row, token) in enumerate(zip(logits, sequences[0, -steps:].tolist(), strict=True)):
        row[token].backward(retain_graph=True)
        pictures.append(tokens.picture(_related(record, tokens)[number - steps]))
        model.module.zero_grad(set_to_none=True)
        for one in record:
            one.gradient = None
    return torch.stack(pictures)


def _related(record: Record, tokens: ImageTokens) -> Float[Tensor, "S N"]:
    """The relevance of the layers' keys for each token of the text, after `backward`."""
    to_image = [one for one in record if one.name in tokens.layers]
    if tokens.positions is not None:
        return relevance(to_image)[0]
    decoder = record.index(to_image[0]) - 1  # it begins with a self-attention
    before = record[:decoder]
    windowed = any(len(one.maps) > 1 for one in before)  # then no relevance of the whole encoder is defined
    encoder = [one for one in before if one.gradient is not None and not windowed and _over(one, tokens.grid.tokens)]
    pairs: list[tuple[Attention | None, Attention | None]] = []
    for one in record[decoder:]:
        if one.name in tokens.layers:
            pairs.append((None, one))
        elif _over(one, to_image[0].num_queries):
            pairs.append((one, None))
    identity = torch.eye(tokens.grid.tokens, device=to_image[0].maps.device)[None]
    return cross_relevance(pairs, relevance(encoder) if encoder else identity)[0]


def _over(one: Attention, tokens: int) -> bool:
    """Whether this is self-attention over `tokens` tokens."""
    return one.num_queries == one.maps.shape[-1] == tokens


def _words(tokenizer: Any, ids: list[int]) -> tuple[list[str], list[list[int]]]:
    """The words of a generated text, and which steps each came from; special tokens belong to none."""
    words: list[str] = []
    groups: list[list[int]] = []
    for step in range(len(ids)):
        if ids[step] in tokenizer.all_special_ids:
            continue
        # Cleaned up, later tokens would merge words before them.
        text = tokenizer.decode(ids[: step + 1], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        words = text.split()
        if len(words) > len(groups):
            groups += [[] for _ in range(len(words) - len(groups))]
        if groups:
            groups[-1].append(step)
    return words, groups

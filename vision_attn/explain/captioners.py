"""Where a captioner of transformers looked for each word that it generated.

Two kinds are known: those with cross-attention to the tokens of an image (BLIP, a ViT with GPT-2), and those that read
the tokens of the image between the words (LLaVA and other vision-language models).
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vision_attn.explain.models import Model
from vision_attn.explain.record import Attention, Record, record_attention
from vision_attn.explain.relevance import cross_relevance, relevance
from vision_attn.explain.seen import Seen, chosen
from vision_attn.explain.tokens import Grid, grid_of, map_shapes

MOST_WORDS = 40  # of a generated caption


def look_of_words(
    model: Model, picture: Image.Image, texts: Sequence[str], layer: int | None, head: int | None, *, related: bool
) -> Seen:
    """A map of each generated word: the attention to the tokens of the image in the step that generated it, or, if
    `related`, their gradient-weighted relevance for it (Chefer et al. 2021).

    texts: the beginning of the caption. layer, head: for attention; None: the mean of all.
    """
    tokenizer = model.processor.tokenizer
    inputs = model.inputs(picture)
    config = model.module.config
    images_in_text = getattr(config, "image_token_id", getattr(config, "image_token_index", None))
    if images_in_text is not None:
        prompt = " ".join(texts) if texts else f"{model.processor.image_token}"
        prompt = prompt if model.processor.image_token in prompt else f"{model.processor.image_token}{prompt}"
        inputs = model.processor(text=prompt, images=picture.convert("RGB"), return_tensors="pt")
    elif texts:
        inputs |= {"input_ids": tokenizer(" ".join(texts), return_tensors="pt")["input_ids"]}
    device = next(model.module.parameters()).device
    inputs = {name: value.to(device) for name, value in inputs.items()}
    result, record, shapes = _generated(model, inputs, max_new_tokens=MOST_WORDS)
    steps = len(result.logits)
    ids = result.sequences[0, -steps:].tolist()
    positions = None
    if images_in_text is not None:
        positions = (inputs["input_ids"][0] == images_in_text).nonzero()[:, 0]
    given = inputs["input_ids"].shape[1] if "input_ids" in inputs else 0
    if steps == 1:  # a layer that runs once may be of the encoder
        _, two, shapes = _generated(model, inputs, min_new_tokens=2, max_new_tokens=2)
        names, grid = _layers(two, shapes, 2, positions, given)
    else:
        names, grid = _layers(record, shapes, steps, positions, given)
    raw = torch.stack([_maps(record[name][:steps], grid, positions) for name in names], dim=1)  # (T, N, K, Y, X)
    log_prob = [
        float(logits[0].float().log_softmax(dim=-1)[word]) for logits, word in zip(result.logits, ids, strict=True)
    ]
    words, groups = _words(tokenizer, ids)

    def of_words(values: Tensor) -> Tensor:
        """The mean of the tokens of each word."""
        return torch.stack([values[group].mean(dim=0) for group in groups]) if groups else values[:0]

    raw = of_words(raw)
    if related:
        alpha = of_words(_relevance(model, inputs, result.sequences, steps, names, grid, positions))
    else:
        alpha = chosen(raw, layer, head)
    method = "relevance" if related else "attention"
    return Seen(words, alpha, [sum(log_prob[step] for step in group) for group in groups], raw, method)


def _generated(model: Model, inputs: dict[str, Tensor], **options: int) -> tuple[Any, Record, list[tuple[int, int]]]:
    """The most likely words, the attention of the last query of each call, and the shapes of maps on the way."""
    with torch.no_grad(), map_shapes(model.module) as shapes, record_attention(model.module, queries=-1) as record:
        result = model.module.generate(
            **inputs, **options, num_beams=1, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    return result, record, shapes


def _layers(
    record: Record, shapes: Sequence[tuple[int, int]], steps: int, positions: Int[Tensor, "L"] | None, given: int
) -> tuple[list[str], Grid]:
    """The layers that attend to the image once per generated token, of two or more, and the grid of its patches. With
    several grids, those of the last layer's.

    given: the number of tokens of text, and of the image if it is among them, before the first generated one.
    """
    grids: dict[str, Grid] = {}
    for name in record.names:
        calls = record[name]
        if len(calls) < steps or any(one.num_queries != 1 for one in calls[1:steps]):
            continue
        if positions is None:
            keys = {one.maps.shape[-1] for one in calls[:steps]}
            of_image = len(keys) == 1 and keys != {given}  # a decoder may attend to a question instead
            if of_image and (grid := grid_of(keys.pop(), shapes)) is not None:
                grids[name] = grid
        elif calls[0].maps.shape[-1] > int(positions.max()):
            grid = grid_of(len(positions), shapes)
            if grid is None or grid.prefix:
                raise ValueError(f"the {len(positions)} tokens of the image form no grid, so they have no map")
            grids[name] = grid
    if not grids:
        raise ValueError("no layer of this model attends to the image in each step of its generation")
    last = grids[list(grids)[-1]]
    return [name for name, grid in grids.items() if grid == last], last


def _maps(calls: Sequence[Attention], grid: Grid, positions: Int[Tensor, "L"] | None) -> Float[Tensor, "T K Y X"]:
    """The attention of one layer to the image, in each of its calls."""
    rows = [one.maps[0, :, 0] for one in calls]
    return torch.stack([grid.picture(row if positions is None else row[:, positions]) for row in rows])


def _relevance(
    model: Model,
    inputs: dict[str, Any],
    sequences: Int[Tensor, "1 S"],
    steps: int,
    names: Sequence[str],
    grid: Grid,
    positions: Int[Tensor, "L"] | None,
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
        pictures.append(grid.picture(_related(record, names, grid, positions)[number - steps]))
        model.module.zero_grad(set_to_none=True)
        for one in record:
            one.gradient = None
    return torch.stack(pictures)


def _related(
    record: Record, names: Sequence[str], grid: Grid, positions: Int[Tensor, "L"] | None
) -> Float[Tensor, "S N"]:
    """The relevance of the tokens of the image for each token of the text, after `backward`."""
    to_image = [one for one in record if one.name in names]
    if positions is not None:
        return relevance(to_image)[0][:, positions]
    decoder = record.index(to_image[0]) - 1  # it begins with a self-attention
    before = record[:decoder]
    windowed = any(len(one.maps) > 1 for one in before)  # then no relevance of the whole encoder is defined
    encoder = [one for one in before if one.gradient is not None and not windowed and _over(one, grid.tokens)]
    pairs: list[tuple[Attention | None, Attention | None]] = []
    for one in record[decoder:]:
        if one.name in names:
            pairs.append((None, one))
        elif _over(one, to_image[0].num_queries):
            pairs.append((one, None))
    identity = torch.eye(grid.tokens, device=to_image[0].maps.device)[None]
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

"""Generate captions with a model of transformers, and record the attention of each token to the image.

Four kinds of captioners are supported. They read the tokens of an image by cross-attention (BLIP, a ViT with GPT-2),
among the tokens of the text (LLaVA, PaliGemma, SmolVLM; Florence-2 in its encoder), before the tokens of the text
(GIT), or through a few learned queries (BLIP-2).
"""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from vision_attn.explain.attention_mode import AttentionRecord, RecordedAttention
from vision_attn.explain.captioners.image_tokens import ImageTokens, find_tokens
from vision_attn.explain.captioners.prompts import Inputs, generated, image_token, num_queries
from vision_attn.explain.libraries.opened_model import one_line
from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.explain.map_placement import in_place, keys_of, once
from vision_attn.explain.record import record_attention
from vision_attn.explain.tokens import MapShapes, PatchGrid, PatchTiles, grid_of, map_shapes
from vision_attn.system.errors import UserError

NO_PLACES = (
    "the tokens of the image that this model's words attend to do not change where the image does (latents of a "
    "resampler, for example, stand for no place), so its words have no map"
)


class Written(NamedTuple):
    """A generated caption."""

    text: str
    """The caption without the prompt."""
    words: list[str]
    groups: list[list[int]]
    """The steps of each word's tokens. Special tokens belong to no word."""
    token_log_prob: list[float]
    """log p of each token up to the end token, in nats, before any rule of decoding."""
    cut: bool
    """Whether the caption was cut at the largest number of tokens."""
    maps: Float[Tensor, "T N K Y X"] | None
    """The attention of each word to the image in N layers and K heads, averaged over its tokens."""

    @property
    def log_prob(self) -> list[float]:
        """log p of each word: the sum over its tokens."""
        return [sum(self.token_log_prob[step] for step in group) for group in self.groups]

    def of_words(self, values: Tensor) -> Tensor:
        """Average the values of the steps over the tokens of each word."""
        return torch.stack([values[group].mean(dim=0) for group in self.groups]) if self.groups else values[:0]


class GeneratedCaptions(NamedTuple):
    """The captions that a model generated for pictures."""

    captions: list[Written]
    """The captions of the first picture, then those of the second, and so on."""
    sequences: Int[Tensor, "rows S"]
    """The token ids that `generate` returned."""
    steps: int
    tokens: ImageTokens | None
    """The image tokens of the first picture."""
    shapes: MapShapes
    why_not: str = ""
    """The reason why there are no maps; empty if there are."""

    def patches(self, model: OpenedModel, inputs: dict[str, Tensor]) -> tuple[nn.Conv2d | None, Callable]:
        """Return the arguments `layer` and `call` of `map_extents.extent_of_tokens`: the convolution that makes the
        patches of the maps, if known, and a function that runs it."""
        grid = self.tokens and self.tokens.grid
        layer = self.shapes.first.get((grid.rows, grid.columns)) if isinstance(grid, PatchGrid) else None
        others = {name: value[:1] for name, value in inputs.items() if name != "pixel_values"}
        encode = getattr(model.module, "get_image_features", None)

        def call(image: dict[str, Tensor]) -> None:
            if encode is not None:  # without the language model, which takes no part in it
                encode(**image)
                return
            model.module.generate(**others, **image, max_new_tokens=1, num_beams=1, do_sample=False)

        return layer, call


def generate(model: OpenedModel, inputs: Inputs, *, mean: bool = False, **options: Any) -> GeneratedCaptions:
    """Generate captions and record the attention of each step. After a beam search, each word of a caption has the map
    of the beam that it comes from.

    inputs: the output of `prompts.inputs_of`.
    mean: keep only the mean over the heads (K = 1), which saves memory.
    options: of transformers' `generate`.
    """
    result, record, shapes = _generated(model, inputs, mean, **options)
    steps, tokens, why_not = len(result.logits), None, ""
    try:
        where = _places(model, inputs)
        known = {name: value if name == "given" else value[0] for name, value in where.items()}
        if steps == 1:  # a layer that runs once may be of the encoder
            once = options | {"min_new_tokens": 2, "max_new_tokens": 2}
            _, two, shapes = _generated(model, inputs, mean, **once)
            tokens = find_tokens(two, shapes, 2, **known)
        else:
            tokens = find_tokens(record, shapes, steps, **known)
        grid = tokens.grid
        made = isinstance(grid, PatchGrid) and (grid.rows, grid.columns) in shapes.first  # by a convolution: no guess
        if not made and not _in_place(model, inputs, tokens):
            tokens, why_not = None, NO_PLACES
    except UserError as error:
        tokens, why_not = None, str(error)
    number = len(result.sequences) // num_pictures(inputs)
    chosen = getattr(result, "beam_indices", None)
    rows = torch.arange(len(result.sequences))[:, None].expand(-1, steps) if chosen is None else chosen.cpu().long()
    ids = result.sequences[:, -rows.shape[1] :].cpu()
    log_prob = torch.stack([
        logits[rows[:, step].to(logits.device)].float().log_softmax(dim=-1).cpu().gather(1, ids[:, step, None])[:, 0]
        for step, logits in enumerate(result.logits[: rows.shape[1]])
    ], dim=1)  # fmt: skip
    captions = []
    for row, taken in enumerate(rows):
        taken = taken[taken >= 0]
        mine = None
        if tokens is not None:
            of_picture = {name: value[row // number] for name, value in where.items() if name != "given"}
            mine = tokens._replace(**{name: value for name, value in of_picture.items() if value is not None})
        captions.append(_written(model, ids[row, : len(taken)].tolist(), log_prob[row].tolist(), record, mine, taken))
    return GeneratedCaptions(captions, result.sequences, steps, tokens, shapes, why_not)


def _in_place(model: OpenedModel, inputs: Inputs, tokens: ImageTokens) -> bool:
    """Return whether the tokens of the image change where the image changes, measured once for each kind of grid.
    Raises UserError if they differ between calls on the same image."""
    name, grid, picture_of = tokens.layers[0], tokens.grid, tokens.picture
    if tokens.mixing is not None:
        name, picture_of = _reading_queries(model, inputs)[0].name, grid.picture

    def map_of(picture: Image.Image) -> Float[Tensor, "Q Y X"]:
        given = inputs.of(picture)
        maps = keys_of(
            model.module, name, lambda: model.module.generate(**given, max_new_tokens=1, num_beams=1, do_sample=False)
        )
        return picture_of(maps[0])

    key = name, type(grid), grid.rows == grid.columns
    return once(model.module, key, lambda: in_place(map_of, inputs.size))


def _generated(
    model: OpenedModel, inputs: dict[str, Tensor], mean: bool, **options: Any
) -> tuple[Any, AttentionRecord, MapShapes]:
    """Return the result of `generate`, the recorded attention of the last query of each call, and the shapes of the
    outputs of convolutions."""
    with (
        torch.no_grad(),
        map_shapes(model.module) as shapes,
        record_attention(model.module, queries=-1, mean=mean) as record,
    ):
        result = generated(model, inputs, **options, return_dict_in_generate=True, output_logits=True)
    return result, record, shapes


def _written(
    model: OpenedModel,
    ids: list[int],
    log_prob: list[float],
    record: AttentionRecord,
    tokens: ImageTokens | None,
    rows: Int[Tensor, "T"],
) -> Written:
    """Return the caption of generated token ids.

    ids, log_prob: the generated tokens and log p of each.
    rows: the row of the record in which each token was generated.
    """
    tokenizer = model.processor.tokenizer
    with one_line("the model's tokenizer fails"):
        special = set(tokenizer.all_special_ids)
    content = max((step + 1 for step, token in enumerate(ids) if token not in special), default=0)
    cut, ids = content == len(ids), ids[: content + 1]
    with one_line("the model's tokenizer fails"):
        words, groups = words_of(tokenizer, ids)
        text = tokenizer.decode(ids, skip_special_tokens=True).strip()
    written = Written(text, words, groups, log_prob[: len(ids)], cut, None)
    if tokens is None:
        return written
    steps = list(enumerate(rows[: len(ids)].tolist()))
    layers = [record[name] for name in tokens.layers]
    maps = [torch.stack([tokens.picture(layer[step].maps[row, :, 0]) for step, row in steps]) for layer in layers]
    return written._replace(maps=written.of_words(torch.stack(maps, dim=1)))


def words_of(tokenizer: Any, ids: list[int]) -> tuple[list[str], list[list[int]]]:
    """Split a generated text into words. Return them and the steps whose tokens make up each; special tokens belong to
    no word."""
    words: list[str] = []
    groups: list[list[int]] = []
    special = set(tokenizer.all_special_ids)
    for step in range(len(ids)):
        if ids[step] in special:
            continue
        # Cleaned up, later tokens would merge words before them.
        text = tokenizer.decode(ids[: step + 1], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        words = text.split()
        if len(words) > len(groups):
            groups += [[] for _ in range(len(words) - len(groups))]
        if groups:
            groups[-1].append(step)
    return words, groups


def num_pictures(inputs: dict[str, Tensor]) -> int:
    """Return the number of pictures in the inputs; some processors put the patches of all pictures in one row."""
    return len(inputs.get("image_grid_thw", inputs["pixel_values"]))


def _places(model: OpenedModel, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of `find_tokens` for the pictures: lists of `positions`, `grid` and `mixing` if they are
    known, otherwise `given`, the number of tokens before the first generated one."""
    number, device = num_pictures(inputs), inputs["pixel_values"].device
    if queries := num_queries(model):
        grid, mixing = _patches_of_queries(model, inputs)
        return {"positions": [torch.arange(queries, device=device)] * number, "grid": [grid] * number, "mixing": mixing}
    if (token := image_token(model)) is None:
        return {"given": inputs["input_ids"].shape[1] if "input_ids" in inputs else 0}
    if "image_sizes" in inputs:
        raise UserError("this model cuts an image into pieces whose places are not known, so its words have no map")
    positions = [(ids == token).nonzero()[:, 0] for ids in inputs["input_ids"]]
    grids: list[PatchGrid | PatchTiles | None] = [None] * number
    if (sizes := inputs.get("image_grid_thw")) is not None:
        side = model.module.config.vision_config.spatial_merge_size
        grids = [PatchGrid(0, rows // side, columns // side) for _, rows, columns in sizes.tolist()]
    elif inputs["pixel_values"].dim() > 4:
        texts = model.processor.tokenizer.batch_decode(inputs["input_ids"])
        grids = [tiles_of(len(where), text) for where, text in zip(positions, texts, strict=True)]
    return {"positions": positions, "grid": grids}


def tiles_of(tokens: int, text: str) -> PatchTiles | None:
    """Return the tiles of an image in a prompt of Idefics 3 or SmolVLM; None if the image is in one piece. Such a
    prompt names the row and column of each tile before its tokens, and ends with the tokens of the whole image."""
    tiles = re.findall(r"<row_(\d+)_col_(\d+)>", text)
    if not tiles:
        return None
    rows, columns = map(int, tiles[-1])
    side = math.isqrt(tokens // (rows * columns + 1))
    return PatchTiles(rows, columns, side)


def _patches_of_queries(model: OpenedModel, inputs: dict[str, Tensor]) -> tuple[PatchGrid, Float[Tensor, "B Q N"]]:
    """Return the grid of the image's patches and the attention of each query to its N tokens: the cross-attention of
    the Q-Former, averaged over layers and heads. Raises UserError if there is none."""
    with map_shapes(model.module) as shapes:
        maps = [attention.maps.mean(dim=1) for attention in _reading_queries(model, inputs)]
    grid = grid_of(maps[0].shape[-1], shapes) if maps else None
    if grid is None or any(weights.shape[-1] != grid.tokens for weights in maps):
        raise UserError(
            f"the {num_queries(model)} queries that stand for the image form no grid, so the words have no map"
        )
    return grid, torch.stack(maps).mean(dim=0)


def _reading_queries(model: OpenedModel, inputs: dict[str, Tensor]) -> list[RecordedAttention]:
    """Return the attention of the learned queries to an image in each layer of the Q-Former."""
    with torch.no_grad(), record_attention(model.module, queries="all", layers="crossattention") as record:
        generated(model, inputs, num_beams=1, do_sample=False, max_new_tokens=1)
    return [attention for attention in record if attention.num_queries == num_queries(model)]

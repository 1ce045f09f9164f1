"""Captions that a model of transformers generates for pictures, and where each of their tokens looked.

Four kinds are known: those with cross-attention to the tokens of an image (BLIP, a ViT with GPT-2); those that read the
tokens of the image between the words (LLaVA, PaliGemma, SmolVLM; in Florence-2 the encoder reads them); those whose one
sequence begins with the tokens of the image, which are no words (GIT); and those that read a few queries in the place
of the image (BLIP-2).
"""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from vision_attn.explain.attention_mode import Attention, Record
from vision_attn.explain.captioners.image_tokens import ImageTokens, find_tokens
from vision_attn.explain.captioners.prompts import Inputs, generated, image_token, num_queries
from vision_attn.explain.in_place import in_place, keys_of, once
from vision_attn.explain.libraries.opened_model import one_line
from vision_attn.explain.libraries.opening import Model
from vision_attn.explain.record import record_attention
from vision_attn.explain.tokens import Grid, MapShapes, Tiles, grid_of, map_shapes
from vision_attn.system.errors import UserError

NO_PLACES = (
    "the tokens of the image that this model's words attend to do not change where the image does (latents of a "
    "resampler, for example, stand for no place), so its words have no map"
)


class Written(NamedTuple):
    """A generated caption."""

    text: str
    """Without the prompt."""
    words: list[str]
    groups: list[list[int]]
    """The tokens of each word, as numbers of steps. Special tokens belong to none."""
    token_log_prob: list[float]
    """log p of each token, up to the end, in nats, before any rule of decoding."""
    cut: bool
    """Whether it was cut at the largest number of tokens, before its end."""
    maps: Float[Tensor, "T N K Y X"] | None
    """The attention of each word to the image in N layers and K heads, the mean over its tokens."""

    @property
    def log_prob(self) -> list[float]:
        """Of each word: the sum over its tokens."""
        return [sum(self.token_log_prob[step] for step in group) for group in self.groups]

    def of_words(self, values: Tensor) -> Tensor:
        """The mean over the tokens of each word, of values of each step."""
        return torch.stack([values[group].mean(dim=0) for group in self.groups]) if self.groups else values[:0]


class Generation(NamedTuple):
    """What a model generated for pictures."""

    captions: list[Written]
    """Those of the first picture, then those of the second."""
    sequences: Int[Tensor, "rows S"]
    """What `generate` returned."""
    steps: int
    tokens: ImageTokens | None
    """Of the first picture."""
    shapes: MapShapes
    why_not: str = ""
    """Why there are no maps."""

    def patches(self, model: Model, inputs: dict[str, Tensor]) -> tuple[nn.Conv2d | None, Callable]:
        """The convolution that makes the patches of the maps, if it is known, and a call of the model that runs it:
        arguments of `map_extents.extent_of_tokens`."""
        grid = self.tokens and self.tokens.grid
        layer = self.shapes.first.get((grid.rows, grid.columns)) if isinstance(grid, Grid) else None
        others = {name: value[:1] for name, value in inputs.items() if name != "pixel_values"}
        encode = getattr(model.module, "get_image_features", None)

        def call(image: dict[str, Tensor]) -> None:
            if encode is not None:  # without the language model, which takes no part in it
                encode(**image)
                return
            model.module.generate(**others, **image, max_new_tokens=1, num_beams=1, do_sample=False)

        return layer, call


def generate(model: Model, inputs: Inputs, *, mean: bool = False, **options: Any) -> Generation:
    """Generate captions, and record the attention of each step. Through a beam search, the maps of a caption are those
    of the beams that it came from.

    inputs: as `prompts.inputs_of` makes them. mean: keep the mean over the heads alone, K = 1, which saves memory.
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
        made = isinstance(grid, Grid) and (grid.rows, grid.columns) in shapes.first  # by a convolution: no guess
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
    return Generation(captions, result.sequences, steps, tokens, shapes, why_not)


def _in_place(model: Model, inputs: Inputs, tokens: ImageTokens) -> bool:
    """Whether the tokens of the image change where the image does; measured once for each kind of grid. Raises
    UserError if they differ from one call to the next."""
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


def _generated(model: Model, inputs: dict[str, Tensor], mean: bool, **options: Any) -> tuple[Any, Record, MapShapes]:
    """What `generate` returns, the attention of the last query of each call, and the shapes of maps on the way."""
    with (
        torch.no_grad(),
        map_shapes(model.module) as shapes,
        record_attention(model.module, queries=-1, mean=mean) as record,
    ):
        result = generated(model, inputs, **options, return_dict_in_generate=True, output_logits=True)
    return result, record, shapes


def _written(
    model: Model,
    ids: list[int],
    log_prob: list[float],
    record: Record,
    tokens: ImageTokens | None,
    rows: Int[Tensor, "T"],
) -> Written:
    """The caption of the token ids that were generated, each in a row of the record."""
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
    maps = [torch.stack([tokens.picture(one[step].maps[row, :, 0]) for step, row in steps]) for one in layers]
    return written._replace(maps=written.of_words(torch.stack(maps, dim=1)))


def words_of(tokenizer: Any, ids: list[int]) -> tuple[list[str], list[list[int]]]:
    """The words of a generated text, and which steps each came from; special tokens belong to none."""
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
    """How many pictures the inputs are of; some processors put the patches of all of them in one row."""
    return len(inputs.get("image_grid_thw", inputs["pixel_values"]))


def _places(model: Model, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """What is known of the tokens of each picture: lists of `positions`, `grid` and `mixing` of `ImageTokens`, as far
    as they are known; else the number of tokens that are `given` before the first generated one."""
    number, device = num_pictures(inputs), inputs["pixel_values"].device
    if queries := num_queries(model):
        grid, mixing = _patches_of_queries(model, inputs)
        return {"positions": [torch.arange(queries, device=device)] * number, "grid": [grid] * number, "mixing": mixing}
    if (token := image_token(model)) is None:
        return {"given": inputs["input_ids"].shape[1] if "input_ids" in inputs else 0}
    if "image_sizes" in inputs:
        raise UserError("this model cuts an image into pieces whose places are not known, so its words have no map")
    positions = [(ids == token).nonzero()[:, 0] for ids in inputs["input_ids"]]
    grids: list[Grid | Tiles | None] = [None] * number
    if (sizes := inputs.get("image_grid_thw")) is not None:
        side = model.module.config.vision_config.spatial_merge_size
        grids = [Grid(0, rows // side, columns // side) for _, rows, columns in sizes.tolist()]
    elif inputs["pixel_values"].dim() > 4:
        texts = model.processor.tokenizer.batch_decode(inputs["input_ids"])
        grids = [tiles_of(len(where), text) for where, text in zip(positions, texts, strict=True)]
    return {"positions": positions, "grid": grids}


def tiles_of(tokens: int, text: str) -> Tiles | None:
    """The tiles of an image in a prompt of Idefics 3 and SmolVLM, which names the row and column of each before its
    tokens, and has those of the whole image last. None if the image is in one piece."""
    found = re.findall(r"<row_(\d+)_col_(\d+)>", text)
    if not found:
        return None
    rows, columns = map(int, found[-1])
    side = math.isqrt(tokens // (rows * columns + 1))
    return Tiles(rows, columns, side)


def _patches_of_queries(model: Model, inputs: dict[str, Tensor]) -> tuple[Grid, Float[Tensor, "B Q N"]]:
    """The grid of the image's patches, and the attention of each query to its N tokens: the mean over layers and heads
    of the cross-attention of the Q-Former. Raises UserError if there is none."""
    with map_shapes(model.module) as shapes:
        maps = [one.maps.mean(dim=1) for one in _reading_queries(model, inputs)]
    grid = grid_of(maps[0].shape[-1], shapes) if maps else None
    if grid is None or any(one.shape[-1] != grid.tokens for one in maps):
        raise UserError(
            f"the {num_queries(model)} queries that stand for the image form no grid, so the words have no map"
        )
    return grid, torch.stack(maps).mean(dim=0)


def _reading_queries(model: Model, inputs: dict[str, Tensor]) -> list[Attention]:
    """The attention of learned queries to an image, in each layer of the Q-Former."""
    with torch.no_grad(), record_attention(model.module, queries="all", layers="crossattention") as record:
        generated(model, inputs, num_beams=1, do_sample=False, max_new_tokens=1)
    return [one for one in record if one.num_queries == num_queries(model)]

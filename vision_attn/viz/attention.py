"""Where each word looked: the figures of Show, Attend and Tell, one panel per word, as one PNG."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image, ImageDraw
from torch import Tensor

from vision_attn.files import replacing
from vision_attn.viz.sheet import DARK, PANEL, Box, Palette, Panel, boxed, fitted, glowing, sheet

SPREAD = 0.8
"""Standard deviation, in regions, of the light that one region gives off."""

EVEN = 0.05
"""The part of the largest entropy by which the entropy of a map that looks nearly everywhere may lie below it."""

RIM = 2  # pixels of the white line around the region that was seen
LEGEND = "Above: the one region that each word saw. Below: the map that it was chosen from."


def light(alpha: Float[Tensor, "T Y X"], height: int, width: int) -> Float[Tensor, "T height width"]:
    """Weights of regions -> light on the pixels of a picture, in [0, 1]; each word's brightest pixel is 1.

    Every region shines as a Gaussian from its own centre. Light is a share of the word's brightest place and is never
    stretched to start at 0, so a word that looks everywhere lights everything: an even map is an evenly lit picture.
    A map without any weight stays dark.

    Differs from the paper: its figures enlarge bilinearly, then blur with a Gaussian of 1.25 regions, which hides
    which of two neighbours was meant; here `SPREAD` regions at once, without the square edges of a lesser blur.
    """
    alpha = weights(alpha)
    shone = _spread(alpha.shape[1], height) @ alpha @ _spread(alpha.shape[2], width).mT
    return shone / shone.amax((1, 2), keepdim=True).clamp(min=torch.finfo(shone.dtype).tiny)


def weights(alpha: Float[Tensor, "T Y X"]) -> Float[Tensor, "T Y X"]:
    """`alpha` on the CPU in float32, with 0 for what is no weight (NaN, infinite, negative)."""
    alpha = alpha.detach().float().cpu()
    return torch.where(alpha.isfinite(), alpha, 0).clamp(min=0)


def even(alpha: Float[Tensor, "T Y X"]) -> Bool[Tensor, "T"]:
    """Which maps look nearly everywhere: their entropy lies within `EVEN` of its maximum, log(Y X).

    Such a map has a brightest region too, but it is no more than noise. A map without any weight is none of them.
    """
    alpha = weights(alpha).flatten(1)
    total = alpha.sum(dim=1, keepdim=True)
    alpha = alpha / total.clamp(min=torch.finfo(alpha.dtype).tiny)
    return (-torch.xlogy(alpha, alpha).sum(dim=1) >= (1 - EVEN) * math.log(alpha.shape[1])) & (total[:, 0] > 0)


def cell(region: int, rows: int, columns: int) -> tuple[float, float, float, float]:
    """The box, in [-1, 1], of a region on a grid, counted row by row from 0."""
    row, column = divmod(region, columns)
    return 2 * column / columns - 1, 2 * row / rows - 1, 2 * (column + 1) / columns - 1, 2 * (row + 1) / rows - 1


def squared(picture: Image.Image, square: Box) -> Image.Image:
    """The darkened `picture` with full light on `square`, inside a white line.

    Differs from the paper: its squares are solid white, which hides what was looked at.
    """
    x0, y0, x1, y1 = (round((float(edge) + 1) / 2 * side) for edge, side in zip(square, 2 * picture.size, strict=True))
    full = torch.zeros(picture.height, picture.width)
    full[y0:y1, x0:x1] = 1
    lit = glowing(picture, full)
    edges = (max(x0 - RIM, 0), max(y0 - RIM, 0), min(x1 + RIM, lit.width) - 1, min(y1 + RIM, lit.height) - 1)
    ImageDraw.Draw(lit).rectangle(edges, outline="white", width=RIM)
    return lit


def attention_sheet(
    picture: Image.Image,
    words: Sequence[str],
    alpha: Float[Tensor, "T Y X"] | None,
    *,
    title: str = "",
    caption: str | None = None,
    boxes: Mapping[str, Sequence[Box]] | None = None,
    log_prob: Sequence[float | int] | Float[Tensor, "T"] | None = None,
    regions: Int[Tensor, "T"] | None = None,
    palette: Palette = DARK,
    panel: int = PANEL,
) -> Image.Image:
    """The plain picture, then one panel per word: the picture under that word's light. The plain picture alone where
    `alpha` is None.

    Args:
        picture: exactly what the encoder saw, so the centre-cropped square where the encoder crops.
        words, alpha: the caption's T words and the weight of each of Y x X regions at each.
        title: a small line on top, the file's name for instance.
        caption: the large line below it; by default the words, joined by spaces.
        boxes: word -> boxes (x0, y0, x1, y1) in [-1, 1] of what it names, drawn thinly on that word's panel.
        log_prob: each word's log-probability in nats, shown as a probability beside the word.
        regions: the one region that hard attention saw at each word, counted row by row from 0. Each word then has a
            pair: above, its region as a white square on the darkened picture; below, the map that it was chosen from.
        panel: pixels of a panel's longer side.

    Raises ValueError where `words`, `alpha`, `log_prob` and `regions` differ in number, a map has no region, or a
    region lies outside the grid.
    """
    check(words, alpha, log_prob, regions, title or "attention_sheet")
    plain = fitted(picture, panel)
    panels = [Panel(plain, note="picture")]
    notes = [""] * len(words) if log_prob is None else [f"p {math.exp(value):.2f}" for value in log_prob]
    lights = [] if alpha is None else light(alpha, plain.height, plain.width)
    for turn, (word, note, lit) in enumerate(zip(words, notes, lights, strict=alpha is not None)):
        looks = [glowing(plain, lit)]
        if regions is not None:
            looks.insert(0, squared(plain, cell(int(regions[turn]), *alpha.shape[1:])))
        above, *below = (boxed(look, (boxes or {}).get(word, ()), palette.accent) for look in looks)
        panels.append(Panel(above, word, note, *below))
    caption = (" ".join(words) or "no words") if caption is None else caption
    return sheet(panels, caption=caption, title=title, remark=_remark(alpha), legend=LEGEND, palette=palette)


def _remark(alpha: Float[Tensor, "T Y X"] | None) -> str:
    """How many words look nearly everywhere; empty where none does."""
    number = 0 if alpha is None else int(even(alpha).sum())
    return f"nearly everywhere: {number} of {len(alpha)} words" if number else ""


def write_sheet(
    path: str | Path, picture: Image.Image, words: Sequence[str], alpha: Float[Tensor, "T Y X"] | None, **options
) -> Path:
    """Write `attention_sheet(picture, words, alpha, **options)` as a PNG; returns its path."""
    drawn = attention_sheet(picture, words, alpha, **options)
    with replacing(path) as temporary:
        drawn.save(temporary, "PNG", optimize=True)
    return Path(path)


def check(
    words: Sequence[str],
    alpha: Tensor | None,
    log_prob: Sequence[float | int] | Tensor | None,
    regions: Tensor | None,
    name: str,
) -> None:
    """Raise a ValueError that names `name` unless each word has one map, with regions, and drew one of its regions."""
    for given, things in (alpha, "maps"), (log_prob, "log-probabilities"), (regions, "regions"):
        if given is not None and len(given) != len(words):
            odd = f"{len(words)} words but {len(given)} {things}"
            raise ValueError(f"{name}: {odd}; give one for each word, without the end word's")
    if alpha is None:
        return
    rows, columns = alpha.shape[1:]
    if 0 in (rows, columns):
        raise ValueError(f"{name}: maps of {rows}x{columns} have no region to show")
    last = rows * columns - 1
    for region in () if regions is None else regions.tolist():
        if not 0 <= region <= last:
            outside = f"region {region} is outside the {rows}x{columns} grid"
            raise ValueError(f"{name}: {outside}; regions count row by row from 0 to {last}")


def _spread(regions: int, pixels: int) -> Float[Tensor, "pixels regions"]:
    """How much of each region's light, along one axis, reaches each pixel; each row sums to 1."""
    place = (torch.arange(pixels) + 0.5) * regions / pixels - 0.5
    return torch.softmax(-((place[:, None] - torch.arange(regions)) ** 2) / (2 * SPREAD**2), dim=1)

"""Where each word looked: the figures of Show, Attend and Tell, one panel per word, as one PNG."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.files import replacing
from vision_attn.viz.sheet import DARK, PANEL, Box, Palette, Panel, boxed, fitted, glowing, sheet

SPREAD = 0.8
"""Standard deviation, in regions, of the light that one region gives off."""


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


def attention_sheet(
    picture: Image.Image,
    words: Sequence[str],
    alpha: Float[Tensor, "T Y X"],
    *,
    title: str = "",
    caption: str | None = None,
    boxes: Mapping[str, Sequence[Box]] | None = None,
    log_prob: Sequence[float | int] | Float[Tensor, "T"] | None = None,
    palette: Palette = DARK,
    panel: int = PANEL,
) -> Image.Image:
    """The plain picture, then one panel per word: the picture under that word's light.

    Args:
        picture: exactly what the encoder saw, so the centre-cropped square where the encoder crops.
        words, alpha: the caption's T words and the weight of each of Y x X regions at each.
        title: a small line on top, the file's name for instance.
        caption: the large line below it; by default the words, joined by spaces.
        boxes: word -> boxes (x0, y0, x1, y1) in [-1, 1] of what it names, drawn thinly on that word's panel.
        log_prob: each word's log-probability in nats, shown as a probability beside the word.
        panel: pixels of a panel's longer side.

    Raises ValueError where `words`, `alpha` and `log_prob` differ in number, or a map has no region.
    """
    check(words, alpha, log_prob, title or "attention_sheet")
    plain = fitted(picture, panel)
    panels = [Panel(plain, note="picture")]
    notes = [""] * len(words) if log_prob is None else [f"p {math.exp(value):.2f}" for value in log_prob]
    for word, note, lit in zip(words, notes, light(alpha, plain.height, plain.width), strict=True):
        things = boxed(glowing(plain, lit), (boxes or {}).get(word, ()), palette.accent)
        panels.append(Panel(things, word, note))
    caption = (" ".join(words) or "no words") if caption is None else caption
    return sheet(panels, caption=caption, title=title, palette=palette)


def write_sheet(
    path: str | Path, picture: Image.Image, words: Sequence[str], alpha: Float[Tensor, "T Y X"], **options
) -> Path:
    """Write `attention_sheet(picture, words, alpha, **options)` as a PNG; returns its path."""
    drawn = attention_sheet(picture, words, alpha, **options)
    with replacing(path) as temporary:
        drawn.save(temporary, "PNG", optimize=True)
    return Path(path)


def check(words: Sequence[str], alpha: Tensor, log_prob: Sequence[float | int] | Tensor | None, name: str) -> None:
    """Raise a ValueError that names `name` unless there is one map, with regions, for each word."""
    if len(words) != len(alpha) or (log_prob is not None and len(log_prob) != len(words)):
        odd = f"{len(alpha)} maps" if len(words) != len(alpha) else f"{len(log_prob)} log-probabilities"
        raise ValueError(f"{name}: {len(words)} words but {odd}; give one for each word, without the end word's")
    if 0 in alpha.shape[1:]:
        raise ValueError(f"{name}: maps of {alpha.shape[1]}x{alpha.shape[2]} have no region to show")


def _spread(regions: int, pixels: int) -> Float[Tensor, "pixels regions"]:
    """How much of each region's light, along one axis, reaches each pixel; each row sums to 1."""
    place = (torch.arange(pixels) + 0.5) * regions / pixels - 0.5
    return torch.softmax(-((place[:, None] - torch.arange(regions)) ** 2) / (2 * SPREAD**2), dim=1)

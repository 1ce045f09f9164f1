"""Attention maps as in the figures of Show, Attend and Tell: one PNG with a panel per word."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent, cell, positions
from vision_attn.metrics.function_words import content_marks
from vision_attn.system.errors import UserError
from vision_attn.system.written import joined, shown
from vision_attn.viz.sheet import PANEL, Box, Panel, boxed, fitted, glowing, save_picture, sheet

SPREAD = 0.8
"""Standard deviation, in regions, of the Gaussian with which each region is drawn."""

EVEN = 0.05
"""A map is nearly uniform if its entropy is within this fraction of the maximum."""

RIM = 2  # width of the white line around the selected region
TRUE = "objects of which a word is true"
LEGEND = "Above: the region selected for each word. Below: the map that it was selected from."


def light(
    alpha: Float[Tensor, "T Y X"], height: int, width: int, extent: Extent = WHOLE
) -> Float[Tensor, "T height width"]:
    """Upsample the weights of regions to the pixels of a picture, in [0, 1]; each word's brightest pixel is 1.

    Every region is drawn as a Gaussian at its centre. Values are divided by the word's maximum and not shifted to start
    at 0, so a uniform map lights the whole picture evenly. A map of zeros stays dark. Beyond the extent of the regions
    the picture is lit as at the nearest one.

    Differs from the paper: its figures enlarge bilinearly, then blur with a Gaussian of 1.25 regions, which blends
    neighbouring regions. A single Gaussian of `SPREAD` regions separates them, and shows no square edges.
    """
    alpha = weights(alpha)
    down = _spread(alpha.shape[1], height, extent.y0, extent.y1)
    shone = down @ alpha @ _spread(alpha.shape[2], width, extent.x0, extent.x1).mT
    return shone / shone.amax((1, 2), keepdim=True).clamp(min=torch.finfo(shone.dtype).tiny)


def weights(alpha: Float[Tensor, "T *F Y X"]) -> Float[Tensor, "T *F Y X"]:
    """Return `alpha` on the CPU in float32, with 0 in place of invalid weights (NaN, infinite, negative)."""
    alpha = alpha.detach().float().cpu()
    return torch.where(alpha.isfinite(), alpha, 0).clamp(min=0)


def relative_entropy(alpha: Float[Tensor, "T *F Y X"]) -> Float[Tensor, "T"]:
    """Return the entropy of each map divided by its maximum, log(Y X), or log(F Y X): 1 for a uniform map, or one of a
    single region; NaN for a map of zeros."""
    alpha = weights(alpha).flatten(1)
    alpha = alpha / alpha.sum(dim=1, keepdim=True)
    entropy = -torch.xlogy(alpha, alpha).sum(dim=1)
    return entropy / math.log(alpha.shape[1]) if alpha.shape[1] > 1 else entropy + 1


def even(alpha: Float[Tensor, "T *F Y X"]) -> Bool[Tensor, "T"]:
    """Return which maps are nearly uniform: their entropy is within `EVEN` of its maximum.

    The brightest region of such a map is only noise. A map of zeros does not count as uniform.
    """
    return relative_entropy(alpha) >= 1 - EVEN


def sharpest_word(
    words: Sequence[str], alpha: Float[Tensor, "T *F Y X"], content: Sequence[bool] | None = None
) -> int | None:
    """Return the index of the content word whose map has the lowest relative entropy: the map to show first. None if no
    content word has a map that is neither zero nor nearly uniform. content: see `DecodedCaption`."""
    marks = content_marks(words, content)
    found = [
        (entropy, index)
        for index, (content_word, entropy) in enumerate(zip(marks, relative_entropy(alpha).tolist(), strict=True))
        if content_word and entropy < 1 - EVEN
    ]
    return min(found)[1] if found else None


def squared(picture: Image.Image, square: Box) -> Image.Image:
    """Darken `picture` except for `square`, which is outlined in white.

    Differs from the paper: its squares are solid white, which hides the region.
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
    extent: Extent = WHOLE,
    panel: int = PANEL,
    truth: str = TRUE,
) -> Image.Image:
    """Draw the plain picture, then one panel per word: the picture lit by that word's map. Only the plain picture if
    `alpha` is None.

    Args:
        picture: what the encoder sees of the image, in its own shape: the centre square if the encoder crops.
        words, alpha: the caption's T words and the weight of each of Y x X regions at each word.
        title: a small line on top, such as the name of the file.
        caption: the large line below it; by default the words, joined by spaces.
        boxes: word -> boxes (x0, y0, x1, y1) in [-1, 1] of the object that it names, drawn on that word's panel.
        log_prob: each word's log-probability in nats, shown as a probability next to the word.
        regions: the region that hard attention selected at each word, counted row by row from 0. Each word then has a
            pair of pictures: above, its region on the darkened picture; below, the map that it was selected from.
        extent: where the regions lie on the picture.
        panel: pixels of a panel's longer side.
        truth: what boxes are, for the remark that explains them.

    Raises UserError if `words`, `alpha`, `log_prob` and `regions` differ in length, a map has no region, or a region
    lies outside the grid.
    """
    check(words, alpha, log_prob, regions, title or "attention_sheet")
    plain = fitted(picture, panel)
    panels = [Panel(plain, note="picture")]
    notes = _notes(words, alpha, log_prob)
    lights = [] if alpha is None else light(alpha, plain.height, plain.width, extent)
    for step, (word, note, lit) in enumerate(zip(words, notes, lights, strict=alpha is not None)):
        pictures = [glowing(plain, lit)]
        if regions is not None:
            pictures.insert(0, squared(plain, cell(int(regions[step]), *alpha.shape[1:], extent)))
        above, *below = (boxed(drawn, (boxes or {}).get(shown(word), ())) for drawn in pictures)
        panels.append(Panel(above, shown(word), note, *below))
    caption = (joined(words) or "no words") if caption is None else caption
    boxes = f"boxes: {truth}" if any((boxes or {}).get(shown(word)) for word in words) else ""
    return sheet(panels, caption=caption, title=title, remark=_remark(words, alpha, log_prob, boxes), legend=LEGEND)


def _notes(
    words: Sequence[str], alpha: Float[Tensor, "T Y X"] | None, log_prob: Sequence[float | int] | Tensor | None
) -> list[str]:
    """The note next to each word: whether its map is nearly even, and its probability."""
    marks = [""] * len(words) if alpha is None else ["even" if flat else "" for flat in even(alpha).tolist()]
    probabilities = [""] * len(words) if log_prob is None else [f"p {math.exp(value):.2f}" for value in log_prob]
    return [" · ".join(filter(None, both)) for both in zip(marks, probabilities, strict=True)]


def _remark(
    words: Sequence[str],
    alpha: Float[Tensor, "T Y X"] | None,
    log_prob: Sequence[float | int] | Tensor | None,
    boxes: str,
) -> str:
    """The legend of the notes, that of `boxes`, and how many maps are nearly even or zero; empty if there is none of
    it."""
    found = ["p: probability"] * (alpha is not None and log_prob is not None and len(words) > 0)
    found += [boxes] * bool(boxes)
    if alpha is not None:
        zero = weights(alpha).flatten(1).amax(dim=1) == 0
        kinds = {"zero, so the picture is dark": zero, "even (no region stands out)": even(alpha)}
        found += [f"{what}: {int(maps.sum())} of {len(words)} maps" for what, maps in kinds.items() if maps.any()]
    return " · ".join(found)


def write_sheet(
    path: str | Path, picture: Image.Image, words: Sequence[str], alpha: Float[Tensor, "T Y X"] | None, **options
) -> Path:
    """Write `attention_sheet(picture, words, alpha, **options)` as a PNG, which also holds the words as its
    description. Returns its path."""
    drawn, described = attention_sheet(picture, words, alpha, **options), PngInfo()
    described.add_text("Description", joined(words).encode("utf-8", errors="replace").decode())
    return save_picture(path, drawn, pnginfo=described)


def check(
    words: Sequence[str],
    alpha: Tensor | None,
    log_prob: Sequence[float | int] | Tensor | None,
    regions: Tensor | None,
    name: str,
) -> None:
    """Raise a UserError that begins with `name` unless each word has one valid map, log-probability and region."""
    for given, kind in (alpha, "maps"), (log_prob, "log-probabilities"), (regions, "regions"):
        if given is not None and len(given) != len(words):
            counts = f"{len(words)} words but {len(given)} {kind}"
            raise UserError(f"{name}: {counts}; give one for each word, without the end word")
    if alpha is None:
        return
    grid = "x".join(map(str, alpha.shape[1:]))
    last = math.prod(alpha.shape[1:]) - 1
    if last < 0:
        raise UserError(f"{name}: maps of {grid} have no regions")
    for region in () if regions is None else regions.tolist():
        if not 0 <= region <= last:
            outside = f"region {region} is outside the {grid} grid"
            raise UserError(f"{name}: {outside}; regions count row by row from 0 to {last}")


def _spread(regions: int, pixels: int, low: float, high: float) -> Float[Tensor, "pixels regions"]:
    """Return the weight of each region at each pixel along one axis; each row sums to 1."""
    place = positions(pixels, regions, low, high)
    return torch.softmax(-((place[:, None] - torch.arange(regions)) ** 2) / (2 * SPREAD**2), dim=1)

"""Draw attention maps as in the figures of Show, Attend and Tell: one PNG with a panel per word."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent, cell
from vision_attn.metrics.function_words import content_marks
from vision_attn.system.errors import UserError
from vision_attn.system.word_spacing import joined, shown
from vision_attn.viz.overlay.scale import SHARES, Scale, check_scale, ends, number, shares, weights
from vision_attn.viz.overlay.views import VIEW, View, check_view, outlined, overlaid, ramp
from vision_attn.viz.panel_sheets import PANEL, Bar, Box, Panel, boxed, fitted, glowing, save_picture, sheet

EVEN = 0.05
"""A map is nearly uniform if its entropy falls short of the maximum by at most this share."""

BAR = 160, 10  # pixels of the colours of a scale
RIM = 2  # width of the white line around the selected region
TRUE = "objects of which a word is true"
LEGEND = "Above: the region selected for each word. Below: the map that it was selected from."


def relative_entropy(alpha: Float[Tensor, "T *F Y X"]) -> Float[Tensor, "T"]:
    """Return the entropy of each map divided by its maximum, log(Y X) or log(F Y X). It is 1 for a uniform map and for
    a single region, NaN for a map of zeros."""
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
    words: Sequence[str],
    alpha: Float[Tensor, "T *F Y X"],
    content: Sequence[bool] | None = None,
    *,
    uniform: bool = False,
) -> int | None:
    """Return the index of the content word with the sharpest map, the one of lowest relative entropy. None if the maps
    of all content words are zero or nearly uniform.

    content: see `DecodedCaption`.
    uniform: whether to accept nearly uniform maps as well.
    """
    marks = content_marks(words, content)
    candidates = [
        (entropy, index)
        for index, (content_word, entropy) in enumerate(zip(marks, relative_entropy(alpha).tolist(), strict=True))
        if content_word and entropy < (math.inf if uniform else 1 - EVEN)
    ]
    return min(candidates)[1] if candidates else None


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
    overlay: View = VIEW,
    scale: Scale = "own",
    seen: Extent = WHOLE,
) -> Image.Image:
    """Draw the plain picture, then a panel for each word: the picture with the map of the word, in one of the views of
    `viz.overlay`, and its largest share of the weight. The scale is drawn below. If `alpha` is None, only the plain
    picture is drawn.

    picture: the image in its own shape.
    words, alpha: the caption's T words and the weight of each of Y x X regions at each word.
    title: a line of small text at the top, such as the name of the file.
    caption: a line of large text below it; by default the words, joined by spaces.
    boxes: word -> boxes (x0, y0, x1, y1) in [-1, 1] of the object that it names, drawn on that word's panel.
    log_prob: each word's log-probability in nats, shown as a probability next to the word.
    regions: the region that hard attention selected at each word, counted row by row from 0. Each word then has a
        pair of pictures: above, its region on the darkened picture; below, the map that it was selected from.
    extent: where the regions lie on the picture.
    panel: the longer side of a panel, in pixels.
    truth: the name of the boxes in the remark that explains them.
    overlay: the view.
    scale: whether the scale of each word ends at the largest share of its own map, or of all maps.
    seen: the part of the picture that the encoder sees; marked unless it is the whole picture.

    Raises UserError for an unknown view or scale, if `words`, `alpha`, `log_prob` and `regions` differ in length, if a
    map has no region, and if a region lies outside the grid.
    """
    check_view(overlay)
    check_scale(scale)
    check(words, alpha, log_prob, regions, title or "attention_sheet")
    plain = fitted(picture, panel)
    panels = [Panel(outlined(plain, seen), note="picture")]
    maps = None if alpha is None else shares(alpha)
    tops = [] if maps is None else ends(maps, scale)
    for step, (word, note, top) in enumerate(zip(words, _notes(words, maps, log_prob), tops, strict=maps is not None)):
        assert maps is not None and alpha is not None  # there are no tops without
        pictures = [overlaid(plain, maps[step], overlay, extent=extent, seen=seen, top=top)]
        if regions is not None:
            pictures.insert(0, squared(plain, cell(int(regions[step]), alpha.shape[1], alpha.shape[2], extent)))
        above, *below = (boxed(drawn, (boxes or {}).get(shown(word), ())) for drawn in pictures)
        panels.append(Panel(above, shown(word), note, *below))
    caption = (joined(words) or "no words") if caption is None else caption
    told = f"boxes: {truth}" if any((boxes or {}).get(shown(word)) for word in words) else ""
    remark = _remark(words, alpha, log_prob, told)
    bar = None if maps is None or not len(words) else scale_bar(maps, overlay, scale)
    return sheet(panels, caption=caption, title=title, remark=remark, legend=LEGEND, bar=bar)


def scale_bar(maps: Float[Tensor, "T *F Y X"], overlay: View, scale: Scale) -> Bar:
    """Return the scale below a sheet: its colours, its numbers, and the share of a uniform map.

    maps: the share of the weight in each region.
    """
    flat = f"even map: {number(1 / maps[0].numel())}"
    if overlay == "contours":
        lines = " and ".join(f"{share:.0%} ({line})" for share, line in zip(SHARES, ("thick", "thin"), strict=True))
        return Bar("", None, f"lines: the smallest areas with {lines} of the weight · {flat}")
    end = "max, of each map" if scale == "own" else f"{number(max(ends(maps)))}, for all maps"
    return Bar("0", ramp(BAR[0], BAR[1], overlay), f"{end} · shares of the weight in a region · {flat}")


def _notes(
    words: Sequence[str], maps: Float[Tensor, "T Y X"] | None, log_prob: Sequence[float | int] | Tensor | None
) -> list[str]:
    """Return the note next to each word: its largest share, whether its map is nearly uniform, and its probability."""
    marks = [""] * len(words)
    if maps is not None:
        largest = [f"max {number(share)}" for share in ends(maps)]
        marks = [f"even, {most}" if flat else most for flat, most in zip(even(maps).tolist(), largest, strict=True)]
    probabilities = [""] * len(words) if log_prob is None else [f"p {math.exp(value):.2f}" for value in log_prob]
    return [" · ".join(filter(None, both)) for both in zip(marks, probabilities, strict=True)]


def _remark(
    words: Sequence[str],
    alpha: Float[Tensor, "T Y X"] | None,
    log_prob: Sequence[float | int] | Tensor | None,
    boxes: str,
) -> str:
    """Return the legend of the notes and of `boxes`, and the number of maps that are nearly uniform or zero; empty if
    there is nothing to explain."""
    remarks = ["p: probability"] * (alpha is not None and log_prob is not None and len(words) > 0)
    remarks += [boxes] * bool(boxes)
    if alpha is not None:
        zero = weights(alpha).flatten(1).amax(dim=1) == 0
        kinds = {"zero (no weight anywhere)": zero, "even (no region stands out)": even(alpha)}
        remarks += [f"{what}: {int(maps.sum())} of {len(words)} maps" for what, maps in kinds.items() if maps.any()]
    return " · ".join(remarks)


def write_sheet(
    path: str | Path, picture: Image.Image, words: Sequence[str], alpha: Float[Tensor, "T Y X"] | None, **options
) -> Path:
    """Write `attention_sheet(picture, words, alpha, **options)` as a PNG with the words as its description. Returns its
    path."""
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
    """Raise UserError unless each word has one valid map, log-probability and region.

    name: the beginning of the message.
    """
    for given, what in (alpha, "maps"), (log_prob, "log-probabilities"), (regions, "regions"):
        if given is not None and len(given) != len(words):
            counts = f"{len(words)} words but {len(given)} {what}"
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

"""Draw figures for papers of maps: all words of one picture, or rows of pictures with columns of words, methods or
models."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle
from PIL import Image
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent, cell
from vision_attn.system.console import complain, few
from vision_attn.system.errors import UserError
from vision_attn.system.word_spacing import joined, shown
from vision_attn.viz.attention import check, even, sharpest_word
from vision_attn.viz.figures.cells import COLOURS, cells
from vision_attn.viz.figures.drawing import PaperFigure
from vision_attn.viz.figures.layout import (
    FigureBar,
    FigurePanel,
    Mark,
    PanelRow,
    columns_of,
    drawn,
    fitting,
    width_of,
    wrapped,
)
from vision_attn.viz.figures.paper import Paper
from vision_attn.viz.films import frames_of, on_strip
from vision_attn.viz.overlay.scale import Scale, check_scale, shares
from vision_attn.viz.overlay.views import VIEW, View, check_view, film_overlaid, outlined, ramp
from vision_attn.viz.page import PageItem
from vision_attn.viz.panel_sheets import Box

SCALED: dict[Scale, str] = {"own": "share of each map's largest weight", "one": "share of the weight in a region"}
ROOM = 0.95
"""The smallest width of a panel, in inches, at which each map stands beside its overlay, unless `maps` decides."""
STRIP = 3
"""Pictures with at least this width to height, such as films and lines of text, stand one below the other."""


class Options(NamedTuple):
    """The options of a figure of maps."""

    words: str | Sequence[str] | None = None
    """The words to show, as columns. None: all words of one picture; for several pictures, the word with the sharpest
    map, or the texts if there are few texts to match."""
    overlay: View = VIEW
    scale: Scale = "own"
    """Whether full colour is the largest weight of each map, or of all maps of the figure."""
    maps: bool | None = None
    """Whether, in rows of pictures, each map also stands beside its overlay. None: if there is room."""


class _Map(NamedTuple):
    """The map of one word, on its picture."""

    word: str
    alpha: Float[Tensor, "F Y X"]
    """The share of the weight in each region; one frame for a picture that is no film."""
    extent: Extent
    seen: Extent
    marks: Sequence[Mark]
    probability: float | None
    even: bool

    @property
    def most(self) -> float:
        return float(self.alpha.max())

    @property
    def numbers(self) -> list[str]:
        """Return the probability of the word and the largest share of its map, as texts."""
        sure = [] if self.probability is None else [f"p {self.probability:.2f}"]
        return [*sure, f"max {self.most:.2g}{' (even)' * self.even}"]


def caption_figure(item: PageItem, paper: Paper, options: Options, origin: str = "") -> PaperFigure:
    """Draw the picture, and an overlay for each of its words. Raises UserError if the words, maps and log-probabilities
    of the item differ in number.

    origin: the model and the method, for the foot.
    """
    maps = _maps(item)
    picture = _photograph(item, "picture" if maps else "")
    most = max((mapped.most for mapped in maps), default=0.0)
    panels = [_overlay(item.picture, mapped, options, most, shown(mapped.word), mapped.numbers) for mapped in maps]
    aspect = item.picture.width / item.picture.height
    lines = wrapped([picture, *panels], columns_of(len(maps) + 1, aspect, paper))
    bar = _bar(options, most) if maps else None
    title = item.question or joined(item.words)
    return drawn(lines, paper, title=title, bar=bar, foot=_foot(maps, [item], options, origin), tallest=2.0)


def rows_figure(
    rows: Sequence[Sequence[PageItem]],
    titles: Sequence[str],
    paper: Paper,
    options: Options,
    *,
    labels: Sequence[str] = ("",),
    origin: str = "",
) -> PaperFigure:
    """Draw a row for each photograph: the photograph, then map and overlay for each word and each label.

    rows: the items of each photograph, one for each label.
    titles: the titles of rows.
    labels: the names of methods or models that are compared.
    origin: the model and the method, for the foot.

    Rows without any of the words, words that no row has, and rows that do not fit are left out, and a logged line says
    so. If a row lacks one of the words, its panels close the gap, and each panel has its word above it. Raises
    UserError if nothing is left.
    """
    words = said(options.words, rows) if options.words else _common(list(chain(*rows)))
    table = [[_chosen(item, words) for item in items] for items in rows]
    kept = [number for number, row in enumerate(table) if any(mapped for some in row for mapped in some)]
    if not kept:
        raise UserError("nothing to draw: this model has no maps")
    if left := [rows[number][0].title for number in range(len(rows)) if number not in kept]:
        complain(f"left out of the figure, without a map to show: {few(left)}")
    maps = [mapped for number in kept for some in table[number] for mapped in some if mapped]
    groups = [" · ".join(filter(None, both)) for both in ((label, word) for label in labels for word in words or [""])]
    counts = [sum(mapped is not None for some in table[number] for mapped in some) for number in kept]
    packed = bool(words) and len(labels) == 1 and min(counts) < len(groups)
    room = width_of(1 + 2 * (max(counts) if packed else len(groups)), paper)
    pairs = room >= ROOM if options.maps is None else options.maps
    if options.maps is None and not pairs:
        complain(f"maps by themselves are left out: panels would be {room:.2g} inches wide, less than {ROOM}")
    both = [(f"{group}: map", group) if group else ("map", "overlay") for group in groups]
    heads = ["photograph", *(head for pair in both for head in (pair if pairs else pair[1:]))]
    most = max(mapped.most for mapped in maps)
    lines: list[list[PanelRow]] = []  # of each row
    strips = all(row[0].picture.width >= STRIP * row[0].picture.height for row in rows)
    for number in kept:
        panels: list[FigurePanel | None] = [_photograph(rows[number][0])]
        for item, some in zip(rows[number], table[number], strict=True):
            for mapped in some:
                if mapped is None:
                    panels += [None] * (1 + pairs)
                    continue
                notes = [*([] if words else [shown(mapped.word)]), *mapped.numbers]
                panels += [_cells(item.picture, mapped, options, most)] * pairs
                panels.append(_overlay(item.picture, mapped, options, most, "", notes))
        named = [panel._replace(title=head) for panel, head in zip(panels, heads, strict=True) if panel]
        if strips:
            lines.append(wrapped(named, 1, titles[number]))
        else:
            lines.append([PanelRow(named if packed else panels, titles[number])])
    foot = _foot(maps, [item for number in kept for item in rows[number]], options, origin, pairs)
    heads = [] if strips or packed else heads
    return drawn(fitting(lines, paper), paper, heads=heads, bar=_bar(options, most, pairs), foot=foot)


def said(words: str | Sequence[str], rows: Sequence[Sequence[PageItem]]) -> list[str]:
    """Return the `words` that the captions have. Logs the others; raises UserError if all are missing."""
    words = [words] if isinstance(words, str) else words
    there = {shown(word).casefold() for word in chain.from_iterable(item.words for item in chain(*rows))}
    missing = [word for word in words if word.casefold() not in there]
    if len(missing) == len(words):
        known = _quoted(sorted(there)[:20]) + ", ..." * (len(there) > 20)
        raise UserError(f"no caption has the word {_quoted(missing, ' or ')}; the words are {known}")
    if missing:
        complain(f"no caption has the word {_quoted(missing)}")
    return [word for word in words if word not in missing]


def _quoted(words: Sequence[str], between: str = ", ") -> str:
    return between.join(f'"{word}"' for word in words)


def _common(items: Sequence[PageItem]) -> list[str] | None:
    """Return the words if all items have the same few, like texts to match, and are no captions; else None."""
    first = list(items[0].words)
    same = all(item.content is None and list(item.words) == first for item in items)
    return first if same and 1 < len(first) <= 4 else None


def _chosen(item: PageItem, words: Sequence[str] | None) -> list[_Map | None]:
    """Return the maps of an item for these words, None for a missing word; if `words` is None, the map of its sharpest
    word."""
    maps = _maps(item)
    if words is None:
        if not maps:
            return [None]
        alpha = torch.stack([mapped.alpha for mapped in maps])
        marks = item.content, [True] * len(maps)  # of a content word, even where all of their maps are nearly even
        best = (sharpest_word(item.words, alpha, content, uniform=True) for content in marks)
        return [maps[next((place for place in best if place is not None), 0)]]
    named = {shown(mapped.word).casefold(): mapped for mapped in reversed(maps)}
    return [named.get(word.casefold()) for word in words]


def _maps(item: PageItem) -> list[_Map]:
    """Return the map of each word; empty for a model without maps."""
    check(item.words, item.alpha, item.log_prob, item.regions, item.title)
    if item.alpha is None:
        return []
    alpha, maps = shares(item.alpha), []
    flat = even(alpha).tolist()
    for step, word in enumerate(item.words):
        boxes = (item.boxes or {}).get(shown(word), ())
        marks = [partial(_boxed, box=on_strip(box, item.frames) if item.frames > 1 else box) for box in boxes]
        if item.regions is not None:
            within = item.extent.seen_from(item.seen)
            box = Extent(*cell(int(item.regions[step]), alpha.shape[1], alpha.shape[2], within)).within(item.seen)
            marks.append(partial(_boxed, box=box, colour="white"))
        probability = None if item.log_prob is None else math.exp(float(item.log_prob[step]))
        maps.append(
            _Map(word, alpha[step].view(-1, *alpha.shape[-2:]), item.extent, item.seen, marks, probability, flat[step])
        )
    return maps


def _photograph(item: PageItem, title: str = "") -> FigurePanel:
    """Return the panel of the picture, with the part marked that the model saw."""

    def paint(fitted: Image.Image) -> Image.Image:
        return _side_by_side([outlined(frame, item.seen) for frame in frames_of(fitted, item.frames)])

    return FigurePanel(item.picture, title, paint=paint)


def _overlay(
    picture: Image.Image, mapped: _Map, options: Options, most: float | int, title: str, notes: Sequence[str]
) -> FigurePanel:
    """Return the panel of the picture with the map over it."""
    top = _full(mapped, options, most)

    def paint(fitted: Image.Image) -> Image.Image:
        film = frames_of(fitted, len(mapped.alpha))
        lit = film_overlaid(film, mapped.alpha, options.overlay, extent=mapped.extent, seen=mapped.seen, top=top)
        return _side_by_side(lit)

    return FigurePanel(picture, title, " · ".join(notes), mapped.marks, paint)


def _cells(picture: Image.Image, mapped: _Map, options: Options, most: float | int) -> FigurePanel:
    """Return the panel of the map by itself, cell by cell, in the part that the model saw."""
    share = mapped.alpha / _full(mapped, options, most)
    frames = len(share)

    def paint(fitted: Image.Image) -> Image.Image:
        sizes = [frame.size for frame in frames_of(fitted, frames)]
        strip = [cells(map_, size, mapped.extent, mapped.seen) for map_, size in zip(share, sizes, strict=True)]
        return _side_by_side(strip)

    return FigurePanel(picture, paint=paint)


def _side_by_side(frames: Sequence[Image.Image]) -> Image.Image:
    """Join the frames of a film as a strip."""
    strip = Image.new("RGB", (sum(frame.width for frame in frames), frames[0].height))
    for number, frame in enumerate(frames):
        strip.paste(frame, (number * frame.width, 0))
    return strip


def _full(mapped: _Map, options: Options, most: float | int) -> float:
    """Return the weight at full colour; 1 for a map of zeros."""
    return (mapped.most if options.scale == "own" else most) or 1.0


def _bar(options: Options, most: float | int, pairs: bool = False) -> FigureBar | None:
    """Return the colour bar; None for contours alone. Raises UserError for an unknown view or scale.

    pairs: whether maps stand beside overlays, and have the colours of maps without a picture; else colours are shown
        over grey, as on pages.
    """
    check_view(options.overlay)
    check_scale(options.scale)
    if options.overlay == "contours" and not pairs:
        return None
    colours = COLOURS if pairs else ListedColormap(np.asarray(ramp(256, 1, options.overlay))[0] / 255)
    return FigureBar(1.0 if options.scale == "own" else most or 1.0, SCALED[options.scale], colours)


def _boxed(axes: Axes, box: Box, colour: str = "#ffb454") -> None:
    """Outline a box in a line that is visible on light and on dark."""
    x0, y0, x1, y1 = map(float, box)
    options: dict[str, Any] = {"fill": False, "clip_on": True}
    for line, ink in ((2.2, "black"), (1.1, colour)):
        axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, linewidth=line, edgecolor=ink, **options))


def _foot(maps: Sequence[_Map], items: Sequence[PageItem], options: Options, origin: str, pairs: bool = False) -> str:
    """Return the foot: the model and method, the share of a uniform map if all maps have one size, and the meaning of
    outlines."""
    told = [origin] if origin else []
    if not maps:
        return "".join(told)
    sizes = {mapped.alpha.numel() for mapped in maps}
    told.append("max: the largest share of the weight in a region")
    if len(sizes) == 1:
        told[-1] += f"; of an even map: {1 / sizes.pop():.2g}"
    if pairs and options.overlay in ("color", "cells"):
        told.append("overlay: the same colours, the more transparent the smaller the share")
    if options.overlay == "contours":
        told.append("lines: around the smallest regions that hold 50% (thick) and 90% of the weight")
    if any(item.seen != WHOLE for item in items):
        told.append("outline, darker around: what the model saw")
    if any(item.regions is not None for item in items):
        told.append("white outline: the region that was selected")
    if any((item.boxes or {}).get(shown(word)) for item in items for word in item.words):
        told.append("orange outline: what the word is true of")
    return " · ".join(told)

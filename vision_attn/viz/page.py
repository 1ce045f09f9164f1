"""Write the interactive page of one or more images with maps: a self-contained HTML file, on which pointing at a word
shows its map."""

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent, cell, centres
from vision_attn.system.word_spacing import gaps, joined, shown
from vision_attn.viz.attention import check, even, sharpest_word
from vision_attn.viz.films import on_strip, times_of
from vision_attn.viz.html import data_url, write_html
from vision_attn.viz.overlay.pages import NAMES, constants
from vision_attn.viz.overlay.scale import Scale, check_scale, shares, weights
from vision_attn.viz.overlay.views import VIEW, View, check_view
from vision_attn.viz.panel_sheets import Box, fitted

SIDE = 448  # largest longer side of a photograph in the page, in pixels
LAYOUTS = {1: "one", 2: "two"}  # of pages with one or two pictures
DRAWN = 128  # pictures up to this size are taken to be synthetic and enlarged with sharp pixels

Unit = Literal["word", "character", "hop", "map", "answer", "text"]
"""What a page calls the parts of the model's output."""
KEYS = " The key v changes the view, s the scale, which says what share of the weight lies in a region."
GUIDE = (
    "Point at a {}, tap it, or step through with the arrow keys, to see where the model looked when it said it. "
    "Press a picture to see it plain."
) + KEYS
P = {
    "word": " p is the probability that the model gave a word, after those before it.",
    "character": " p is the probability that the model gave a character.",
}
"""The explanation of p, by unit; for other units, callers explain it in their guides."""
BOXES = {
    "word": " A box is an object of which the word is true.",
    "character": " A box is where the character is.",
    "hop": " A box is the object that the answer follows from at this hop.",
}
ACTORS = " A box is on the actor of the event that the word tells of, while the event happens."
FILMS = " The line below a film shows how much it looked at each frame."
PART = " An outline marks the part of a photograph that the model saw."
REFERENCES = {"word": "Reference captions", "character": "What is written"}
NO_MAPS = "This captioner has no attention, so its captions have no maps."


class PageItem(NamedTuple):
    """One image, its caption, and the map of each word."""

    title: str
    picture: Image.Image
    """The image in its own shape."""
    words: Sequence[str]
    alpha: Float[Tensor, "T *F Y X"] | None = None
    """The weight of each of Y x X regions at each of the T words, for a film in each of F frames; None if the captioner
    has no maps."""
    references: Sequence[str] = ()
    """Reference captions of the image."""
    boxes: Mapping[str, Sequence[Box]] | None = None
    """Word -> boxes (x0, y0, x1, y1) in [-1, 1] of the object that it names."""
    log_prob: Sequence[float | int] | Float[Tensor, "T"] | None = None
    """Each word's log-probability, in nats."""
    regions: Int[Tensor, "T"] | None = None
    """The region that hard attention selected at each word, counted row by row from 0. Outlined in white."""
    layers: Float[Tensor, "T N K Y X"] | Sequence[Float[Tensor, "T _ _ _"]] | None = None
    """The weights of K heads in N layers, which the reader can choose on the page. May differ from `alpha` in size. A
    list of layers (T, K, Y, X) if these differ in size."""
    extent: Extent = WHOLE
    """Where the regions of `alpha` lie on the picture."""
    layers_extent: Extent = WHOLE
    """Where the regions of `layers` lie on the picture."""
    question: str = ""
    """The question and its answer, shown above the words."""
    frames: int = 1
    """The number of frames of a film; they are side by side in `picture`, and boxes have the frame as fifth number."""
    content: Sequence[bool] | None = None
    """Whether each word is a content word: see `DecodedCaption`."""
    rest: int | None = None
    """The word whose map is shown first, counted from 0; by default the `sharpest_word`."""
    answers: Sequence[tuple[str, float]] = ()
    """The likeliest answers with their probabilities, best first; listed below the words."""
    seen: Extent = WHOLE
    """The part of the picture, or of each frame, that the encoder sees; marked unless it is the whole."""


def write_page(
    path: str | Path,
    items: Sequence[PageItem],
    *,
    title: str = "Where each word looked",
    guide: str | None = None,
    unit: Unit = "word",
    origin: str = "",
    overlay: View = VIEW,
    scale: Scale = "own",
) -> Path:
    """Write an HTML page on which pointing at a word, tapping it or selecting it by keyboard shows its map. At rest, a
    caption shows the map of its `sharpest_word`.

    `page.html#image-2-word-5` opens at the fifth word of the second image. The file is self-contained and works from
    disk. Pictures are stored at no more than 448 pixels, maps with one byte per region. Items with `layers` have
    sliders for the layer and the head.

    guide: replaces the line below the title.
    unit: what a word is; with "character", the n-th "7" has the n-th box of "7".
    origin: the model and the method that made the maps, shown before the guide.
    overlay, scale: the view and the scale at the start, which the reader may change; see `viz.overlay`.

    Raises UserError, before anything is written, for an unknown view or scale, if the words, maps, log-probabilities
    and regions of an item differ in length, and if a region lies outside its grid.
    """
    check_view(overlay)
    check_scale(scale)
    for item in items:
        check(item.words, item.alpha, item.log_prob, item.regions, item.title)
    mapped, cut = any(item.alpha is not None for item in items), any(item.seen != WHOLE for item in items)
    return write_html(
        path,
        "page.html",
        title=title,
        guide=(origin if mapped else "") + (guide or _guide(items, unit)) + (PART if cut else ""),
        figures=(_figure(item, unit) for item in items),
        references=REFERENCES.get(unit, REFERENCES["word"]),
        layout="strips" if all(_wide(item.picture) for item in items) else LAYOUTS.get(len(items), "many"),
        unit=unit,
        hard=any(item.regions is not None for item in items),
        views=NAMES if mapped else {},
        overlay=overlay,
        scale=scale,
        **constants(),
    )


def _wide(picture: Image.Image) -> bool:
    """Return whether a picture is a strip, such as a line of text or the frames of a film."""
    return picture.width >= 3 * picture.height


def _guide(items: Sequence[PageItem], unit: Unit) -> str:
    if all(item.alpha is None for item in items):
        return NO_MAPS
    films = any(item.frames > 1 for item in items)
    boxes = (ACTORS if films else BOXES.get(unit, "")) if any(item.boxes for item in items) else ""
    told = P.get(unit, "") if any(item.log_prob is not None for item in items) else ""
    return GUIDE.format(unit) + told + boxes + (FILMS if films else "")


class _Word(NamedTuple):
    """A word, its map, and their descriptions."""

    text: str
    gap: str
    """The text up to the next word: a space, or nothing."""
    map: str
    """`_bytes` of the map, in base64."""
    layers: str
    """`_heads` of all layers, in base64; empty without layers."""
    told: str
    boxes: str
    most: str
    """The largest share of a region in the map."""
    mosts: str
    """The largest share of each mean and head of `layers`, separated by spaces."""


class _Dials(NamedTuple):
    """The layers among which the reader can choose: the number of heads of each, and the size of its maps."""

    heads: list[int]
    rows: list[int]
    columns: list[int]
    extent: str


class _Figure(NamedTuple):
    """The template's data of an item."""

    item: PageItem
    source: str
    alt: str
    kinds: list[str]
    """Classes of the figure."""
    rest: int | None
    """The word, counted from 1, whose map is shown at rest."""
    rows: int
    columns: int
    extent: str
    seen: str
    """The edges of the part that the encoder saw; empty for the whole."""
    around: str
    """The distance of this part from the edges of the picture, as CSS."""
    times: list[str]
    words: list[_Word]
    plain: str
    """The text of a model without maps."""
    dials: _Dials | None


def _figure(item: PageItem, unit: Unit) -> _Figure:
    drawn, mapped = max(item.picture.width // item.frames, item.picture.height) <= DRAWN, item.alpha is not None
    between = [" "] * (len(item.words) - 1) + [""] if unit == "character" else gaps(item.words)
    at_rest = item.rest
    if at_rest is None and item.alpha is not None and unit != "character":
        at_rest = sharpest_word(item.words, item.alpha, item.content)
    rows, columns = (1, 1) if item.alpha is None else item.alpha.shape[-2:]
    return _Figure(
        item=item,
        source=_source(item.picture, drawn, item.frames),
        alt=joined(item.words) or item.title,
        kinds=[name for name, holds in (("drawn", drawn), ("hard", item.regions is not None)) if holds],
        rest=None if at_rest is None else at_rest + 1,
        rows=rows,
        columns=columns,
        extent=edges_of(item.extent.seen_from(item.seen)),
        seen=edges_of(item.seen) if item.seen != WHOLE else "",
        around=around(item.seen),
        times=times_of(item.picture) if item.frames > 1 else [],
        words=list(_words(item, between, unit)) if mapped else [],
        plain="".join(shown(word) + gap for word, gap in zip(item.words, between, strict=False)).rstrip(),
        dials=_dials(item),
    )


def _dials(item: PageItem) -> _Dials | None:
    if item.layers is None or not len(item.words):
        return None
    heads, rows, columns = ([layer.shape[axis] for layer in _layers(item.layers)] for axis in (1, 2, 3))
    return _Dials(heads, rows, columns, edges_of(item.layers_extent.seen_from(item.seen)))


def _layers(
    layers: Float[Tensor, "T N K Y X"] | Sequence[Float[Tensor, "T _ _ _"]],
) -> Sequence[Float[Tensor, "T _ _ _"]]:
    return layers.unbind(1) if isinstance(layers, Tensor) else layers


def _heads(maps: Float[Tensor, "K Y X"]) -> Float[Tensor, "K_1 L"]:
    """Return a layer's mean and heads."""
    return weights(torch.cat([maps.mean(dim=0, keepdim=True), maps])).flatten(1)


def map_of(alpha: Float[Tensor, "*any"]) -> str:
    """Encode a map for a page: `_bytes` in base64."""
    return _encoded(_bytes(weights(alpha.flatten()[None])))


def _bytes(maps: Float[Tensor, "N L"]) -> bytes:
    """Return a byte for each region: 255 where a map is largest."""
    scaled = maps / maps.amax(dim=1, keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)
    return (scaled * 255).round().byte().numpy().tobytes()


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _words(item: PageItem, between: Sequence[str], unit: Unit) -> Iterator[_Word]:
    """Yield each word with its map and description."""
    assert item.alpha is not None
    times = times_of(item.picture)
    alpha, layers = weights(item.alpha), None if item.layers is None else _layers(item.layers)
    for step, word in enumerate(item.words):
        heads = [] if layers is None else [_heads(layer[step]) for layer in layers]
        told = f"{unit} {step + 1} of {len(item.words)} · " if len(item.words) > 1 else ""
        told += _place(alpha[step], item.extent, times)
        boxes = list((item.boxes or {}).get(shown(word), ()))
        if item.frames > 1:
            boxes = [on_strip(box, item.frames) for box in boxes]
        if unit == "character":
            before = item.words[:step].count(word)
            boxes = boxes[before : before + 1]
        if item.regions is not None:
            rows, columns = alpha.shape[-2:]
            frame, region = divmod(int(item.regions[step]), rows * columns)
            told += f" · saw {_where(frame, region, alpha[step], item.extent, times)}"
            square = cell(region, rows, columns, item.extent)
            boxes.append(on_strip((*square, frame), item.frames) if item.frames > 1 else square)
        if item.log_prob is not None:
            told += f" · p {math.exp(item.log_prob[step]):.2f}"
        map_, kept = map_of(alpha[step]), _encoded(b"".join(map(_bytes, heads)))
        mosts = " ".join(_most(head) for several in heads for head in several)
        yield _Word(shown(word), between[step], map_, kept, told, _boxes(boxes), _most(alpha[step]), mosts)


def _most(alpha: Float[Tensor, "*any"]) -> str:
    """Return the largest share of a map."""
    return f"{float(shares(alpha.flatten()[None]).amax()):.4g}"


def _place(alpha: Float[Tensor, "*F Y X"], extent: Extent, times: Sequence[str]) -> str:
    """Describe in words where the region with the largest weight is, unless the map is zero or nearly uniform."""
    if not alpha.any():
        return "looks nowhere"
    if even(alpha[None])[0]:
        return "looks nearly everywhere"
    frame, region = divmod(int(alpha.argmax()), alpha.shape[-2] * alpha.shape[-1])
    return f"looks {_where(frame, region, alpha, extent, times)}"


def _where(frame: int, region: int, alpha: Float[Tensor, "*F Y X"], extent: Extent, times: Sequence[str]) -> str:
    """Describe in words where a region is and, for a film, the frame and its time."""
    *frames, rows, columns = alpha.shape
    ninth = _ninth(region, rows, columns, extent)
    if not frames:
        return ninth
    when = f" ({times[frame]})" if times else ""
    return f"at frame {frame + 1} of {frames[0]}{when}" + (f", {ninth}" if rows * columns > 1 else "")


def _ninth(region: int, rows: int, columns: int, extent: Extent) -> str:
    """Describe in words which ninth of the picture holds the centre of a region."""
    x, y = centres(rows, columns, extent)[region].tolist()
    down = ("top", "middle", "bottom")[min(int(1.5 * (y + 1)), 2)]
    across = ("left", "centre", "right")[min(int(1.5 * (x + 1)), 2)]
    return f"{down} {across}".replace("middle centre", "at the centre")


def _boxes(boxes: Sequence[Box]) -> str:
    """Format boxes as left, top, width and height in percent of the picture, separated by semicolons."""
    corners = [sorted((float(x0), float(x1))) + sorted((float(y0), float(y1))) for x0, y0, x1, y1 in boxes]
    edges = [((x0 + 1) * 50, (y0 + 1) * 50, (x1 - x0) * 50, (y1 - y0) * 50) for x0, x1, y0, y1 in corners]
    return ";".join(" ".join(f"{edge:.2f}" for edge in four) for four in edges)


def edges_of(extent: Extent) -> str:
    """Format an extent as left, top, right and bottom in shares of the picture."""
    return " ".join(f"{(edge + 1) / 2:.4f}" for edge in extent)


def around(seen: Extent) -> str:
    """Format the distances of a part from the top, right, bottom and left of the picture, in percent."""
    return " ".join(f"{50 * share:.2f}%" for share in (seen.y0 + 1, 1 - seen.x1, 1 - seen.y1, seen.x0 + 1))


def _source(picture: Image.Image, drawn: bool, frames: int) -> str:
    """Encode the picture as a data URL: PNG if it is synthetic, else JPEG."""
    kept = io.BytesIO()
    if drawn:
        fitted(picture, max(picture.size)).save(kept, "PNG")
        return data_url(kept.getvalue(), "png")
    side = min(SIDE if frames == 1 else 3 * SIDE, max(picture.size))
    fitted(picture, side).save(kept, "JPEG", quality=82, optimize=True)
    return data_url(kept.getvalue(), "jpeg")

"""Interactive attention maps of one or more images: a self-contained HTML file in which words can be pointed at."""

import base64
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent, cell, centres
from vision_attn.system.written import gaps, joined, shown
from vision_attn.viz.attention import SPREAD, check, even, sharpest_word, weights
from vision_attn.viz.films import on_strip, times_of
from vision_attn.viz.sheet import DIM, PALE, VEIL, Box, fitted, save_page

SIDE = 448  # largest longer side of a photograph in the page, in pixels
LAYOUTS = {1: "one", 2: "two"}  # of pages with one or two pictures
DRAWN = 128  # pictures up to this size are taken to be synthetic and enlarged with sharp pixels

Unit = Literal["word", "character", "hop", "map"]
"""What pages call the parts of what a model said."""
GUIDE = (
    "Point at a {}, tap it, or step through with the arrow keys, to see where the model looked when it said it. "
    "Press a picture to see it without light."
)
BOXES = {
    "word": " A box is an object of which the word is true.",
    "character": " A box is where the character is.",
    "hop": " A box is the object that the answer follows from at this hop.",
    "map": "",
}
ACTORS = " A box is on the actor of the event that the word tells of, while the event happens."
FILMS = " The line below a film shows how much it looked at each frame."
REFERENCES = {"word": "Reference captions ({})", "character": "What is written ({})"}
NO_MAPS = "This captioner has no attention, so its captions have no maps."


class PageItem(NamedTuple):
    """One image, its caption, and where the model looked at each word."""

    title: str
    picture: Image.Image
    """What the encoder sees of the image, in its own shape: the centre square if the encoder crops."""
    words: Sequence[str]
    alpha: Float[Tensor, "T *F Y X"] | None = None
    """The weight of each of Y x X regions at each of the T words, of each of F frames of a film; None if the captioner
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
    """The weights by layer and head, for a model of several: the page lets one choose among them. Not of `alpha`'s size
    necessarily. A list of layers (T, K, Y, X) where they differ in size."""
    extent: Extent = WHOLE
    """Where the regions of `alpha` lie on the picture."""
    layers_extent: Extent = WHOLE
    """The same of `layers`."""
    question: str = ""
    """What was asked, and answered: stands above the words."""
    frames: int = 1
    """The number of frames of a film, whose `picture` has them side by side; its boxes have a frame as fifth number."""


def write_page(
    path: str | Path,
    items: Sequence[PageItem],
    *,
    title: str = "Where each word looked",
    guide: str | None = None,
    unit: Unit = "word",
) -> Path:
    """Write an HTML page on which pointing at a word, tapping it or selecting it by keyboard shows its map. At rest, a
    caption shows the map of its `sharpest_word`.

    `page.html#image-2-word-5` opens at the fifth word of the second image. The file is self-contained and works from
    disk. Pictures are stored at no more than 448 pixels, maps with one byte per region. Items with `layers` have
    sliders for the layer and the head. `guide` replaces the line below the title. With "character" as `unit`, words are
    characters, and the n-th "7" has the n-th box of "7".

    Raises ValueError, before anything is written, if an item's words, maps, log-probabilities and regions differ in
    length, or a region lies outside its grid.
    """
    for item in items:
        check(item.words, item.alpha, item.log_prob, item.regions, item.title)
    parts = {
        "title": escape(title),
        "guide": escape(guide or _guide(items, unit)),
        "figures": "\n".join(_figure(number, item, unit) for number, item in enumerate(items, 1)),
        "layout": "strips" if all(_wide(item.picture) for item in items) else LAYOUTS.get(len(items), "many"),
        "spread": str(SPREAD),
        "veil": str(VEIL),
        "dim": str(DIM),
        "pale": str(PALE),
        "square": _SQUARE if any(item.regions is not None for item in items) else "",
    }
    page = files("vision_attn.viz").joinpath("page.html").read_text(encoding="utf-8")
    page = re.sub(r"{{(\w+)}}", lambda hole: parts[hole[1]], page)  # one pass: {{...}} within a caption is not replaced
    return save_page(path, page)


def _wide(picture: Image.Image) -> bool:
    """Whether a picture is a strip, such as a line of text or the frames of a film."""
    return picture.width >= 3 * picture.height


def _guide(items: Sequence[PageItem], unit: Unit) -> str:
    if all(item.alpha is None for item in items):
        return NO_MAPS
    films = any(item.frames > 1 for item in items)
    boxes = ACTORS if films else BOXES[unit]
    return GUIDE.format(unit) + boxes * any(item.boxes for item in items) + FILMS * films


def _figure(number: int, item: PageItem, unit: Unit) -> str:
    width, height = item.picture.width // item.frames, item.picture.height
    caption, drawn = joined(item.words), max(width, height) <= DRAWN
    kinds = " ".join(["drawn"] * drawn + ["hard"] * (item.regions is not None))
    rows, columns = (1, 1) if item.alpha is None else item.alpha.shape[-2:]
    between = [" "] * len(item.words) if unit == "character" else gaps(item.words)
    words = "".join(word + gap for word, gap in zip(_words(number, item, unit), between, strict=True)).rstrip()
    words = words or '<span class="none">no words</span>'
    name, play = escape(item.title), _PLAY.format(unit) if len(item.words) > 1 and item.alpha is not None else ""
    rest = None if item.alpha is None or unit == "character" else sharpest_word(item.words, item.alpha)
    attributes = f' class="{kinds}"' * bool(kinds) + (f' data-rest="{rest + 1}"' if rest is not None else "")
    return f"""<figure id="image-{number}"{attributes}>
<div class="view{" film" * (item.frames > 1)}" data-rows="{rows}" data-columns="{columns}"\
 data-extent="{_edges(item.extent)}" data-frames="{item.frames}"\
 style="--shape: {item.picture.width / item.picture.height:.3f}; --frames: {item.frames}">
<img src="{_data(item.picture, drawn, item.frames)}" alt="{escape(caption or item.title)}">
<div class="boxes"></div>
</div>{_timeline(item)}
<figcaption>
<div class="bar"><p class="title" dir="auto" title="{name}">{name}</p>{play}</div>
{_QUESTION.format(escape(item.question)) if item.question else ""}\
<p class="caption" dir="auto" role="group" aria-label="What the model said">{words}</p>
<p class="told" aria-live="polite"></p>
{_dials(item)}{_references(item.references, unit)}</figcaption>
</figure>"""


def _timeline(item: PageItem) -> str:
    """The line below a film. Its frames are evenly spaced in time, so their bars are."""
    if item.frames == 1:
        return ""
    times = times_of(item.picture)
    bars = "".join(f'<i title="{time}"></i>' for time in times) or "<i></i>" * item.frames
    ends = f'\n<div class="ends"><span>{times[0]}</span><span>{times[-1]}</span></div>' if times else ""
    return f'\n<div class="time" aria-hidden="true">{bars}</div>{ends}'


def _dials(item: PageItem) -> str:
    """Sliders for the layer (0: the map itself) and the head (0: the mean of all)."""
    if item.layers is None or not len(item.words):
        return ""
    layers = _layers(item.layers)
    heads, rows, columns = (" ".join(str(layer.shape[axis]) for layer in layers) for axis in (1, 2, 3))
    most = max(layer.shape[1] for layer in layers)
    return (
        f'<div class="dials" data-heads="{heads}" data-rows="{rows}" data-columns="{columns}"'
        f' data-extent="{_edges(item.layers_extent)}">'
        f'<label>Layer <input type="range" min="0" max="{len(layers)}" value="0"> <output>as chosen</output></label>'
        f'<label>Head <input type="range" min="0" max="{most}" value="0" disabled> <output>mean</output></label>'
        "</div>\n"
    )


def _layers(
    layers: Float[Tensor, "T N K Y X"] | Sequence[Float[Tensor, "T _ _ _"]],
) -> Sequence[Float[Tensor, "T _ _ _"]]:
    return layers.unbind(1) if isinstance(layers, Tensor) else layers


def _heads(maps: Float[Tensor, "K Y X"]) -> bytes:
    """A layer's mean and heads; see `_bytes`."""
    return _bytes(weights(torch.cat([maps.mean(dim=0, keepdim=True), maps])).flatten(1))


def _bytes(maps: Float[Tensor, "N L"]) -> bytes:
    """A byte for each region: 255 where a map is largest."""
    scaled = maps / maps.amax(dim=1, keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)
    return (scaled * 255).round().byte().numpy().tobytes()


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


_QUESTION = '<p class="question" dir="auto">{}</p>\n'
_PLAY = '<button type="button" aria-label="Play one {} after the other">Play</button>'


# The selected region is the last of a word's boxes. The rule is added only if there is one.
_SQUARE = """
  .hard .boxes i:last-child { border: 2px solid #fff; box-shadow: 0 0 0 1px #0009, inset 0 0 0 1px #0009; }"""


def _words(number: int, item: PageItem, unit: Unit) -> Iterator[str]:
    """Yield each word with its map and description. A <span>, not a <button>, so that mixed scripts keep their order.

    The tab key reaches one word of a caption; the arrow keys move between words.
    """
    if item.alpha is None:
        yield from map(escape, map(shown, item.words))
        return
    times = times_of(item.picture)
    alpha, layers = weights(item.alpha), None if item.layers is None else _layers(item.layers)
    for step, word in enumerate(item.words):
        bits, heads = _encoded(_bytes(alpha[step].flatten()[None])), ""
        if layers is not None:
            heads = f' data-layers="{_encoded(b"".join(_heads(layer[step]) for layer in layers))}"'
        told = f"{unit} {step + 1} of {len(item.words)} · {_place(alpha[step], item.extent, times)}"
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
        yield (
            f'<span class="word" id="image-{number}-word-{step + 1}" role="button" tabindex="{0 if step == 0 else -1}"'
            f' aria-pressed="false" data-map="{bits}"{heads} data-told="{escape(told)}"'
            f' data-boxes="{_boxes(boxes)}">{escape(shown(word))}</span>'
        )


def _place(alpha: Float[Tensor, "*F Y X"], extent: Extent, times: Sequence[str]) -> str:
    """Describe in words where the region with the largest weight is, unless the map is zero or nearly uniform."""
    if not alpha.any():
        return "looks nowhere"
    if even(alpha[None])[0]:
        return "looks nearly everywhere"
    frame, region = divmod(int(alpha.argmax()), alpha.shape[-2] * alpha.shape[-1])
    return f"looks {_where(frame, region, alpha, extent, times)}"


def _where(frame: int, region: int, alpha: Float[Tensor, "*F Y X"], extent: Extent, times: Sequence[str]) -> str:
    """Describe in words where a region is, and in which frame of a film, at which of its times."""
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


def _edges(extent: Extent) -> str:
    """Format an extent as left, top, right and bottom in shares of the picture."""
    return " ".join(f"{(edge + 1) / 2:.4f}" for edge in extent)


def _references(references: Sequence[str], unit: Unit) -> str:
    if not references:
        return ""
    lines = "".join(f'<li dir="auto">{escape(line)}</li>' for line in references)
    return f"<details><summary>{REFERENCES[unit].format(len(references))}</summary><ul>{lines}</ul></details>\n"


def _data(picture: Image.Image, drawn: bool, frames: int) -> str:
    """Encode the picture as a data URL: PNG if it is synthetic, else JPEG."""
    kept = io.BytesIO()
    if drawn:
        fitted(picture, max(picture.size)).save(kept, "PNG")
    else:
        fitted(picture, min(SIDE if frames == 1 else 3 * SIDE, max(picture.size))).save(
            kept, "JPEG", quality=82, optimize=True
        )
    return f"data:image/{'png' if drawn else 'jpeg'};base64,{_encoded(kept.getvalue())}"

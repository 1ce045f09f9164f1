"""Draw captioned films: for each word the frames side by side with its map, and an animation that plays the film."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from PIL import Image, ImageColor, ImageDraw
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.system.word_spacing import joined, shown
from vision_attn.viz.attention import scale_bar
from vision_attn.viz.canvases import write_frames
from vision_attn.viz.overlay.scale import Scale, check_scale, ends, number, shares, weights
from vision_attn.viz.overlay.views import VIEW, View, check_view, film_overlaid, outlined
from vision_attn.viz.panel_sheets import BAR_LINE, DARK, MARGIN, Box, bar_lines, boxed, draw_bar, fitted
from vision_attn.viz.typeface import Typeface

FRAME, GAP, LABEL = 96, 6, 150
"""The longer side of a frame, the gap between frames, and the width of the margin for words, in pixels."""
BOXES = "boxes: the actor of the event that a word tells of"
PLAYED = 288
"""The longer side of a frame in an animation, in pixels."""
EDGE = "#30353f"
"""The colour of the edge of a frame, which may be as dark as the page, and of the line that shows the time."""
PACE = 350
"""The duration of a frame in an animation, in milliseconds."""
TIMELINE, SPACE = 14, 6
"""The height of the line that shows the time, and the space between words, in pixels."""


def frames_of(strip: Image.Image, frames: int) -> list[Image.Image]:
    """Cut a strip, the frames of a film side by side, into its frames."""
    width = strip.width // frames
    return [strip.crop((width * number, 0, width * (number + 1), strip.height)) for number in range(frames)]


def on_strip(box: Box, frames: int) -> tuple[float, float, float, float]:
    """Convert a box of a film, (x0, y0, x1, y1, frame), to coordinates on the strip of its frames."""
    x0, y0, x1, y1, frame = (float(edge) for edge in box)
    left, right = ((x + 1 + 2 * frame) / frames - 1 for x in (x0, x1))
    return left, y0, right, y1


def times_of(strip: Image.Image) -> list[str]:
    """Return the time of each frame of a film as text: "2.4 s", or "1:02" after a minute; empty if unknown."""
    return [
        f"{seconds:.1f} s" if seconds < 60 else "{}:{:02d}".format(*divmod(round(seconds), 60))
        for seconds in strip.info.get("times") or ()
    ]


def over_time(alpha: Float[Tensor, "T F Y X"]) -> Float[Tensor, "T F"]:
    """Return the share of each frame in the map of each word."""
    return weights(alpha).sum(dim=(2, 3))


def film_sheet(
    strip: Image.Image,
    words: Sequence[str],
    alpha: Float[Tensor, "T F Y X"],
    *,
    title: str = "",
    boxes: Mapping[str, Sequence[Box]] | None = None,
    log_prob: Sequence[float | int] | Float[Tensor, "T"] | None = None,
    extent: Extent = WHOLE,
    overlay: View = VIEW,
    scale: Scale = "own",
    seen: Extent = WHOLE,
) -> Image.Image:
    """Draw the frames, then a row for each word: the frames with its map, on one scale.

    strip: the frames side by side; see `times_of`.
    boxes: word -> boxes (x0, y0, x1, y1, frame) of the object or event that it names.
    log_prob: log p of each word, in nats.
    extent: where the regions lie on a frame.
    overlay, scale, seen: see `viz.attention.attention_sheet`; `seen` is the part of a frame.
    """
    check_view(overlay)
    check_scale(scale)
    film = [fitted(frame, FRAME) for frame in frames_of(strip, alpha.shape[1])]
    width, height = film[0].size
    labels = [str(number) for number in range(1, len(film) + 1)]
    if times := times_of(strip):
        labels = [f"{label} · {time}" for label, time in zip(labels, times, strict=True)]
    told = BOXES if any((boxes or {}).get(shown(word)) for word in words) else ""
    title = " · ".join(filter(None, (title, told)))
    type_ = Typeface(" ".join([title, *words]))
    inner = LABEL + len(film) * (width + GAP) - GAP
    lines = type_.wrapped(joined(words) or "no words", 26, inner)
    head = MARGIN + (26 if title else 0) + 36 * len(lines) + 30
    rows = len(words) + 1
    maps = shares(alpha)
    bar = scale_bar(maps, overlay, scale) if len(words) else None
    below = [] if bar is None else bar_lines(bar, type_, inner)
    body = head + rows * (height + GAP)
    page = Image.new("RGB", (inner + 2 * MARGIN, body + BAR_LINE * len(below) + MARGIN), DARK.paper)
    if bar is not None:
        draw_bar(page, bar, below, body, type_, DARK)
    draw = ImageDraw.Draw(page)
    draw.text((MARGIN, MARGIN + 13), type_.shortened(title, 15, inner), DARK.quiet, type_.font(15), "ls")
    for line, text in enumerate(lines):
        draw.text((MARGIN, MARGIN + (26 if title else 0) + 36 * line + 26), text, DARK.ink, type_.font(26), "ls")
    tops, largest = ends(maps, scale), ends(maps)
    for row in range(rows):
        top = head + row * (height + GAP)
        told = "frames" if row == 0 else shown(words[row - 1])
        note = "" if row == 0 else f"max {number(largest[row - 1])}"
        note += "" if row == 0 or log_prob is None else f" · p {math.exp(log_prob[row - 1]):.2f}"
        drawn = [outlined(frame, seen) for frame in film]
        if row:
            drawn = film_overlaid(film, maps[row - 1], overlay, extent=extent, seen=seen, top=tops[row - 1])
        colour = DARK.ink if row else DARK.quiet
        draw.text((MARGIN, top + height // 2), type_.shortened(told, 19, LABEL - 12), colour, type_.font(19), "ls")
        draw.text((MARGIN, top + height // 2 + 20), note, DARK.quiet, type_.font(13), "ls")
        for place, frame in enumerate(drawn):
            left = MARGIN + LABEL + place * (width + GAP)
            if row == 0:
                draw.text((left, top - 6), type_.shortened(labels[place], 13, width), DARK.quiet, type_.font(13), "ls")
            else:
                here = [box[:4] for box in (boxes or {}).get(told, ()) if int(box[4]) == place]
                frame = boxed(frame, here)
            page.paste(frame, (left, top))
            draw.rectangle((left - 1, top - 1, left + width, top + height), outline=EDGE)
    return page


def write_film(
    path: str | Path, strip: Image.Image, words: Sequence[str], alpha: Float[Tensor, "T F Y X"], title: str = ""
) -> Path:
    """Write a GIF that plays the film. The brightness of a word shows the share of its map in the current frame, and a
    line shows the time. Returns its path."""
    film = [fitted(frame, PLAYED) for frame in frames_of(strip, alpha.shape[1])]
    width, height = film[0].size
    shares = over_time(alpha)
    shares = shares / shares.amax(dim=1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)
    type_ = Typeface(" ".join([title, *words]))
    inner = max(width, 420)
    places, x, line = [], 0.0, 0
    for word in map(shown, words):
        room = type_.width(word, 20) + SPACE
        if x and x + room > inner:
            x, line = 0.0, line + 1
        places.append((x, line))
        x += room
    below = MARGIN + height + TIMELINE + 16
    page = Image.new("RGB", (inner + 2 * MARGIN, below + 30 * (line + 1) + MARGIN), DARK.paper)
    played = []
    for place, frame in enumerate(film):
        drawn = page.copy()
        draw = ImageDraw.Draw(drawn)
        left = MARGIN + (inner - width) // 2
        drawn.paste(frame, (left, MARGIN))
        for other in range(len(film)):
            edges = (left + other * width / len(film), left + (other + 1) * width / len(film) - 3)
            top = MARGIN + height + 8
            draw.rectangle((edges[0], top, edges[1], top + 4), fill=DARK.accent if other == place else EDGE)
        for word, share, (across, down) in zip(map(shown, words), shares[:, place].tolist(), places, strict=True):
            at = (MARGIN + across, below + 30 * down + 22)
            draw.text(at, word, _between("#3c414b", "#ffffff", share), type_.font(20), "ls")
        played.append(drawn)
    return write_frames(path, [*played, played[-1]], PACE)


def _between(dark: str, bright: str, share: float) -> tuple[int, ...]:
    ends = zip(ImageColor.getrgb(dark), ImageColor.getrgb(bright), strict=True)
    return tuple(round(low + (high - low) * share) for low, high in ends)

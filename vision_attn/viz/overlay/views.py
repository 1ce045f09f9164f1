"""Draw a map over a picture in four views: a colour overlay, light, contours and cells.

Pages draw the same views by `templates/overlay.js`, with the constants of `pages.py`. `benchmarks/overlays.py` measures
how well each view shows where the weight is.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image, ImageColor, ImageDraw
from torch import Tensor
from torch.nn import functional as F

from vision_attn.geometry.extents import WHOLE, Extent, nearest
from vision_attn.system.errors import UserError
from vision_attn.viz.overlay.scale import interpolated, levels, weights
from vision_attn.viz.panel_sheets import VEIL, glowing

View = Literal["color", "light", "contours", "cells"]
""""color": a colour for each weight, more opaque for larger weights. "light": the picture is bright where the weight
is, and dark elsewhere. "contours": lines around the smallest areas that hold `SHARES` of the weight. "cells": like
"color", without interpolation between cells."""
VIEWS: tuple[View, ...] = get_args(View)
VIEW: View = "color"
"""The default view: see docs/results_runs.md."""
RAMP = ("#0d0887", "#4c02a1", "#7e03a8", "#aa2395", "#cc4778", "#e66c5c", "#f89540", "#fdc527", "#f0f921")
"""Evenly spaced colours from weight 0 to the largest: matplotlib's plasma."""
OPACITY = 0.75
"""The opacity of the colour of the largest weight; the opacity is proportional to the weight."""
LINE = 0.012
"""The thickness of the thick line, as a share of the picture's longer side."""
OUTSIDE = 0.55
"""The brightness of the part that the model did not see."""


def check_view(view: str, option: str = "overlay") -> None:
    """Raise UserError for an unknown view.

    option: its name, for the message.
    """
    if view not in VIEWS:
        raise UserError(f"{option} is {view}: choose one of {', '.join(VIEWS)}")


def overlaid(
    picture: Image.Image,
    alpha: Float[Tensor, "Y X"],
    view: View = VIEW,
    *,
    extent: Extent = WHOLE,
    seen: Extent = WHOLE,
    top: float | int | None = None,
) -> Image.Image:
    """Draw a map over an RGB picture.

    extent: where the regions lie on the picture.
    seen: the part of the picture that the model saw; an outline marks it, and there is no map around it.
    top: the weight at which the scale ends; by default the largest.
    """
    return film_overlaid([picture], alpha[None], view, extent=extent, seen=seen, top=top)[0]


def film_overlaid(
    frames: Sequence[Image.Image],
    alpha: Float[Tensor, "F Y X"],
    view: View = VIEW,
    *,
    extent: Extent = WHOLE,
    seen: Extent = WHOLE,
    top: float | int | None = None,
) -> list[Image.Image]:
    """Draw the map of a film over each of its frames, with one scale: see `overlaid`."""
    check_view(view)
    alpha = weights(alpha)
    top = max(float(alpha.max()) if top is None else float(top), torch.finfo(alpha.dtype).tiny)
    parts = [pixels_of(seen, *frame.size) for frame in frames]
    within = extent.seen_from(seen) if seen != WHOLE else extent
    drawn = [frame.crop(corners) for frame, corners in zip(frames, parts, strict=True)]
    drawn = DRAW[view](drawn, alpha, within, top)
    if seen == WHOLE:
        return drawn
    return [_in_place(frame, seen, corners) for frame, seen, corners in zip(frames, drawn, parts, strict=True)]


def pixels_of(extent: Extent, width: int, height: int) -> tuple[int, int, int, int]:
    """Return a part of a picture as a box (left, top, right, bottom) in pixels, at least one pixel wide and high."""
    left, right = (min(max(round((edge + 1) / 2 * width), 0), width) for edge in (extent.x0, extent.x1))
    top, bottom = (min(max(round((edge + 1) / 2 * height), 0), height) for edge in (extent.y0, extent.y1))
    return min(left, width - 1), min(top, height - 1), max(right, left + 1), max(bottom, top + 1)


def outlined(picture: Image.Image, seen: Extent) -> Image.Image:
    """Return a copy of a picture on which the part that the model saw is marked: darker around it, with an outline."""
    corners = pixels_of(seen, *picture.size)
    return picture if seen == WHOLE else _in_place(picture, picture.crop(corners), corners)


def ramp(width: int, height: int, view: View = VIEW) -> Image.Image:
    """Draw a bar of the colours of a scale, from weight 0 on the left to the largest on the right."""
    share = torch.linspace(0, 1, width).expand(height, width)
    if view == "light":
        return glowing(Image.new("RGB", (width, height), "#808080"), share)
    return _coloured(Image.new("RGB", (width, height), "#808080"), share)


def _light(frames: list[Image.Image], alpha: Tensor, extent: Extent, top: float) -> list[Image.Image]:
    veil = VEIL if alpha[0].numel() > 1 else 0.0  # a whole frame needs none to be told apart
    lit = interpolated(alpha, frames[0].height, frames[0].width, extent) / top
    return [glowing(frame, light, veil) for frame, light in zip(frames, lit, strict=True)]


def _color(frames: list[Image.Image], alpha: Tensor, extent: Extent, top: float) -> list[Image.Image]:
    values = interpolated(alpha, frames[0].height, frames[0].width, extent) / top
    return [_coloured(frame, weights) for frame, weights in zip(frames, values, strict=True)]


def _cells(frames: list[Image.Image], alpha: Tensor, extent: Extent, top: float) -> list[Image.Image]:
    rows = nearest(frames[0].height, alpha.shape[1], extent.y0, extent.y1)
    columns = nearest(frames[0].width, alpha.shape[2], extent.x0, extent.x1)
    return [_coloured(frame, weights[rows][:, columns] / top) for frame, weights in zip(frames, alpha, strict=True)]


def _contours(frames: list[Image.Image], alpha: Tensor, extent: Extent, top: float) -> list[Image.Image]:
    """Draw contours, which do not depend on the end of the scale."""
    width, height = frames[0].size
    fine = max(1, round(512 / max(width, height)))  # lines are drawn larger, then averaged
    values = interpolated(alpha, fine * height, fine * width, extent)
    thick = max(2.0, LINE * max(width, height)) * fine
    for level, line in zip(levels(values), (thick, thick / 2), strict=True):
        # Values that differ by rounding alone have no line between them.
        inside = (values >= level * (1 - 1e-4)) & (values > 0)
        frames = [_lined(frame, mask, line, fine) for frame, mask in zip(frames, inside, strict=True)]
    return frames


DRAW = {"light": _light, "color": _color, "contours": _contours, "cells": _cells}


def _coloured(picture: Image.Image, values: Float[Tensor, "height width"]) -> Image.Image:
    """Lay the colour of each value in [0, 1] over a picture, with an opacity in proportion to it."""
    levels = values.clamp(0, 1).numpy()
    stops = np.array([ImageColor.getrgb(colour) for colour in RAMP], dtype=np.float32)
    places = np.linspace(0, 1, len(stops))
    colours = np.stack([np.interp(levels, places, stops[:, channel]) for channel in range(3)], axis=2)
    opacity = OPACITY * levels[..., None]
    return Image.fromarray((np.asarray(picture) * (1 - opacity) + colours * opacity).round().astype(np.uint8))


def _lined(picture: Image.Image, inside: Bool[Tensor, "Y X"], line: float, fine: int) -> Image.Image:
    """Draw the border of a region, `fine` times as large as the picture: white between black."""
    region = inside.float()[None, None]
    for colour, width in (("black", 2 * line), ("white", line)):
        reach = max(1, round(width / 2))
        edge = _largest(region, reach) + _largest(1 - region, reach) - 1
        share = F.avg_pool2d(edge, fine)[0, 0]
        mask = Image.fromarray((share * 255).round().byte().numpy())
        picture = Image.composite(Image.new("RGB", picture.size, colour), picture, mask)
    return picture


def _largest(values: Float[Tensor, "1 1 Y X"], reach: int) -> Float[Tensor, "1 1 Y X"]:
    """Return the largest value within `reach` pixels of each pixel."""
    across = F.max_pool2d(values, (1, 2 * reach + 1), 1, (0, reach))
    return F.max_pool2d(across, (2 * reach + 1, 1), 1, (reach, 0))


def _in_place(picture: Image.Image, seen: Image.Image, corners: tuple[int, int, int, int]) -> Image.Image:
    whole = picture.point(lambda level: round(OUTSIDE * level))
    whole.paste(seen, corners[:2])
    draw = ImageDraw.Draw(whole)
    left, top, right, bottom = corners
    draw.rectangle((left, top, right - 1, bottom - 1), outline="black", width=2)
    draw.rectangle((left, top, right - 1, bottom - 1), outline="white")
    return whole

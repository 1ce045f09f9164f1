"""Draw the path of RAM's glimpses and the pixels of each (Mnih et al., 2014, figure 3), as PNG and GIF."""

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageOps

from vision_attn.system.console import plural
from vision_attn.system.errors import UserError
from vision_attn.viz.foveated import GlimpseTrace, as_picture, checked, foveated, traced
from vision_attn.viz.panel_sheets import (
    DARK,
    GAP,
    MARGIN,
    PANEL,
    TITLE,
    Panel,
    boxed,
    fitted,
    save_animation,
    save_picture,
    sheet,
)

RIGHT, WRONG, WRONG_MARK = "#4cc38a", "#ff6b62", "×"
CLOSE = 6
"""If an image is at least this many times as wide as a glimpse, the glimpse is too small to see in the image, and is
shown close up."""
FRAME_SIDE = 352  # approximate longer side of the two pictures of a frame, in pixels
FRAME, LAST_FRAME = 800, 3000  # milliseconds of a frame of an animation, and of the last frame
SQUARE = "#4d3c22"  # outline of a glimpse, visible even if all of its pixels are black


def write_glimpses(path: str | Path, trace: GlimpseTrace) -> Path:
    """Write a PNG: the image with the path of glimpses, then the pixels of each glimpse. Returns its path.

    Points are numbered and grow brighter from first to last; the last glimpse's squares are outlined. With
    `probabilities`, the title of each glimpse is the likeliest class after it. Green is correct; red, with a cross, is
    wrong; an answer without a `label` has the colour of text. In images much larger than a glimpse, its pixels are
    shown close up.

    Raises UserError, before anything is written, if the shapes do not fit each other.
    """
    return save_picture(path, glimpse_sheet(trace))


def write_animation(path: str | Path, trace: GlimpseTrace) -> Path:
    """Write a looping GIF with one frame per glimpse; the last frame is shown longer. Returns its path.

    Raises UserError as `write_glimpses`.
    """
    drawn = frames(trace)
    # This method keeps rare colours, and greys grey.
    colours = grid([*drawn], 1, 0).quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1)
    return save_animation(path, drawn, colours, [FRAME] * (len(drawn) - 1) + [LAST_FRAME])


def write_gallery(path: str | Path, items: Sequence[GlimpseTrace], *, title: str = "") -> Path:
    """Write a PNG of many images, each with its path and all pixels that were seen. Returns its path.

    Correct answers are on the left and wrong ones on the right, each row by row in the order given. For images much
    larger than a glimpse, only the last glimpse is shown.

    Raises UserError, before anything is written, if there is no item or an item's shapes do not fit each other.
    """
    return save_picture(path, gallery_sheet(items, title=title))


def glimpse_sheet(trace: GlimpseTrace) -> Image.Image:
    """Draw the image, large, with the path of glimpses, next to a panel for each glimpse."""
    trace = checked(trace)
    num_glimpses, num_scales, _, size, _ = trace.patches.shape
    rows = max(1, round(math.sqrt(num_glimpses / 2)))  # about twice as wide as high, with the large image
    panels = [_headed(*_glimpse(trace, step, PANEL)) for step in range(num_glimpses)]
    glimpses = grid(panels, math.ceil(num_glimpses / rows))
    plain = as_picture(trace.image)
    plain = fitted(plain, round((glimpses.height - TITLE) * max(plain.size) / plain.height))
    scales = f"{plural(num_scales, 'scale')}; squares: the last glimpse"
    note = f"{plural(num_glimpses, 'glimpse')} of {size} x {size} at {scales}"
    whole = grid([_headed(Panel(_framed(traced(plain, trace), trace), note=note)), glimpses], 2)
    return _page(whole, trace.verdict, trace.title, _colour(trace.right))


def frames(trace: GlimpseTrace) -> list[Image.Image]:
    """Draw, for each glimpse, the image with the path so far next to the glimpse's pixels. All have one size."""
    trace = checked(trace)
    num_glimpses, drawn = len(trace.locations), []
    plain = fitted(as_picture(trace.image), _side(trace, FRAME_SIDE))
    for step in range(num_glimpses):
        path, caption, ink = traced(plain, trace, step + 1), f"glimpse {step + 1} of {num_glimpses}", DARK.ink
        if step + 1 == num_glimpses:
            path, caption, ink = _framed(path, trace), trace.verdict, _colour(trace.right)
        pair = grid([_headed(Panel(path)), _headed(*_glimpse(trace, step, FRAME_SIDE))], 2)
        drawn.append(_page(pair, caption, trace.title, ink))
    return drawn


def gallery_sheet(items: Sequence[GlimpseTrace], *, title: str = "") -> Image.Image:
    """Draw examples, each with its path next to all pixels that were seen, in at least two columns, and otherwise no
    more columns than rows."""
    if not items:
        raise UserError("gallery: there is no example to show")
    items = [checked(item) for item in items]
    sides = [[item for item in items if (item.right is not False) is is_right] for is_right in (True, False)]
    rows = 1
    while sum(columns := [math.ceil(len(side) / rows) for side in sides]) > max(2, rows):
        rows += 1
    places = [
        side[place] if place < len(side) else None
        for row in range(rows)
        for side, width in zip(sides, columns, strict=True)
        for place in range(row * width, (row + 1) * width)
    ]
    whole = grid([_example(item) for item in places], sum(columns), 3 * GAP)
    legend = "Each image with the path of glimpses and the squares of the last one, then all that they saw"
    both = ". Right answers are on the left, wrong ones on the right" if all(sides) else ""
    return _page(whole, title, legend + both, DARK.ink)


def grid(pictures: Sequence[Image.Image | None], columns: int, gap: int = GAP) -> Image.Image:
    """Arrange pictures row by row on the sheet's background, with columns and rows of minimal size."""
    sizes = [picture.size if picture else (0, 0) for picture in pictures]
    widths = [max(width for width, _ in sizes[column::columns]) for column in range(min(columns, len(sizes)))]
    heights = [max(height for _, height in sizes[row : row + columns]) for row in range(0, len(sizes), columns)]
    size = (sum(widths) + gap * (len(widths) - 1), sum(heights) + gap * (len(heights) - 1))
    page = Image.new("RGB", size, DARK.paper)
    for place, picture in enumerate(pictures):
        row, column = divmod(place, columns)
        if picture:
            page.paste(picture, (sum(widths[:column]) + gap * column, sum(heights[:row]) + gap * row))
    return page


def _glimpse(trace: GlimpseTrace, step: int, near: int) -> tuple[Panel, str]:
    """Draw the pixels of one glimpse, with its number and the class predicted after it. Return the panel and the colour
    of its text."""
    drawn = seen(trace, slice(step, step + 1), near)
    if not _close(trace):
        (x, y), (X, Y), reach = trace.locations[step].tolist(), trace.size, trace.reach
        across, down = reach / X + 4 / drawn.width, reach / Y + 4 / drawn.height  # 2 pixels outside the glimpse
        drawn = boxed(drawn, [(x - across, y - down, x + across, y + down)], SQUARE)
    if trace.probabilities is None:
        return Panel(drawn, f"{step + 1}"), DARK.ink
    value, said = trace.probabilities[step].max(0)
    right = None if trace.label is None else int(said) == trace.label
    says = f"{step + 1}: says {trace.named(int(said))}" + f" {WRONG_MARK}" * (right is False)
    return Panel(drawn, says, f"p {value:.2f}"), _colour(right)


def _example(trace: GlimpseTrace | None) -> Image.Image | None:
    """Draw one image of a gallery; None for an empty place."""
    if trace is None:
        return None
    ink, said = _colour(trace.right), f"said {trace.named(trace.said)}"
    truth = "" if trace.label is None or trace.right else f"is {trace.named(trace.label)}"
    sure = "" if trace.probabilities is None else f"p {trace.probabilities[-1, trace.said]:.2f}"
    plain = fitted(as_picture(trace.image), _side(trace, PANEL))
    path = Panel(_framed(traced(plain, trace), trace), said, sure)
    return grid([_headed(path, ink), _headed(Panel(seen(trace, slice(None), PANEL), truth, trace.title), ink)], 2)


def seen(trace: GlimpseTrace, steps: slice, near: int) -> Image.Image:
    """Draw the pixels of the glimpses of some time steps in their places, or only the last glimpse close up.

    near: the approximate longer side, in pixels.
    """
    X, Y = trace.size
    side = _side(trace, near)
    if _close(trace):
        reach, last = trace.reach, trace.patches[steps][-1:]
        drawn = foveated(trace.locations.new_zeros(1, 2), last, reach, reach, zoom=max(1, side // reach))
        return ImageOps.pad(fitted(as_picture(drawn), side), fitted(as_picture(trace.image), side).size)
    zoom = max(1, side // max(Y, X)) if max(Y, X) <= side else side / max(Y, X)
    drawn = foveated(trace.locations[steps], trace.patches[steps], Y, X, zoom=zoom)
    return fitted(as_picture(drawn), side)


def _close(trace: GlimpseTrace) -> bool:
    """Return whether a glimpse is too small to see in the whole image."""
    return max(trace.size) > CLOSE * trace.reach


def _side(trace: GlimpseTrace, near: int) -> int:
    """Return the longer side of a panel: the multiple of the longer side of the image that is closest to `near`."""
    longer = max(trace.size)
    return round(near / longer) * longer or near


def _headed(panel: Panel, ink: str = DARK.ink) -> Image.Image:
    """Draw one panel below its heading, without a margin. It is drawn as a sheet of its own, so that its text can have
    any colour."""
    return ImageOps.crop(sheet([panel], caption="", palette=DARK._replace(ink=ink)), MARGIN)


def _page(whole: Image.Image, caption: str, title: str, ink: str) -> Image.Image:
    """Draw `whole` below a caption. Its panels already have headings, so the empty heading of the sheet is cut out."""
    page = sheet([Panel(whole)], caption=caption, title=title, palette=DARK._replace(ink=ink))
    start = page.height - MARGIN - whole.height
    above, below = (0, 0, page.width, start - TITLE), (0, start, page.width, page.height)
    return grid([page.crop(above), page.crop(below)], 1, 0)


def _framed(picture: Image.Image, trace: GlimpseTrace) -> Image.Image:
    return boxed(picture, [(-1, -1, 1, 1)], _colour(trace.right))


def _colour(right: bool | None) -> str:
    return DARK.ink if right is None else RIGHT if right else WRONG

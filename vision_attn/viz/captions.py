"""Write captions with their maps as pictures: a sheet for each image, animations, and one HTML page for all images."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from vision_attn.contracts import DecodedCaption
from vision_attn.geometry.extents import WHOLE, Extent, cell
from vision_attn.system.console import progress
from vision_attn.system.errors import UserError
from vision_attn.system.word_spacing import gaps, joined, shown
from vision_attn.viz.attention import scale_bar, write_sheet
from vision_attn.viz.canvases import LAST_FRAME
from vision_attn.viz.films import film_sheet, write_film
from vision_attn.viz.overlay.scale import Scale, ends, shares
from vision_attn.viz.overlay.views import VIEW, View, check_view, outlined, overlaid
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.panel_sheets import (
    BAR_LINE,
    DARK,
    MARGIN,
    Bar,
    bar_lines,
    boxed,
    draw_bar,
    fitted,
    picture_name,
    save_animation,
    save_picture,
)
from vision_attn.viz.typeface import Typeface, right_to_left

SIDE, SIZE, SPACE, LINE = 448, 26, 9, 40
"""The sizes of an animation in pixels: the longer side of its picture, the letters, the space between words, and the
height of a line."""
PACE = 900
"""The duration of a word in an animation, in milliseconds."""


def items_of(
    titles: Sequence[str],
    pictures: Sequence[Image.Image],
    described: Sequence[DecodedCaption],
    *,
    references: Sequence[Sequence[str]] | None = None,
    boxes: Sequence[Mapping | None] | None = None,
    frames: int = 1,
    seen: Sequence[Extent] | None = None,
) -> list[PageItem]:
    """Return the items of pages and figures, one for each captioned picture.

    frames: the number of frames of a film, which are side by side in its picture.
    seen: the part of each picture that the encoder sees and that the maps cover.
    """
    nothing = [None] * len(titles)
    items = []
    for title, picture, caption, given, box, visible in zip(
        titles, pictures, described, references or nothing, boxes or nothing, seen or [WHOLE] * len(titles), strict=True
    ):
        arguments = (caption.words, caption.alpha, given or (), box, caption.log_prob, caption.region)
        options = {"extent": caption.extent.within(visible), "seen": visible, "content": caption.content}
        items.append(PageItem(title, picture, *arguments, frames=frames, **options))
    return items


def write_pictures(
    items: Sequence[PageItem], folder: Path, *, origin: str = "", overlay: View = VIEW, scale: Scale = "own"
) -> list[Path]:
    """Write `folder/NUMBER-TITLE.png` for each picture and `folder/index.html` for all. Returns their paths, the page
    first. A caption without maps is shown as text; each film also gets NUMBER-TITLE.gif.

    origin: the model and the method that made the maps, for the page.
    overlay, scale: see `viz.attention.attention_sheet`.
    """
    paths = [write_page(folder / "index.html", items, origin=origin, overlay=overlay, scale=scale)]
    for number, item in enumerate(progress(items, what="pictures", unit="image"), start=1):
        paths += write_item(folder / picture_name(number, item.title), item, overlay, scale)
    return paths


def write_item(path: Path, item: PageItem, overlay: View = VIEW, scale: Scale = "own") -> list[Path]:
    """Write the sheet of one item as a PNG, and for a film also a GIF next to it. Returns the paths."""
    options: dict[str, Any] = {"title": item.title, "boxes": item.boxes, "log_prob": item.log_prob}
    options |= {"extent": item.extent, "seen": item.seen, "overlay": overlay, "scale": scale}
    if item.frames == 1 or item.alpha is None:
        options["regions"] = item.regions
        return [write_sheet(path, item.picture, item.words, item.alpha, **options)]
    save_picture(path, film_sheet(item.picture, item.words, item.alpha, **options))
    return [path, write_film(path.with_suffix(".gif"), item.picture, item.words, item.alpha)]


def write_caption_animation(path: str | Path, item: PageItem, overlay: View = VIEW, scale: Scale = "own") -> Path:
    """Write a GIF with a frame for each word: the picture with its map and, below it, the caption with this word
    marked, the scale and the title. The last frame shows the plain picture. For a film, write a GIF that plays it.
    Returns its path.

    overlay, scale: see `viz.attention.attention_sheet`. Raises UserError if there are no words, or no maps.
    """
    check_view(overlay)
    if item.alpha is None or not len(item.words):
        missing = "words" if item.alpha is not None else "maps"
        raise UserError(f"{item.title}: there are no {missing}, so nothing moves: save the picture as .png")
    if item.frames > 1:
        return write_film(path, item.picture, item.words, item.alpha)
    plain, maps, frames = fitted(item.picture, SIDE), shares(item.alpha), []
    told = partial(_told, words=item.words, title=item.title, bar=scale_bar(maps, overlay, scale))
    for step, top in enumerate(ends(maps, scale)):
        picture = overlaid(plain, maps[step], overlay, extent=item.extent, seen=item.seen, top=top)
        if item.regions is not None:
            picture = boxed(picture, [cell(int(item.regions[step]), maps.shape[1], maps.shape[2], item.extent)])
        frames.append(told(picture, step))
    frames.append(told(outlined(plain, item.seen), None))
    return save_animation(path, frames, None, [PACE] * (len(frames) - 1) + [LAST_FRAME])


def _told(picture: Image.Image, marked: int | None, words: Sequence[str], title: str, bar: Bar) -> Image.Image:
    """Draw a picture and, below it, its caption with one word marked, the scale and the title."""
    inner, texts = max(picture.width, SIDE), [*map(shown, words)]
    type_ = Typeface(" ".join([title, *words]))
    places, across, line = [], 0.0, 0
    for text, gap in zip(texts, gaps(words), strict=True):
        text = type_.shortened(text, SIZE, inner)
        room = type_.width(text, SIZE)
        if across and across + room > inner:
            across, line = 0.0, line + 1
        places.append((text, across, line, room))
        across += room + SPACE * bool(gap)
    top = MARGIN + picture.height + MARGIN // 2
    below, foot = bar_lines(bar, type_, inner), top + LINE * (line + 1) + MARGIN // 2
    page = Image.new("RGB", (inner + 2 * MARGIN, foot + BAR_LINE * (len(below) + 1) + MARGIN // 2), DARK.paper)
    draw_bar(page, bar, below, foot, type_, DARK)
    page.paste(picture, (MARGIN + (inner - picture.width) // 2, MARGIN))
    draw = ImageDraw.Draw(page)
    place = (MARGIN, foot + BAR_LINE * len(below) + 15)
    draw.text(place, type_.shortened(title, 13, inner), DARK.quiet, type_.font(13), "ls")
    for number, (text, left, down, room) in enumerate(places):
        left = inner - left - room if right_to_left(joined(words)) else left
        x, y = MARGIN + left, top + LINE * down + LINE - 12
        if number == marked:
            draw.rounded_rectangle((x - 4, y - SIZE, x + room + 4, y + 8), 6, fill=DARK.ink)
        draw.text((x, y), text, DARK.paper if number == marked else DARK.ink, type_.font(SIZE), "ls")
    return page

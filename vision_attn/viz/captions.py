"""Pictures of captions: a sheet per image, and one HTML page for all images."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from vision_attn.contracts import DecodedCaption
from vision_attn.system.console import progress
from vision_attn.viz.attention import write_sheet
from vision_attn.viz.films import film_sheet, write_film
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.sheet import picture_name, save_picture


def items_of(
    titles: Sequence[str],
    pictures: Sequence[Image.Image],
    described: Sequence[DecodedCaption],
    *,
    references: Sequence[Sequence[str]] | None = None,
    boxes: Sequence[Mapping | None] | None = None,
    frames: int = 1,
) -> list[PageItem]:
    """What pages and figures show of each captioned picture. frames: of films, whose pictures have them side by
    side."""
    nothing = [None] * len(titles)
    items = []
    for title, picture, caption, given, box in zip(
        titles, pictures, described, references or nothing, boxes or nothing, strict=True
    ):
        found = (caption.words, caption.alpha, given or (), box, caption.log_prob, caption.region)
        items.append(PageItem(title, picture, *found, extent=caption.extent, frames=frames, content=caption.content))
    return items


def write_pictures(items: Sequence[PageItem], folder: Path) -> list[Path]:
    """Write `folder/NUMBER-TITLE.png` for each picture and `folder/index.html` for all. Returns their paths, the page
    first. A caption without maps is shown as text; of each film also NUMBER-TITLE.gif is written."""
    paths = [write_page(folder / "index.html", items)]
    for number, item in enumerate(progress(items, what="pictures", unit="image"), start=1):
        paths += write_item(folder / picture_name(number, item.title), item)
    return paths


def write_item(path: Path, item: PageItem) -> list[Path]:
    """Write the sheet of one item as a PNG, and of a film also a GIF next to it. Returns the paths."""
    options = {"title": item.title, "boxes": item.boxes, "log_prob": item.log_prob, "extent": item.extent}
    if item.frames == 1 or item.alpha is None:
        options["regions"] = item.regions
        return [write_sheet(path, item.picture, item.words, item.alpha, **options)]
    save_picture(path, film_sheet(item.picture, item.words, item.alpha, **options))
    return [path, write_film(path.with_suffix(".gif"), item.picture, item.words, item.alpha)]

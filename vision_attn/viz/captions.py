"""Pictures of captions: a sheet per image, and one HTML page for all images."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from vision_attn.contracts import DecodedCaption
from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.system.console import progress
from vision_attn.viz.attention import write_sheet
from vision_attn.viz.films import film_sheet, write_film
from vision_attn.viz.overlay.scale import Scale
from vision_attn.viz.overlay.views import VIEW, View
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.sheet import picture_name, save_picture


def write_pictures(
    titles: Sequence[str],
    pictures: Sequence[Image.Image],
    described: Sequence[DecodedCaption],
    folder: Path,
    *,
    references: Sequence[Sequence[str]] | None = None,
    boxes: Sequence[Mapping | None] | None = None,
    frames: int = 1,
    seen: Sequence[Extent] | None = None,
    origin: str = "",
    overlay: View = VIEW,
    scale: Scale = "own",
) -> list[Path]:
    """Write `folder/NUMBER-TITLE.png` for each picture and `folder/index.html` for all. Returns their paths, the page
    first. A caption without maps is shown as text. frames: of films, whose pictures have them side by side; of each
    also NUMBER-TITLE.gif is written. seen: the part of each picture that the encoder sees, within which its maps lie.
    origin: which model made the maps, and how, for the page. overlay, scale: see `viz.attention.attention_sheet`."""
    nothing = [None] * len(titles)
    items = []
    for title, picture, caption, given, box, part in zip(
        titles, pictures, described, references or nothing, boxes or nothing, seen or [WHOLE] * len(titles), strict=True
    ):
        found = (caption.words, caption.alpha, given or (), box, caption.log_prob, caption.region)
        options = {"extent": caption.extent.within(part), "seen": part, "content": caption.content}
        items.append(PageItem(title, picture, *found, frames=frames, **options))
    paths = [write_page(folder / "index.html", items, origin=origin, overlay=overlay, scale=scale)]
    for number, item in enumerate(progress(items, what="pictures", unit="image"), start=1):
        paths += write_item(folder / picture_name(number, item.title), item, overlay, scale)
    return paths


def write_item(path: Path, item: PageItem, overlay: View = VIEW, scale: Scale = "own") -> list[Path]:
    """Write the sheet of one item as a PNG, and of a film also a GIF next to it. Returns the paths."""
    options = {"title": item.title, "boxes": item.boxes, "log_prob": item.log_prob, "extent": item.extent}
    options |= {"seen": item.seen, "overlay": overlay, "scale": scale}
    if item.frames == 1 or item.alpha is None:
        options["regions"] = item.regions
        return [write_sheet(path, item.picture, item.words, item.alpha, **options)]
    save_picture(path, film_sheet(item.picture, item.words, item.alpha, **options))
    return [path, write_film(path.with_suffix(".gif"), item.picture, item.words, item.alpha)]

"""Pictures of captions: a sheet per image, and one HTML page for all images."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from vision_attn.contracts import DecodedCaption
from vision_attn.system.console import progress
from vision_attn.viz.attention import write_sheet
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.sheet import picture_name


def write_pictures(
    titles: Sequence[str],
    pictures: Sequence[Image.Image],
    described: Sequence[DecodedCaption],
    folder: Path,
    *,
    references: Sequence[Sequence[str]] | None = None,
    boxes: Sequence[Mapping | None] | None = None,
) -> list[Path]:
    """Write `folder/NUMBER-TITLE.png` for each picture and `folder/index.html` for all. Returns their paths, the page
    first. A caption without maps is shown as text."""
    nothing = [None] * len(titles)
    items = []
    for title, picture, caption, given, box in zip(
        titles, pictures, described, references or nothing, boxes or nothing, strict=True
    ):
        found = (caption.words, caption.alpha, given or (), box, caption.log_prob, caption.region)
        items.append(PageItem(title, picture, *found, extent=caption.extent))
    paths = [write_page(folder / "index.html", items)]
    for number, item in enumerate(progress(items, what="pictures", unit="image"), start=1):
        name = picture_name(number, item.title)
        options = {"boxes": item.boxes, "log_prob": item.log_prob, "regions": item.regions, "extent": item.extent}
        paths.append(write_sheet(folder / name, item.picture, item.words, item.alpha, title=item.title, **options))
    return paths

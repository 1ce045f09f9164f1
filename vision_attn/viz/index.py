"""Write an HTML page that shows the pictures of its folder, each with a text below it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from PIL import Image

from vision_attn.viz.html import write_html

AT_ONCE = 40
"""The number of pictures that a browser loads at once; it loads the others as the reader scrolls to them."""
WHOLE = 1000
"""A picture of at least this width, in pixels, has a row of its own."""


class IndexEntry(NamedTuple):
    """A picture and the text below it."""

    path: Path
    text: str
    still: Path | None = None
    """A still picture of an animation, to which the text links."""


def write_index(path: Path, entries: Sequence[IndexEntry], *, title: str, guide: str) -> Path:
    """Write an HTML page of pictures, in rows that fill its width. The pictures must be in the folder of `path`.

    guide: the text above them, which explains how to read them.
    """
    shown = [
        {
            "address": _address(entry.path, path.parent),
            "text": entry.text,
            "still": entry.still and _address(entry.still, path.parent),
            **dict(zip(("width", "height"), _size(entry.path), strict=True)),
        }
        for entry in entries
    ]
    return write_html(path, "index.html", entries=shown, title=title, guide=guide, whole=WHOLE, at_once=AT_ONCE)


def _size(picture: Path) -> tuple[int, int]:
    with Image.open(picture) as opened:
        return opened.size


def _address(picture: Path, folder: Path) -> str:
    return quote(picture.relative_to(folder).as_posix(), errors="surrogateescape")

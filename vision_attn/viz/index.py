"""A page that shows the pictures in its folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from vision_attn.viz.html import write_html


class Entry(NamedTuple):
    """A picture and the text below it."""

    path: Path
    text: str
    still: Path | None = None
    """For an animation: a still picture of the same, to which the text links."""


def write_index(path: Path, entries: Sequence[Entry], *, title: str, guide: str) -> Path:
    """Write an HTML page of pictures in the folder of `path`, in their order. `guide` says how to read them."""
    shown = [
        {
            "address": _address(entry.path, path.parent),
            "text": entry.text,
            "still": entry.still and _address(entry.still, path.parent),
        }
        for entry in entries
    ]
    return write_html(path, "index.html", entries=shown, title=title, guide=guide)


def _address(picture: Path, folder: Path) -> str:
    return quote(picture.relative_to(folder).as_posix(), errors="surrogateescape")

"""The page of the pictures in a folder."""

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from PIL import Image

from vision_attn.viz.index import IndexEntry, write_index

NAMES = ["01.png", "a b&c.png", "100%.png", "<b>#?'\".png", "ä.png", os.fsdecode(b"\xff.png")]


def test_names_and_texts_of_any_kind_are_escaped(tmp_path: Path) -> None:
    """What a browser asks for are the files, and no text is markup."""
    for name in NAMES:
        Image.new("RGB", (3, 2)).save(tmp_path / name, "PNG")
    entries = [IndexEntry(tmp_path / name, f"{name}: <i>&amp;") for name in NAMES]
    page = write_index(tmp_path / "index.html", entries, title="<1>", guide="a & b")
    text = page.read_text(encoding="utf-8")
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list) -> None:
            assert tag not in ("b", "i")
            found.extend(value for name, value in attributes if name == "src")

    Reader().feed(text)
    assert [unquote(source, errors="surrogateescape") for source in found] == NAMES
    assert re.search(r"<h1>&lt;1&gt;</h1><p>a &amp; b</p>", text)


def test_pictures_know_their_shape_and_wide_ones_have_a_row_of_their_own(tmp_path: Path) -> None:
    sizes = {"wide.png": (1200, 300), "portrait.gif": (200, 400), "still.png": (200, 400)}
    for name, size in sizes.items():
        Image.new("L", size).save(tmp_path / name)
    entries = [
        IndexEntry(tmp_path / "wide.png", "a"),
        IndexEntry(tmp_path / "portrait.gif", "b", tmp_path / "still.png"),
    ]
    page = write_index(tmp_path / "index.html", entries, title="t", guide="g").read_text()
    assert '<figure class="whole" style="--ratio: 4.000; --wide: 1200px">' in page
    assert '<figure style="--ratio: 0.500; --wide: 200px">' in page
    assert '<source srcset="still.png" media="(prefers-reduced-motion: reduce), print">' in page

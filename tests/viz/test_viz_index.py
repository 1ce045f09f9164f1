"""The page of the pictures in a folder."""

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from vision_attn.viz.index import Entry, write_index

NAMES = ["01.png", "a b&c.png", "100%.png", "<b>#?'\".png", "ä.png", os.fsdecode(b"\xff.png")]


def test_names_and_texts_of_any_kind_are_escaped(tmp_path: Path) -> None:
    """What a browser asks for are the files, and no text is markup."""
    entries = [Entry(tmp_path / name, f"{name}: <i>&amp;") for name in NAMES]
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

"""Pictures of films: what stands on a page and a strip, and where one frame ends."""

from pathlib import Path

import pytest
import torch
from PIL import Image, ImageColor

from vision_attn.viz.films import EDGE, FRAME, film_sheet
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.panel_sheets import MARGIN
from vision_attn.viz.typeface import Typeface


def test_a_box_of_a_film_is_on_the_actor_of_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not on an object of which the word is true, as in an image."""
    strip, alpha, boxes = Image.new("RGB", (96, 32)), torch.ones(1, 3, 1, 1), {"leaves": [(0, 0, 1, 1, 2)]}
    item = PageItem("film 1", strip, ["leaves"], alpha, boxes=boxes, frames=3)
    text = write_page(tmp_path / "page.html", [item]).read_text()
    assert "A box is on the actor of the event that the word tells of" in text and "word is true" not in text
    titles = []  # no text can be read from a picture
    monkeypatch.setattr(Typeface, "shortened", lambda _, text, *__: titles.append(text) or text)
    film_sheet(strip, ["leaves"], alpha, title="film 1", boxes=boxes)
    film_sheet(strip, ["leaves"], alpha, title="film 1")
    assert {"film 1 · boxes: the actor of the event that a word tells of", "film 1"} <= {*titles}


def test_dark_frames_are_told_apart(tmp_path: Path) -> None:
    """On a page by seams, of an image by none; on a strip by edges."""
    black, alpha = Image.new("RGB", (96, 32)), torch.ones(1, 3, 1, 1)
    film = write_page(tmp_path / "film.html", [PageItem("film 1", black, ["a"], alpha, frames=3)]).read_text()
    image = write_page(tmp_path / "image.html", [PageItem("image 1", black, ["a"], alpha[:, 0])]).read_text()
    assert '<div class="view film"' in film and "--frames: 3" in film and '<div class="view film"' not in image
    strip = film_sheet(black, ["a"], alpha)
    row = [strip.getpixel((x, strip.height - MARGIN - FRAME // 2)) for x in range(strip.width)]
    assert row.count(ImageColor.getrgb(EDGE)) == 6

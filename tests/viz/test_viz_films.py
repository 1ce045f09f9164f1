"""Pictures of films: what stands on a page and a strip, and where one frame ends."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from vision_attn.viz.films import film_sheet
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.typeface import Typeface


def test_a_box_of_a_film_is_on_the_actor_of_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not on an object of which the word is true, as in an image."""
    strip, alpha, boxes = Image.new("RGB", (96, 32)), torch.ones(1, 3, 1, 1), {"leaves": [(0, 0, 1, 1, 2)]}
    item = PageItem("film 1", strip, ["leaves"], alpha, boxes=boxes, frames=3)
    text = write_page(tmp_path / "page.html", [item]).read_text()
    assert "A box is on the actor of the event that the word tells of" in text and "word is true" not in text
    titles = []
    monkeypatch.setattr(Typeface, "shortened", lambda _, text, *__: titles.append(text) or text)
    film_sheet(strip, ["leaves"], alpha, title="film 1", boxes=boxes)
    film_sheet(strip, ["leaves"], alpha, title="film 1")
    assert {"film 1 · boxes: the actor of the event that a word tells of", "film 1"} <= {*titles}

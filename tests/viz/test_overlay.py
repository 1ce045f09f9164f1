"""The four views of a map: each says where the weight is, on a scale with numbers, in Python and in a browser alike."""

import base64
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import overlays
from tests.browser import NEEDED, PROGRAM, Browser
from vision_attn.commands import _run_options
from vision_attn.data.images.squares import seen_extent
from vision_attn.geometry.extents import WHOLE, Extent, centres
from vision_attn.system.errors import UserError
from vision_attn.viz.overlay import pages, scale, views
from vision_attn.viz.overlay.scale import ends, interpolated, levels, shares
from vision_attn.viz.overlay.views import VIEW, VIEWS, View, overlaid, pixels_of
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.panel_sheets import darkened

HOT = torch.zeros(14, 14)
HOT[3, 10] = 1
MOVED = Extent(-0.9, -0.8, 1.05, 1.1)


def noise(side: int = 224) -> Image.Image:
    generator = torch.Generator().manual_seed(0)
    return Image.fromarray(torch.randint(60, 200, (side, side, 3), generator=generator, dtype=torch.uint8).numpy())


def difference(one: Image.Image, other: Image.Image) -> np.ndarray:
    return np.abs(np.asarray(one).astype(int) - np.asarray(other)).sum(axis=2)


@pytest.mark.parametrize("extent", [WHOLE, MOVED])
def test_a_value_at_the_centre_of_a_region_is_its_weight(extent: Extent) -> None:
    """And between the centres it is between both weights; an even map is even."""
    alpha = torch.rand(1, 5, 5, generator=torch.Generator().manual_seed(0))
    values = interpolated(alpha, 400, 400, extent)[0]
    x, y = (((centres(5, 5, extent) + 1) / 2 * 400 - 0.5).round().long()).unbind(dim=1)
    assert torch.allclose(values[y, x], alpha[0].flatten(), atol=0.01)
    between = values[y[6], x[6] + 1 : x[7] - 1]
    assert between.diff().sign().unique().numel() == 1
    assert float(values.max()) <= float(alpha.max()) and float(values.min()) >= float(alpha.min())
    assert torch.allclose(interpolated(torch.ones(1, 5, 5), 40, 40, extent), torch.ones(1, 40, 40))


def test_levels_bound_the_smallest_regions_that_hold_a_share() -> None:
    values = torch.tensor([[0.4, 0.1], [0.3, 0.2]])
    assert levels(values, (0.39, 0.5, 0.69, 0.71, 1.0)) == pytest.approx([0.4, 0.3, 0.3, 0.2, 0.1])


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_marks_the_region_with_the_weight(view: View) -> None:
    picture = noise()
    drawn = overlaid(picture, HOT, view)
    ground = darkened(picture) if view == "light" else picture
    changed = difference(drawn, ground) > 0
    rows, columns = np.nonzero(changed)
    assert (rows.min() // 16, rows.max() // 16) in ((3, 3), (2, 4))
    assert (columns.min() // 16, columns.max() // 16) in ((10, 10), (9, 11))
    assert drawn.size == picture.size and picture.tobytes() == noise().tobytes()


def test_cells_are_drawn_as_they_are() -> None:
    """One colour for a cell, up to its edges; those at the border of the grid reach to that of the picture."""
    alpha = torch.tensor([[0.0, 1.0], [0.5, 0.0]])
    drawn = np.asarray(overlaid(Image.new("RGB", (40, 40)), alpha, "cells", extent=Extent(-0.8, -0.8, 1.2, 1.2)))
    assert {tuple(pixel) for pixel in drawn[:24, 24:].reshape(-1, 3)} == {(180, 187, 25)}
    assert len({tuple(pixel) for pixel in drawn[24:, :24].reshape(-1, 3)}) == 1
    assert not drawn[:24, :24].any() and not drawn[24:, 24:].any()


def test_a_scale_that_ends_higher_draws_less() -> None:
    """Of two words with one scale, that with less weight is paler; with scales of their own both are alike."""
    alpha = shares(torch.stack([HOT, 0.2 * HOT + 0.8 / 196]))
    assert ends(alpha) == pytest.approx([1, 0.2 + 0.8 / 196]) and ends(alpha, "one") == [1, 1]
    picture = noise()
    for view in ("light", "color", "cells"):
        ground = overlaid(picture, 0 * HOT, view)
        own, one = (difference(overlaid(picture, alpha[1], view, top=top), ground)[56, 168] for top in (None, 1))
        assert 0 < one < own / 2


def test_an_even_map_has_no_contours_and_a_map_of_zeros_nothing() -> None:
    picture = noise()
    for alpha in (torch.full((7, 7), 1 / 49), torch.zeros(7, 7)):
        assert overlaid(picture, alpha, "contours").tobytes() == picture.tobytes()
    assert overlaid(picture, torch.zeros(7, 7), "color").tobytes() == picture.tobytes()


@pytest.mark.parametrize("view", VIEWS)
def test_what_the_model_did_not_see_has_no_map(view: View) -> None:
    """The map lies in the part that it saw, as on that part alone; the rest is darker, and the part is outlined."""
    picture = noise().resize((300, 200))
    seen = seen_extent(300, 200, "centre")
    left, top, right, bottom = pixels_of(seen, 300, 200)
    assert (left, top, right, bottom) == (50, 0, 250, 200)
    drawn = np.asarray(overlaid(picture, HOT, view, extent=WHOLE.within(seen), seen=seen))
    alone = np.asarray(overlaid(picture.crop((50, 0, 250, 200)), HOT, view))
    assert (drawn[2:-2, 52:248] == alone[2:-2, 2:-2]).all()
    assert np.abs(drawn[:, :48] - views.OUTSIDE * np.asarray(picture)[:, :48]).max() < 1
    assert (drawn[:, 50] == 255).all() and (drawn[:, 249] == 255).all()


def test_views_and_scales_that_there_are_not() -> None:
    with pytest.raises(UserError, match="overlay is heat: choose one of color, light, contours, cells"):
        views.check_view("heat")
    with pytest.raises(UserError, match="scale is two: choose own"):
        scale.check_scale("two")


def test_commands_name_the_views_without_torch() -> None:
    assert _run_options.VIEWS == VIEWS == (*pages.NAMES,) and VIEWS[0] == VIEW, "in the order of pages and docs"
    assert {*_run_options.SCALES} == {*scale.Scale.__args__}


def test_the_colours_are_those_of_matplotlib() -> None:
    colours = pytest.importorskip("matplotlib").colormaps["plasma"](np.linspace(0, 1, len(views.RAMP)))
    ours = [[int(colour[place : place + 2], 16) for place in (1, 3, 5)] for colour in views.RAMP]
    assert np.abs(np.array(ours) - 255 * colours[:, :3]).max() <= 1


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip(NEEDED)
    running = Browser(tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


def opened(browser: Browser, page: Path) -> None:
    browser.call("Page.navigate", url=page.as_uri())
    browser.wait(f"document.readyState == 'complete' && location.href == '{page.as_uri()}'")
    browser.run("window.failed = []; addEventListener('error', event => failed.push(event.message))")


def press(browser: Browser, key: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)


def shown(browser: Browser) -> np.ndarray:
    """What lies on the picture, RGBA."""
    text = browser.run("document.querySelector('canvas').toDataURL()")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text.split(",")[1]))).convert("RGBA")).astype(int)


def test_a_page_draws_the_views_that_pictures_have(browser: Browser, tmp_path: Path) -> None:
    """The key v turns from one to the next; each lies over the part that the model saw."""
    generator = torch.Generator().manual_seed(0)
    alpha, picture = torch.rand(1, 6, 6, generator=generator) ** 3, Image.new("RGB", (672, 448), "#808080")
    seen = seen_extent(672, 448, "centre")
    item = PageItem("a", picture, ["dog"], alpha, extent=MOVED.within(seen), seen=seen)
    opened(browser, write_page(tmp_path / "page.html", [item]))
    for view in VIEWS:
        assert browser.run("document.body.dataset.view") == view
        browser.run("document.querySelector('.word').focus()")
        browser.wait("document.querySelector('.lit canvas')")
        assert browser.run("getComputedStyle(document.querySelector('canvas')).left != '0px'")
        over = shown(browser)
        ground = np.asarray(darkened(picture) if view == "light" else picture)[:448, :448]
        opacity = over[..., 3:] / 255
        drawn = ground * (1 - opacity) + over[..., :3] * opacity
        ours = np.asarray(overlaid(picture.crop((0, 0, 448, 448)), alpha[0], view, extent=MOVED))
        apart = np.abs(drawn - ours).max(axis=2)
        assert np.quantile(apart, 0.9) < 8 and apart.mean() < 8, view
        assert (apart < 90).all() or view in ("contours", "cells")  # lines and edges may lie half a pixel apart
        press(browser, "v", 86)
    assert browser.run("document.body.dataset.view") == "color" and browser.run("failed.join()") == ""


def test_a_page_has_a_scale_with_numbers(browser: Browser, tmp_path: Path) -> None:
    """Of each word its own, or with the key s one for all; it names the largest share and that of an even map."""
    words = ["a", "dog"]
    alpha = torch.stack([torch.full((5, 5), 0.03) + 0.25 * (torch.eye(25)[7].view(5, 5)), torch.eye(25)[3].view(5, 5)])
    opened(browser, write_page(tmp_path / "page.html", [PageItem("a", noise(), words, alpha)]))
    said = "[...document.querySelectorAll('.scale .top, .scale .facts')].map(each => each.textContent).join(' | ')"
    browser.run("document.querySelector('.word').focus()")
    assert browser.run(said) == "0.28 | largest 0.28 · even map 0.04"
    press(browser, "s", 83)
    assert browser.run(said) == "1 | largest 0.28 · even map 0.04"
    press(browser, "ArrowRight", 39)
    assert browser.run(said) == "1 | largest 1 · even map 0.04"
    assert browser.run("failed.join()") == ""


def test_views_are_chosen_by_keyboard_and_by_touch(browser: Browser, tmp_path: Path) -> None:
    """On a telephone nothing is wider than the screen."""
    opened(browser, write_page(tmp_path / "page.html", [PageItem("a", noise(), ["a", "dog"], HOT.expand(2, 14, 14))]))
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
    browser.run("document.querySelector('.word').focus()")
    place = browser.run(
        "(() => { const label = document.querySelector('[value=cells]').parentElement;"
        "const {left, top, width} = label.getBoundingClientRect(); return {x: left + width / 2, y: top + 9}; })()"
    )
    browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[place])
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    browser.wait("document.body.dataset.view == 'cells'")
    assert browser.run("document.querySelectorAll('.lit').length") == 1  # the word stays
    press(browser, "ArrowLeft", 37)
    assert browser.run("document.body.dataset.view") == "contours"
    assert browser.run("document.documentElement.scrollWidth") <= 390
    browser.call("Emulation.clearDeviceMetricsOverride")
    assert browser.run("failed.join()") == ""


@pytest.mark.slow
def test_the_benchmark_of_views_runs(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "images").mkdir()
    files = [{"file_name": f"{number}.jpg", "split": "test"} for number in range(4)]
    for number, file in enumerate(files):
        Image.new("RGB", (40, 30), (60 * number,) * 3).save(tmp_path / "images" / file["file_name"])
    (tmp_path / "captions.json").write_text(json.dumps({"images": files}))
    monkeypatch.setattr(sys, "argv", ["overlays", "--quick", str(tmp_path)])
    overlays.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows[1::3]] == ["light before", *VIEWS]

"""Pages of every kind insert text as text, whatever it holds, and their templates come with the package."""

import base64
import os
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from jinja2 import UndefinedError
from PIL import Image

from tests.browser import NEEDED, PROGRAM, Browser
from vision_attn.commands._compared_page import write_compared
from vision_attn.commands._comparison import Compared
from vision_attn.faithfulness.page import ExamplePicture, write_measured
from vision_attn.geometry.extents import WHOLE
from vision_attn.results.displayable import Displayable, write_embedded
from vision_attn.viz.html import FONTS, filled
from vision_attn.viz.index import IndexEntry, write_index
from vision_attn.viz.memory_hops import AnsweredImage, AnsweredStory, write_image_hops, write_story_hops
from vision_attn.viz.page import PageItem, write_page

PLAIN = "plain"
HOSTILE = [
    '</script><img src=x onerror="window.ran = 1">',
    "</style></title><svg onload='window.ran = 1'>",
    '" onmouseover="window.ran = 1" \' autofocus onfocus=\'window.ran = 1',
    "&lt;&amp;&#60;&quot;<!-- <![CDATA[",
    "{{ 7 * 7 }}{% raw %}{# #}",
    "a\u2028b\u2029c\u202e</b>",
    os.fsdecode(b"\xff\xfe</p>"),  # a name that is not in UTF-8
]
GREY = Image.new("RGB", (48, 32), "grey")


def named(text: str) -> str:
    """The text as the name of a file."""
    return text.replace("/", "")


def caption_page(folder: Path, text: str) -> Path:
    """With maps, hard attention, layers, boxes, a question and references; and without maps."""
    maps = torch.eye(4).view(4, 2, 2)
    full = PageItem(
        text, GREY, ["a", text, "b", "c"], maps, [text], {text: [(0, 0, 1, 1)]}, [-0.1] * 4, torch.arange(4),
        layers=torch.ones(4, 2, 2, 3, 3), question=text,
    )  # fmt: skip
    return write_page(folder / "page.html", [full, PageItem(text, GREY, ["a", text])], title=text, guide=text)


def film_page(folder: Path, text: str) -> Path:
    strip = Image.new("RGB", (96, 32), "grey")
    item = PageItem(text, strip, [text], torch.ones(1, 3, 1, 1), boxes={text: [(0, 0, 1, 1, 2)]}, frames=3)
    return write_page(folder / "page.html", [item])


def transcript_page(folder: Path, text: str) -> Path:
    item = PageItem(text, GREY, [text, "1"], torch.ones(2, 1, 4), [text], {"1": [(0, 0, 1, 1)]})
    return write_page(folder / "page.html", [item], title=text, unit="character")


def image_hops_page(folder: Path, text: str) -> Path:
    return write_image_hops(folder, [AnsweredImage(text, text, "b", 0.5, torch.ones(1, 2, 2), GREY, [], WHOLE)])[0]


def story_page(folder: Path, text: str) -> Path:
    alpha = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    stories = [
        AnsweredStory(text, [text, "b"], [0], text, "b", 0.5, alpha),
        AnsweredStory("c", ["b"], [0], text, text, 0.5, alpha),
    ]
    return write_story_hops(folder / "page.html", stories)


def picture_index(folder: Path, text: str) -> Path:
    """Names of files are in `test_viz_index.py`."""
    for name in ("a.gif", "b.png"):
        GREY.save(folder / name)
    entries = [IndexEntry(folder / "a.gif", text, folder / "a.png"), IndexEntry(folder / "b.png", text)]
    return write_index(folder / "page.html", entries, title=text, guide=text)


def compared_page(folder: Path, text: str) -> Path:
    """Tables of two tasks, keys that differ, a mean of seeds and curves."""
    lines = [{"step": step, text: step / 2, "loss": 1.0} for step in (1, 2)]
    runs = [
        Compared(text, {"task": "a", "run.seed": seed, "run.metric": text}, {text: 0.5}, {text: 0.5}, lines, {}, seed)
        for seed in (1, 2)
    ]
    more = runs[0]._replace(config={"task": "b", text: 1}, number=3, position={"done": False, "epoch": 1})
    return write_compared(folder / "page.html", [*runs, more, more._replace(number=4, config={"task": "b"})], None)


def measured_numbers(text: str) -> dict[str, Any]:
    method = {
        "gain": 0.2, "gain_interval": (0.1, 0.3), "is_better": True, "share": 0.5, "deletion": 0.1, "insertion": 0.5,
        "seconds": 0.1, "sanity": [0.5, 1.0], "ignores_weights": True,
    }  # fmt: skip
    curve = {"deletion": [1.0, 0.5, 0.0], "insertion": [0.0, 0.5, 1.0]}
    return {
        "methods": {text: method, "b": method | {"gain": 0.1}}, "settings": {"fill": "mean", "steps": 2},
        "answers": 2, "images": 2, "searched": 1, "checked": 1, "pointed": 0, "verdict": [text], "uniform": None,
        "random": {"deletion": 0.4}, "best": {"gain": 0.5}, "curves": {text: curve, "b": curve, "random": curve},
        "score": "probability", "agreement": {text: {text: 1.0, "b": 0.5}, "b": {text: 0.5, "b": 1.0}},
    }  # fmt: skip


def measured_page(folder: Path, text: str) -> Path:
    numbers = measured_numbers(text)
    example = ExamplePicture(0.1, f"folder/{named(text)}", GREY, text, {text: (torch.ones(2, 2), WHOLE)})
    return write_measured(folder / "page.html", text, numbers, [example])


def embedded_page(folder: Path, text: str) -> Path:
    GREY.save(folder / "a.png")
    write_embedded(folder / "page.html", text, folder / "a.png")
    return folder / "page.html"


class Shown(Displayable):
    """A result whose page holds a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def write_page(self, path: Path) -> None:
        path.write_bytes(f"<p title='{self.text}'>".encode(errors="replace"))

    def write_picture(self, path: Path) -> None: ...


def notebook_frame(folder: Path, text: str) -> Path:
    (folder / "page.html").write_text(Shown(text)._repr_html_(), encoding="utf-8")
    return folder / "page.html"


PAGES = [
    caption_page, film_page, transcript_page, image_hops_page, story_page, picture_index, compared_page, measured_page,
    embedded_page, notebook_frame,
]  # fmt: skip


def test_a_page_of_few_images_has_neither_empty_columns_nor_words_that_its_numbers_do_not_carry(tmp_path: Path) -> None:
    """Where no method has an interval or a share, columns are left out and the legend says why. A negative gain is
    under no heading that praises it; a single example has no counterpart; and axes begin at 0."""
    numbers = measured_numbers("a")
    methods = {
        name: one | {"gain_interval": None, "is_better": False, "share": None}
        for name, one in numbers["methods"].items()
    }
    curve = {"deletion": [0.41, 0.4, 0.39], "insertion": [0.4, 0.41, 0.4]}  # noise
    numbers |= {"methods": methods, "curves": dict.fromkeys(["a", "b", "random"], curve)}
    example = ExamplePicture(-0.2, "a.png", GREY, "a", {"a": (torch.ones(2, 2), WHOLE)})
    page = write_measured(tmp_path / "few.html", "m", numbers, [example]).read_text()
    assert not any(f'<td data-name="{name}"' in page for name in ("95% interval", "of the best"))
    assert "Of the best" not in page
    assert "No interval is given: it takes at least 5 images with an answer." in page
    assert "faithful maps" not in page and "Largest gains" in page and "Smallest gains" not in page
    assert page.count(">0</text>") == 3 + 3  # the axes of steps, and of values
    full = write_measured(tmp_path / "full.html", "m", measured_numbers("a"), [example, example]).read_text()
    assert (
        '<td data-name="95% interval"' in full and "not adjusted for their number" in full and "Smallest gains" in full
    )
    assert '<td data-name="of the best"' in full and "No interval is given" not in full


class Parsed(HTMLParser):
    """What a browser makes of a page: tags, the names and values of attributes, and text."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.parts: list[tuple[str, str]] = []
        self.feed(page.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.parts += [("tag", tag), *((name, value or "") for name, value in attributes)]

    def handle_endtag(self, tag: str) -> None:
        self.parts.append(("end", tag))

    def handle_data(self, data: str) -> None:
        self.parts.append(("text", data))

    def handle_comment(self, data: str) -> None:
        self.parts.append(("comment", data))


def plain(parts: list[tuple[str, str]], text: str) -> list[tuple[str, str]]:
    """The parts with PLAIN in place of a text, as it is written in UTF-8."""
    for form in (text, named(text)):
        form = form.encode("utf-8", "replace").decode()
        parts = [(kind, value.replace(form, PLAIN)) for kind, value in parts]
    return parts


@pytest.mark.parametrize("write", PAGES, ids=lambda write: write.__name__)
@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_stands_where_a_plain_one_would(write: Callable[[Path, str], Path], text: str, tmp_path: Path) -> None:
    """As text and as values of attributes, and nowhere else: tags and attributes are those of a page of plain text."""
    hostile, harmless = (Parsed(write(tmp_path, each)).parts for each in (text, PLAIN))
    assert plain(hostile, text) == harmless
    assert any(PLAIN in value for _, value in harmless)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip(NEEDED)
    running = Browser(tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.mark.parametrize("write", PAGES, ids=lambda write: write.__name__)
def test_a_browser_runs_nothing_of_a_text(write: Callable[[Path, str], Path], browser: Browser, tmp_path: Path) -> None:
    page = write(tmp_path, " ".join(HOSTILE))
    browser.call("Page.navigate", url=page.as_uri())
    browser.wait(f"document.readyState == 'complete' && location.href == '{page.as_uri()}'")
    assert (
        browser.run("document.querySelectorAll('[onerror], [onload], [onfocus], [onmouseover], [src=x]').length") == 0
    )
    assert browser.run("window.ran ?? 0") == 0


SEEN = """
window.problems = [];
addEventListener("error", event => problems.push(event.message || event.target.outerHTML.slice(0, 90)), true);
addEventListener("unhandledrejection", event => problems.push(String(event.reason)));
for (const kind of ["error", "warn"]) console[kind] = (...parts) => problems.push(parts.join(" "));
"""
REACHABLE = """[...document.querySelectorAll("a[href], button, summary, input, [tabindex='0']")].filter(one =>
  !one.disabled && one.checkVisibility() && (one.type != "radio" || one.checked))"""
"""Of radio buttons the tab key reaches the one that is chosen, and arrow keys the others."""
FOCUSED = """(() => {
  const one = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(one);
  if (one == document.body) return;
  reached.add(one);
  if (one.tagName != "IFRAME" && (outlineStyle == "none" || outlineWidth == "0px")) hidden.push(one.className);
})()"""
LUMINANCES = """[...document.querySelectorAll("h1, p, td:not(.weight), th, figcaption, .word, li")].filter(one =>
  one.checkVisibility() && one.textContent.trim()).map(one => {
  const [ink, ...papers] = [getComputedStyle(one).color];
  for (let each = one; each; each = each.parentElement) papers.push(getComputedStyle(each).backgroundColor);
  const numbers = text => text.match(/[0-9.]+/g).map(Number);
  const paper = papers.map(numbers).find(parts => parts.length < 4 || parts[3] > 0) ?? [255, 255, 255];
  const light = parts => parts.slice(0, 3).map(part => part / 255).map(part =>
    part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4).reduce((sum, part, place) =>
    sum + part * [.2126, .7152, .0722][place], 0);
  const [low, high] = [light(numbers(ink)), light(paper)].sort((a, b) => a - b);
  return [one.tagName + " " + one.className, (high + .05) / (low + .05), light(paper)];
})"""


def opened(browser: Browser, page: Path, scheme: str) -> None:
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.call("Page.enable")
    added = browser.call("Page.addScriptToEvaluateOnNewDocument", source=SEEN)["identifier"]
    browser.call("Page.navigate", url=page.as_uri())
    browser.wait(f"document.readyState == 'complete' && location.href == '{page.as_uri()}'")
    browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added)


@pytest.mark.parametrize("write", PAGES, ids=lambda write: write.__name__)
def test_a_page_is_used_by_keyboard_follows_the_scheme_and_prints(
    write: Callable[[Path, str], Path], browser: Browser, tmp_path: Path
) -> None:
    """The tab key reaches everything, and what has the focus shows it; text has contrast in both schemes; the console
    has no error; and the page becomes a PDF on white."""
    page, papers = write(tmp_path, PLAIN), []
    for scheme in ("dark", "light"):
        opened(browser, page, scheme)
        found = browser.run(LUMINANCES)
        assert not [one for one in found if one[1] < 4.5], "text without contrast"
        papers += [light for kind, _, light in found if kind == "H1 "]
    assert papers == [] or papers[0] < 0.1 < 0.7 < papers[1]
    wanted = browser.run(f"{REACHABLE}.length")
    browser.run("window.reached = new Set(), window.hidden = []")
    for _ in range(wanted + 2):
        for kind in ("rawKeyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        browser.run(FOCUSED)
    assert browser.run(f"{REACHABLE}.filter(one => !reached.has(one)).map(one => one.outerHTML.slice(0, 90))") == []
    assert browser.run("hidden") == [] and browser.run("problems") == []
    document = base64.b64decode(browser.call("Page.printToPDF", printBackground=True)["data"])
    assert document.startswith(b"%PDF") and len(document) > 500


@pytest.mark.parametrize(
    "text, files", [("a dog", 1), ("kůň", 2), ("σκύλος", 2), ("собака", 2), ("ein Hündchen – 20 °C", 1), ("犬", 1)]
)
def test_a_page_holds_the_files_of_the_typeface_that_it_needs(text: str, files: int, tmp_path: Path) -> None:
    page = story_page(tmp_path, text).read_text(encoding="utf-8")
    assert page.count("@font-face") == files
    assert sum(file.stat().st_size for file in FONTS.iterdir()) < 200_000 and (FONTS / "LICENSE").is_file()


def test_a_browser_sets_text_in_the_typeface(browser: Browser, tmp_path: Path) -> None:
    opened(browser, story_page(tmp_path, "a dog σκύλος"), "light")
    found = browser.run("document.fonts.ready.then(() => [...document.fonts].map(one => one.family + one.status))")
    assert found == ["Interloaded", "Interloaded"]


def test_figures_of_unlike_heights_leave_no_voids(browser: Browser, tmp_path: Path) -> None:
    """In each column one figure begins where another ends, and their order from top to bottom is that of the page."""
    maps = torch.eye(4).view(4, 2, 2)
    shapes = [(48, 32), (32, 48), (48, 32), (48, 20), (32, 48), (48, 32), (48, 32)]
    items = [PageItem(str(number), Image.new("RGB", shape), list("abcd"), maps) for number, shape in enumerate(shapes)]
    opened(browser, write_page(tmp_path / "page.html", items), "light")
    browser.wait("[...document.querySelectorAll('figure')].every(one => one.style.gridRowEnd)")
    boxes = "[...document.querySelectorAll('figure')].map(one => one.getBoundingClientRect())"
    found = browser.run(f"{boxes}.map(one => [Math.round(one.left), one.top, one.bottom])")
    assert len({left for left, _, _ in found}) == 3
    for column in {left for left, _, _ in found}:
        inside = [(top, bottom) for left, top, bottom in found if left == column]
        gaps = [after[0] - before[1] for before, after in pairwise(inside)]
        assert all(10 < gap < 40 for gap in gaps)
    assert [top for _, top, _ in found] == sorted(top for _, top, _ in found)


@pytest.mark.slow
def test_a_value_that_a_template_lacks_is_a_mistake(tmp_path: Path) -> None:
    """And not an empty place on the page."""
    with pytest.raises(UndefinedError, match="'source' is undefined"):
        filled("picture.html", title="a")

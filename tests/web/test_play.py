"""The page lets its user play with attention: requests, and a real browser, by mouse and by keyboard alone."""

import io
import os
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from PIL import Image

from tests.browser import NEEDED, PROGRAM, Browser
from tests.viz.test_pages import LUMINANCES
from tests.web.test_serve import ask
from vision_attn.api import Model, load_model

pytest.importorskip("uvicorn", reason="the page needs the extra [web]: starlette, uvicorn")
from vision_attn.web import make_server, server  # noqa: E402
from vision_attn.web.answers import scattered  # noqa: E402


@cache
def model(name: str) -> Model:
    return load_model(f"weights/{name}", device="cpu")


@pytest.fixture(scope="module")
def served() -> Iterator[server.Server]:
    models = [(name, model(name)) for name in ("drawn_scenes", "ram_cluttered60")]
    with make_server(models, port=0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def browser(served, tmp_path) -> Iterator[Browser]:
    """With the page, and its errors as `problems`."""
    if PROGRAM is None:
        pytest.skip(NEEDED)
    running = Browser(tmp_path / "profile")
    running.call("Page.enable")
    running.call("Page.addScriptToEvaluateOnNewDocument", source=(
        "window.problems = []; addEventListener('error', event => problems.push(event.message ?? 'not loaded'), true);"
        "addEventListener('unhandledrejection', event => problems.push(String(event.reason)));"
        "for (const kind of ['error', 'warn']) console[kind] = (...parts) => problems.push(parts.join(' '));"
    ))  # fmt: skip
    running.call("Page.navigate", url=f"http://127.0.0.1:{served.server_port}/")
    running.wait("document.body && 'ready' in document.body.dataset")
    yield running
    assert running.run("problems") == []
    running.close()


def shot(browser: Browser, name: str, selector: str, tmp_path: Path) -> None:
    """Nothing is wider than the page, of a telephone or a desk. Screenshots are kept in VISION_ATTN_SCREENSHOTS."""
    shots = Path(os.environ.get("VISION_ATTN_SCREENSHOTS", tmp_path))
    shots.mkdir(exist_ok=True)
    for width in (390, 1280):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=1500, deviceScaleFactor=1, mobile=False)
        browser.run(f"document.querySelector('{selector}').scrollIntoView()")
        browser.screenshot(shots / f"{name}_{width}.png")
        assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), width


def press(browser: Browser, *keys: str) -> None:
    codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
    for key in keys:
        text = {"Enter": {"text": "\r"}}.get(key, {} if len(key) > 1 else {"text": key})
        kind = "keyDown" if text else "rawKeyDown"
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes.get(key, 0), **text)
        browser.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=codes.get(key, 0))


def drag(browser: Browser, selector: str, *places: tuple[float, float]) -> None:
    """Press the mouse at the first place, in [-1, 1] of an element, and let it go at the last."""
    browser.run(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    edges = f"(({{x, y, width, height}}) => [x, y, width, height])(document.querySelector('{selector}')"
    left, top, width, height = browser.run(f"{edges}.getBoundingClientRect())")
    points = [(left + (x + 1) / 2 * width, top + (y + 1) / 2 * height) for x, y in places]
    kinds = ["mousePressed", *["mouseMoved"] * (len(points) - 1), "mouseReleased"]
    for kind, (x, y) in zip(kinds, [*points, points[-1]], strict=True):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)


@cache
def scene() -> tuple[bytes, dict[str, tuple[float, ...]]]:
    """A drawn scene as a file: "a cyan circle is to the right of a yellow star ...", and the box of each word."""
    batch = next(iter(model("drawn_scenes").source.split("test")))
    kept = io.BytesIO()
    Image.fromarray(batch.images[1].permute(1, 2, 0).numpy()).save(kept, "PNG")
    return kept.getvalue(), {word: box for word, (box,) in batch.boxes[1].items()}


def test_a_caption_is_asked_for_with_a_place(served) -> None:
    """The answer is that of `caption(attend=)`, for a point and for a box."""
    content, boxes = scene()
    assert [one.get("steerable") for one in ask(served, "/models").json()] == [True, None]
    for place in ([-0.6, -0.5], list(boxes["yellow"])):
        asked = urlencode({"attend": f'{{"2": {place}}}', "strength": 0.9})
        found = ask(served, f"/caption?{asked}", content).json()
        expected = model("drawn_scenes").caption(content, attend={2: tuple(place)}, strength=0.9)
        assert found["text"] == expected.text and found["steered"] == [2]
        assert found["words"][1]["word"] == "yellow" and found["page"].startswith("<!doctype html>")
    plain = ask(served, "/caption", content).json()
    still = ask(served, "/caption?" + urlencode({"attend": '{"2": [0, 0]}', "strength": 0}), content).json()
    assert plain["words"][1]["word"] == "cyan" and plain["words"] == still["words"] and "steered" not in still


@pytest.mark.parametrize(
    ("attend", "strength", "said"),
    [
        ("{", None, "attend is JSON of words"), ("[1]", None, "attend is JSON of words"),
        ("{}", None, "attend is JSON of words"), ('{"0": [0, 0]}', None, "attend is JSON of words"),
        ('{"-1": [0, 0]}', None, "attend is JSON of words"), ('{"2": [0]}', None, "attend is JSON of words"),
        ('{"2": [true, 0]}', None, "attend is JSON of words"), ('{"2": "0,0"}', None, "attend is JSON of words"),
        ('{"2": [NaN, 0]}', None, "attend is JSON of words"), ('{"2": [1e999, 0]}', None, "attend is JSON of words"),
        (f'{{"2": [{"9" * 500}, 0]}}', None, "attend is JSON of words"), ("[" * 1999, None, "attend is JSON of words"),
        (f'{{"2": [0, 0{"0" * 2000}]}}', None, "attend is JSON of words"),
        ('{"2": [0, 0], "2": [1, 1]}', None, "a key occurs twice"),
        ('{"2": [0, 0], "02": [1, 1]}', None, "two places for word 2"),
        ('{"2": [2, 0]}', None, "outside of what the model sees"), ('{"99": [0, 0]}', None, "the words 1 to 30"),
        ('{"2": [0.5, 0, 0, 1]}', None, "a box is x0 < x1"), ('{"2": [0, 0, 1]}', None, "has a frame"),
        ('{"2": [0, 0]}', "much", "strength is a number"), ('{"2": [0, 0]}', "nan", "from 0"),
        ('{"2": [0, 0]}', "1.5", "from 0"), (None, "0.5", "give attend too"),
    ],
)  # fmt: skip
def test_places_that_there_are_not_get_a_line(served, attend: str | None, strength: str | None, said: str) -> None:
    options = {name: value for name, value in (("attend", attend), ("strength", strength)) if value is not None}
    answer = ask(served, f"/caption?{urlencode(options)}", scene()[0])
    assert answer.status == 400 and said in answer.json()["error"] and "\n" not in answer.json()["error"]


def dropped(browser: Browser) -> None:
    """Drop the scene on the page, and wait for its caption."""
    browser.run(
        f"(() => {{ const dragged = new DataTransfer(); dragged.items.add(new File([new Uint8Array({[*scene()[0]]})],"
        "'scene.png')); document.querySelector('.drop').dispatchEvent(new DragEvent('drop', {dataTransfer: dragged,"
        "bubbles: true, cancelable: true})); })()"
    )
    browser.wait("document.querySelector('form.elsewhere .place img')?.complete")


MARKED = "[...document.querySelectorAll('#photograph .now mark')].map(one => one.textContent)"
SHOWN = "document.querySelector('#photograph iframe').contentDocument.querySelector('.caption')?.textContent"


def test_a_place_is_drawn_and_the_caption_changes(browser, tmp_path) -> None:
    """By mouse: a box, then a point; and back."""
    dropped(browser)
    old = browser.run("document.querySelector('#photograph h3').textContent")
    assert old.startswith("drawn_scenes: a cyan circle")
    x0, y0, x1, y1 = scene()[1]["yellow"]
    for places in ([(x0, y0), (0, 0), (x1, y1)], [((x0 + x1) / 2, (y0 + y1) / 2)]):
        browser.run("document.querySelector('.choose input[value=\"2\"]').click()")
        drag(browser, "form.elsewhere .place", *places)
        told = browser.run("document.querySelector('form.elsewhere output').textContent")
        assert told.startswith("box" if len(places) > 1 else "point")
        browser.run("document.querySelector('form.elsewhere button').click()")
        browser.wait(f"{MARKED}.includes('yellow') && {SHOWN}?.startsWith('a yellow')")
        assert "cyan" in browser.run("document.querySelector('#photograph h3 mark').textContent")
        if len(places) > 1:
            shot(browser, "elsewhere", "#photograph .results", tmp_path)
        browser.run("document.querySelector('.back').click()")
        browser.wait(f"!document.querySelector('#photograph .now') && {SHOWN}?.startsWith('a cyan')")
        assert browser.run("document.querySelector('#photograph h3').textContent") == old


def test_a_place_is_chosen_by_keyboard_alone(browser) -> None:
    dropped(browser)
    browser.run("document.querySelector('form.elsewhere .place').focus()")
    press(browser, *["ArrowLeft"] * 6, *["ArrowUp"] * 5, *["+"] * 5, "-")
    assert (
        browser.run("document.querySelector('form.elsewhere output').textContent") == "box -0.80, -0.70, -0.40, -0.30"
    )
    press(browser, "Tab")
    assert browser.run("document.activeElement.value") == "2"  # the first long word; arrows choose another
    press(browser, "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "Enter")
    browser.wait(f"{MARKED}.includes('yellow')")
    press(browser, "Tab", "Tab", "Tab", "Enter")
    browser.wait("!document.querySelector('#photograph .now')")
    assert browser.run("document.activeElement.className") == "place"
    press(browser, "Enter")  # also where the place is
    browser.wait(f"{MARKED}.includes('yellow')")


@cache
def digit(label: int) -> bytes:
    """A digit of those that the page hides."""
    kept = io.BytesIO()
    Image.open(Path(server.__file__).parent / "digits.png").crop((28 * label, 28, 28 * label + 28, 56)).save(
        kept, "PNG"
    )
    return kept.getvalue()


def test_glimpses_are_taken_beside_those_of_the_policy(served) -> None:
    """The user's answers are those of `classify(locations=)`, after as many glimpses; other places get a line."""
    assert [one.get("glimpses") for one in ask(served, "/models").json()] == [None, 8]

    def played(locations: str, **options: object) -> SimpleNamespace:
        asked = {"model": 1, "clutter": 4, "seed": 7, "locations": locations} | options
        return ask(served, f"/glimpses?{urlencode(asked)}", digit(3))

    found = played("[[-0.9, -0.9], [0, 0.1]]").json()
    canvas = scattered(Image.open(io.BytesIO(digit(3))), (60, 60), 4, 7)
    for who, locations in (("user", [(-0.9, -0.9), (0.0, 0.1)]), ("policy", None)):
        expected = model("ram_cluttered60").classify(canvas, locations=locations)
        assert [one["entropy"] for one in found[who]["answers"]] == pytest.approx(
            expected.entropy[:2].tolist(), abs=1e-4
        )
        assert found[who]["answers"][1]["answer"] == str(int(expected.probabilities[1].argmax()))
        assert found[who]["shown"].startswith("data:image/png")
    other = played("[[0, 0]]", seed=8).json()
    assert len(other["user"]["answers"]) == 1 and other["image"] != found["image"]
    for locations, said in (
        ("", "locations is JSON"), ("[]", "locations is JSON"), ("[[0]]", "locations is JSON"),
        ('{"1": [0, 0]}', "locations is JSON"), ("[[2, 0]]", "must lie in [-1, 1]"),
        ("[[0, 0, 1]]", "takes a location"),
        (f"[{', '.join(['[0, 0]'] * 9)}]", "takes 8 glimpses"),
    ):  # fmt: skip
        answer = played(locations)
        assert answer.status == 400 and said in answer.json()["error"]
    assert "seed is x" in played("[[0, 0]]", seed="x").json()["error"]
    assert ask(served, "/glimpses?model=0", digit(3)).status == 400


ROWS = "[...document.querySelectorAll('#yourself tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
VERDICT = "document.querySelector('.verdict').textContent"
READY = "document.querySelector('.verdict').textContent == '8 glimpses are left.'"


@pytest.mark.slow
def test_a_hidden_digit_is_looked_for_by_mouse_and_by_keyboard(browser, tmp_path) -> None:
    """After each glimpse there is an answer for both; at the end, how many each needed. Contrast of all text."""
    browser.run("Math.random = () => .35; document.querySelector('.another').click()")
    browser.wait(READY)
    assert browser.run("document.querySelectorAll('#yourself img[src]').length") == 0
    for number, place in enumerate([(0, 0), (-0.5, 0.5)], start=1):
        drag(browser, "#yourself .place", place)
        browser.wait(f"{ROWS}.length == {number}")
    assert browser.run(ROWS)[1][0] == "2" and browser.run(ROWS)[1][1].endswith(" nats")
    browser.run("document.querySelector('#yourself .place').focus()")
    for number in range(3, 9):
        press(browser, "ArrowRight", "Enter")
        browser.wait(f"{ROWS}.length == {number}")
    browser.wait(f"{VERDICT}.startsWith('It is a 3. ')")
    assert "with the policy's it is right from glimpse" in browser.run(VERDICT)
    assert browser.run("document.querySelectorAll('#yourself img[src]').length") == 3
    press(browser, "Enter")  # no ninth glimpse
    shot(browser, "yourself", "#yourself", tmp_path)
    assert len(browser.run(ROWS)) == 8
    dropped(browser)
    assert not [one for one in browser.run(LUMINANCES) if one[1] < 4.5], "text without contrast"
    browser.run("document.querySelector('.another').focus()")
    press(browser, "Enter", "Enter")  # which goes on at the image
    browser.wait(f"{ROWS}.length == 1")
    browser.run("document.querySelector('.reveal').focus()")
    press(browser, "Enter")
    browser.wait(f"{VERDICT}.startsWith('It is a 3. ')")


def test_glimpses_that_were_needed(browser) -> None:
    """An answer counts from when it is right and stays."""
    answers = "[...{}].map(answer => ({{ answer }}))"
    for text, wanted in (("3333", 1), ("1313", 4), ("1333", 2), ("3331", None), ("", None)):
        assert browser.run(f"needed({answers.format(repr(text))}, '3')") == wanted

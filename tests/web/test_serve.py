"""The web page: its requests, and its journeys in a real browser."""

import base64
import http.client
import io
import json
import math
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torchvision
from PIL import Image, ImageDraw

from tests import pretend
from tests.browser import NEEDED, PROGRAM, Browser
from tests.untrained import write_run
from vision_attn.api import Model, load
from vision_attn.commands import main
from vision_attn.commands.serve import short_names
from vision_attn.data.images.open import Encoded
from vision_attn.explain.libraries.opening import open_model
from vision_attn.explain.look import look
from vision_attn.models.ram import RAM
from vision_attn.results.explainer import Explainer
from vision_attn.system.errors import UserError
from vision_attn.system.files import ours
from vision_attn.task import Source
from vision_attn.tasks.classify import Classification
from vision_attn.viz.page import PageItem, write_page

pytest.importorskip("uvicorn", reason="the page needs the extra [web]: starlette, uvicorn")
from vision_attn.web import make_server, server  # noqa: E402

PHOTOGRAPH = Path(__file__).parents[2] / "docs" / "photographs" / "coffee.jpg"


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[server.Server]:
    """Two captioners, two classifiers, and models of torchvision; all untrained, most of them tiny."""
    folder = tmp_path_factory.mktemp("served")
    captioner = load(write_run("sat_soft_scenes", folder / "scenes"), device="cpu")
    classifier = load(write_run("ram_mnist28", folder / "ram"), device="cpu")
    models = [("one", captioner), ("other", captioner), ("ram", classifier), ("ram again", classifier)]
    torch.manual_seed(0)
    vit = open_model("vit_b_32", weights="none")
    torch.nn.init.normal_(vit.module.heads.head.weight, std=0.05)  # torchvision's zeros make answers of nothing
    models.append(("vit_b_32", Explainer("vit_b_32", vit.kind, partial(look, vit), torch.device("cpu"))))
    models += [(name, load(name, weights="none", device="cpu")) for name in ("squeezenet1_1", "swin_t")]
    with make_server(models, port=0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def ask(served, path: str, body: bytes | None = None, **headers: str) -> SimpleNamespace:
    connection = http.client.HTTPConnection("127.0.0.1", served.server_port, timeout=60)
    connection.request("POST" if body is not None else "GET", path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return SimpleNamespace(status=answer.status, content=content, json=lambda: json.loads(content))


def picture(size: tuple[int, int] = (28, 28), kind: str = "PNG", ground: str = "black") -> bytes:
    """A white line on a ground that is transparent unless it is black."""
    image = Image.new("L", size)
    ImageDraw.Draw(image).line((14, 4, 14, 24), 255, 3)
    if ground != "black":
        ink, image = image, Image.new("RGB", size, ground)
        image.putalpha(ink)
    kept = io.BytesIO()
    image.save(kept, kind)
    return kept.getvalue()


def test_photographs_and_digits_are_answered_with_a_page(served, capfd) -> None:
    models = ask(served, "/models").json()
    assert [model["kind"] for model in models] == ["caption", "caption", "digit", "digit", "look", "look", "look"]
    assert [model["takes"] for model in models][::2] == ["photograph", "digit", "classifier", "classifier"]
    named = ask(served, "/caption?model=1&name=..%2F%3Cb%3Ecup.jpg", PHOTOGRAPH.read_bytes()).json()["page"]
    assert "&lt;b&gt;cup.jpg" in named and "<b>cup" not in named and "../" not in named
    first = ask(served, "/caption", PHOTOGRAPH.read_bytes()).json()
    assert first["text"] == ask(served, "/caption?model=0", PHOTOGRAPH.read_bytes()).json()["text"]
    found = ask(served, "/caption?model=1", PHOTOGRAPH.read_bytes()).json()
    assert found["text"] == load_text(served) and found["page"].startswith("<!doctype html>")
    one, other = (ask(served, "/digit?model=2&clutter=3", picture()).json() for _ in range(2))
    assert one == other and "data:image/gif" in one["page"] and one["text"].split(",")[0].isdigit()
    assert ask(served, "/digit?model=2&clutter=3", picture(ground="white")).json() == one
    answer = ask(served, "/classify?model=2", picture((60, 40), "JPEG"))
    assert answer.status == 200 and sum(answer.json()["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    glimpses = answer.json()["locations"]
    assert len(glimpses) > 1 and all(-1 <= x <= 1 and -1 <= y <= 1 for x, y in glimpses)
    assert [word["word"] for word in found["words"]] == found["text"].split()
    for word in found["words"]:
        assert word["log_prob"] < 0 and sum(map(sum, word["map"])) == pytest.approx(1, abs=1e-4)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_other_models_are_looked_into_with_a_photograph(served) -> None:
    """With the maps of `look` in Python; texts and methods are passed on, and mistakes told."""
    model = served.models[4][1]
    assert ask(served, "/models").json()[4] == {"name": "vit_b_32", "kind": "look", "takes": "classifier"}
    found = ask(served, "/look?model=4&name=coffee.jpg", PHOTOGRAPH.read_bytes()).json()
    expected = model.look(PHOTOGRAPH)
    assert found == {"text": expected.text, "page": expected.page()} and expected.method == "relevance"
    assert 'class="dials" data-heads="12 12 12 12 12 12 12 12 12 12 12 12" data-rows="7 ' in found["page"]
    asked = "/look?model=4&method=rollout&text=tench&text=espresso&name=coffee.jpg"
    rolled = ask(served, asked, PHOTOGRAPH.read_bytes()).json()
    assert rolled["page"] == model.look(PHOTOGRAPH, ["tench", "espresso"], method="rollout").page()
    assert rolled["text"].startswith("tench (") and rolled["page"].count('class="word"') == 2
    assert ask(served, "/look?model=5", PHOTOGRAPH.read_bytes()).json()["text"].endswith(")")
    for path, said in (
        ("/look?model=4&text=tensh", "the classifier has no class 'tensh'; did you mean tench"),
        ("/look?model=4&method=magic", "there is no method 'magic'; choose one of auto, attention, rollout"),
        ("/look?model=5&method=rollout", "no layer of this model attends to the whole image"),
        ("/look?model=2", "does not answer /look"), ("/caption?model=4", "vit_b_32 does not answer /caption"),
    ):  # fmt: skip
        answer = ask(served, path, PHOTOGRAPH.read_bytes())
        assert answer.status == 400 and said in answer.json()["error"]


def test_serve_opens_runs_and_models_of_other_libraries(tmp_path, monkeypatch, capsys) -> None:
    """Each with its weights; a mistake in a name gets the suggestion that `vision-attn look` gives."""
    run = str(write_run("sat_soft_scenes", tmp_path / "run"))
    served: list = []
    pretend.a_server_that(monkeypatch, lambda server: served.extend(server.models))
    names = ["squeezenet1_1", run, "squeezenet1_1"]
    model = torchvision.models.get_model("squeezenet1_1")
    torch.save({name: value * 0 for name, value in model.state_dict().items()}, tmp_path / "0.pt")
    options = ["--port", "0", "--device", "cpu", "--weights", "none", "--weights", str(tmp_path / "0.pt")]
    assert main(["serve", *names, *options]) == 0
    assert [name for name, _ in served] == ["squeezenet1_1", "run", "squeezenet1_1"]
    assert [type(one).__name__ for _, one in served][1] == "Model"
    answers = [served[number][1].look(PHOTOGRAPH) for number in (0, 2)]
    assert answers[1].log_prob[0] == pytest.approx(-math.log(1000)) != answers[0].log_prob[0]
    capsys.readouterr()
    for words, said in (
        (["squeezenet1_2", *options[:4]], "neither a run folder nor a network of torchvision; did you mean squeezenet"),
        ([*names, *options[:-2]], "--weights is given 1 times, but 2 models are no runs"),
    ):  # fmt: skip
        assert main(["serve", *words]) == 1
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["weights/photographs", "hf://me/dogs", "timm:vit", "."], ["photographs", "dogs", "timm:vit", "."]),
        (["a/runs/x/", "b/runs/x", "b/runs/y", "x"], ["a/runs/x", "b/runs/x", "y", "x"]),
        (["/a/x/best", "/a/y/best", "/a/y/best"], ["x/best", "y/best", "y/best"]),
    ],
)
def test_models_are_named_by_their_name(names, short) -> None:
    """With the folder where two have the same."""
    assert short_names(names) == short


def test_photographs_to_choose_come_from_memory(served) -> None:
    """Those of docs/photographs, and no other file."""
    names = ask(served, "/photographs").json()
    assert names == ["coffee.jpg", "dog.jpg", "horse.jpg", "soccer.jpg", "surfer.jpg"]
    assert ask(served, "/photographs/coffee.jpg").content == PHOTOGRAPH.read_bytes()
    for name in ("README.md", "../README.md", "..%2F..%2FREADME.md", "%2Fetc%2Fpasswd", "coffee", "%00"):
        assert ask(served, f"/photographs/{name}").status == 404, name
    assert ask(served, "/photographs/coffee.jpg", b"").status == 405
    assert ask(served, "/photographs/coffee.jpg", Host="evil.example").status == 403


def test_the_lesson_is_served(served) -> None:
    answer = ask(served, "/lesson")
    assert answer.status == 200 and answer.content == (ours() / "docs/lesson/index.html").read_bytes()
    assert ask(served, "/lesson", b"").status == 405 and b'href="lesson"' in ask(served, "/").content


def load_text(served) -> str:
    return served.models[1][1].caption(PHOTOGRAPH).text


def test_uploads_that_cannot_be_used_get_a_message(served, monkeypatch) -> None:
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", "10000")
    for path, body, status, said in (
        ("/caption?model=0", b"no image", 400, "not a readable image"),
        ("/caption?model=0", b"", 400, "not a readable image"),
        ("/caption?model=0", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 400, "supported are JPEG, PNG"),
        ("/caption?model=0", picture((200, 51)), 413, "too large, 200 x 51 pixels"),
        ("/caption?model=0", PHOTOGRAPH.read_bytes()[:9000], 413, "too large"),
        ("/caption?model=0", bytes(server.LARGEST + 1), 413, "file is too large"),
        ("/digit?model=2", picture((200, 51)), 413, "too large, 200 x 51 pixels"),
        ("/digit?model=2", picture()[:-30], 400, "not a readable image"),
        ("/caption?model=0", picture()[:-30], 400, "not a readable image"),
        ("/caption?model=9", picture(), 404, "no such model"),
        ("/caption?model=2", picture(), 400, "ask /caption?model=0 (one)"),
        ("/classify?model=0", picture(), 400, "ask /classify?model=2 (ram)"), ("/models", b"", 405, "ask with GET"),
        ("/digit?model=0", picture(), 400, "ask /digit?model=2"),
        ("/look?model=2", picture(), 400, "ask /look?model=0"),
        ("/digit?model=2&clutter=21", picture(), 400, "from 0 to 20"),
        ("/digit?model=2&clutter=-5", picture(), 400, "to 20"),
        ("/digit?model=2&clutter=%C2%B2", picture(), 400, "to 20"),
        ("/caption?model=%C2%B2", picture(), 404, "no such model"),
        ("/caption?model=" + "9" * 5000, picture(), 404, "no such model"),
        ("/caption?modell=1", picture(), 400, "/caption has no option 'modell': it takes model, name"),
        ("/caption?modell=", picture(), 400, "no option 'modell'"),
        ("/digit?model=2&method=rollout", picture(), 400, "no option 'method': it takes model, name, clutter"),
        ("/caption?model=4", picture(), 400, "ask /caption?model=0"), ("/look", None, 405, "POST"),
        ("/caption", None, 405, "POST"), ("/else", None, 404, "no such page"),
        ("/else?model=0", picture(), 404, "no such page"),
    ):  # fmt: skip
        answer = ask(served, path, body)
        assert answer.status == status and said in answer.json()["error"]


def test_requests_that_wait_are_answered_together_each_with_its_own_answer(served, monkeypatch) -> None:
    """A file that cannot be used costs the others nothing."""
    sizes, free, answers = [], threading.Event(), server.answers

    def counted(model, verb, options, files):
        sizes.append(len(files))
        assert free.wait(60)
        return answers(model, verb, options, files)

    pretend.answering(monkeypatch, counted)
    sent = [PHOTOGRAPH.read_bytes(), *(picture((40, 40 + 9 * number), "JPEG") for number in range(3)), b"no image"]
    with ThreadPoolExecutor(5) as clients:
        first = clients.submit(ask, served, "/caption", sent[0])
        while not sizes:
            time.sleep(0.01)
        others = [clients.submit(ask, served, "/caption", content) for content in sent[1:]]
        while sum(map(len, served._waiting.values())) < 4:
            time.sleep(0.01)
        free.set()
        found = [one.result() for one in (first, *others)]
    assert sizes == [1, 4, 1, 1, 1, 1] and [one.status for one in found] == [200, 200, 200, 200, 400]
    expected = [served.models[0][1].caption(Encoded("this image", content)) for content in sent[:4]]
    for one, caption in zip(found, expected, strict=False):
        assert [word["log_prob"] for word in one.json()["words"]] == pytest.approx(caption.log_prob, abs=1e-5)


def test_requests_that_break_off_are_answered_or_dropped_in_silence(served, monkeypatch, capfd) -> None:
    pretend.impatient_server(monkeypatch, 0.3)
    address = "127.0.0.1", served.server_port
    head = f"POST /caption HTTP/1.1\r\nHost: 127.0.0.1:{served.server_port}\r\nContent-Length: 1000\r\n\r\n".encode()
    with socket.create_connection(address, timeout=10) as short:
        short.sendall(head + b"too short")
        answer = short.makefile("rb").read().decode()
    assert " 408 " in answer.splitlines()[0] and json.loads(answer.splitlines()[-1])["error"].startswith(
        "the request is"
    )
    with socket.create_connection(address, timeout=10) as gone:
        gone.sendall(head.replace(b"1000", str(len(PHOTOGRAPH.read_bytes())).encode()) + PHOTOGRAPH.read_bytes())
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets the connection
    with socket.create_connection(address, timeout=10) as other:
        other.sendall(b"PUT / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = other.makefile("rb").read().decode()
    assert " 405 " in answer.splitlines()[0] and "GET" in json.loads(answer.splitlines()[-1])["error"]
    assert ask(served, "/caption", PHOTOGRAPH.read_bytes()).status == 200  # behind the one that has gone
    assert capfd.readouterr() == ("", "")


def test_a_client_that_sends_a_byte_at_a_time_is_cut_off(served, monkeypatch) -> None:
    pretend.impatient_server(monkeypatch, 0.5)
    address = "127.0.0.1", served.server_port
    starts = (
        b"GE",
        f"POST /caption HTTP/1.1\r\nHost: 127.0.0.1:{address[1]}\r\nContent-Length: 9999\r\n\r\nx".encode(),
    )
    for start, said in zip(starts, ("", " 408 "), strict=True):
        with socket.create_connection(address, timeout=10) as slow:
            slow.sendall(start)
            for _ in range(200):
                try:
                    slow.sendall(b"T")
                except ConnectionError:
                    break
                if select.select([slow], [], [], 0.05)[0]:
                    break
            else:
                pytest.fail("still connected")
            with suppress(ConnectionError):
                assert said in slow.makefile("rb").read().decode()


def test_other_sites_are_refused(served) -> None:
    assert ask(served, "/", Host="evil.example").status == 403
    assert ask(served, "/caption?model=0", picture(), Origin="http://evil.example").status == 403
    for headers in ({"Host": "[::1"}, {"Origin": "http://[x"}):
        assert ask(served, "/caption?model=0", picture(), **headers).status == 403
    ours = f"http://127.0.0.1:{served.server_port}"
    assert ask(served, "/digit?model=2", picture(), Origin=ours).status == 200
    with pytest.raises(UserError, match="name another --port"):
        make_server([], port=served.server_port)


@pytest.fixture
def browser(tmp_path) -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip(NEEDED)
    running = Browser(tmp_path / "profile")
    yield running
    running.close()


TURN = (
    "(() => {{ const [layer, head] = {page}.querySelectorAll('.dials input'); layer.value = {layer};"
    "layer.dispatchEvent(new Event('input', {{bubbles: true}})); head.value = {head};"
    "head.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
)
"""Turns the sliders to a layer and a head, counted from 1."""


def drop(browser: Browser) -> None:
    """Drop the photograph on the page."""
    content = base64.b64encode(PHOTOGRAPH.read_bytes()).decode()
    browser.run(
        "(async () => { const bytes = await (await fetch('data:image/jpeg;base64," + content + "')).blob();"
        "const dragged = new DataTransfer(); dragged.items.add(new File([bytes], 'coffee.jpg'));"
        "document.querySelector('.drop').dispatchEvent(new DragEvent('drop', {dataTransfer: dragged, bubbles: true,"
        "cancelable: true})); })()"
    )


def choose(browser: Browser, select: str, value: str) -> None:
    """Choose an option, by its text, or write a text."""
    browser.run(
        f"(() => {{ const field = document.querySelector('{select}');"
        f"field.value = [...(field.options ?? [])].find(one => one.text === '{value}')?.value ?? '{value}';"
        "field.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def test_three_journeys_in_a_browser(served, browser, tmp_path) -> None:
    """A photograph is dropped and its words play with their maps; two models are compared; a digit is drawn by mouse
    and found among clutter. Screenshots are kept in VISION_ATTN_SCREENSHOTS."""
    shots = Path(os.environ.get("VISION_ATTN_SCREENSHOTS", tmp_path))
    shots.mkdir(exist_ok=True)
    browser.call("Page.navigate", url=f"http://127.0.0.1:{served.server_port}/")
    browser.wait("document.body && 'ready' in document.body.dataset")
    drop(browser)
    browser.wait("document.querySelector('#photograph .results').dataset.done == '1'")
    frame = "document.querySelectorAll('#photograph iframe')[{}]"
    browser.wait(frame.format(1) + ".contentDocument?.querySelector('.lit .word[aria-pressed=true]')")  # as it plays
    assert browser.run("document.querySelectorAll('#photograph iframe').length") == 2
    assert browser.run("document.querySelector('#photograph h3').textContent") == f"one: {load_text(served)}"
    assert "coffee.jpg" in browser.run(frame.format(0) + ".contentDocument.body.textContent")
    browser.screenshot(shots / "photograph.png")

    left, top = browser.run(
        "(() => { const c = document.querySelector('canvas'); c.scrollIntoView(); const b = c.getBoundingClientRect();"
        "return [b.left, b.top]; })()"
    )
    for kind, x, y in [("mousePressed", 140, 40), *(("mouseMoved", 140, y) for y in range(60, 250, 20)),
                       ("mouseReleased", 140, 240)]:  # fmt: skip
        browser.call("Input.dispatchMouseEvent", type=kind, x=left + x, y=top + y, button="left", buttons=1,
                     clickCount=1)  # fmt: skip
    inked = "document.querySelector('canvas').getContext('2d').getImageData(140, {}, 1, 1).data[0]"
    assert [browser.run(inked.format(y)) for y in (10, 150)] == [0, 255]
    browser.run("document.querySelector('.find').click()")
    browser.wait("document.querySelector('#digit .results').dataset.done == '1'")
    titles = browser.run("[...document.querySelectorAll('#digit h3')].map(head => head.textContent)")
    assert [title.split(":")[0] for title in titles] == ["ram", "ram again"] and ", p 0." in titles[0]
    browser.wait("document.querySelector('#digit iframe').contentDocument?.querySelector('img')?.complete")
    browser.screenshot(shots / "digit.png")
    assert Image.open(shots / "digit.png").size[0] >= 1000
    browser.run("document.querySelector('.clear').click()")
    assert browser.run(inked.format(150)) == 0
    for key, shift in (("ArrowDown", 8), ("ArrowLeft", 0)):  # the pen is where the mouse let it go, at 240
        browser.run(f"document.querySelector('canvas').dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}',"
                    f"shiftKey: {str(bool(shift)).lower()}}}))")  # fmt: skip
    assert [browser.run(inked.format(y)) for y in (238, 254)] == [0, 255]


def test_photographs_are_chosen_in_a_browser(served, browser) -> None:
    """By keyboard; the answer is that of the dropped file. A page of digits alone has none."""
    browser.call("Page.navigate", url=f"http://127.0.0.1:{served.server_port}/")
    browser.wait("document.body && 'ready' in document.body.dataset")
    choose(browser, "#photograph .second", "nothing")
    browser.run("document.querySelector('.examples button').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", windowsVirtualKeyCode=13, text="\r")
    browser.wait("document.querySelector('#photograph .results').dataset.done == '1'")
    assert browser.run("document.querySelector('#photograph h3').textContent") == f"one: {load_text(served)}"
    assert browser.run("document.querySelector('[aria-pressed=true] img').alt") == "coffee"
    assert browser.run("getComputedStyle(document.querySelector('.examples')).display") == "grid"


def test_a_caption_page_at_rest_shows_its_sharpest_map(browser, tmp_path) -> None:
    """And returns to it when nothing is pointed at, focused or played."""
    maps = torch.eye(16).view(16, 4, 4)[:3] + torch.tensor([1.0, 0.01, 0.1])[:, None, None]
    items = [PageItem("a", Image.new("RGB", (300, 200), "grey"), ["a", "dog", "runs"], maps)]
    items.append(items[0]._replace(alpha=torch.ones(3, 4, 4)))
    page = write_page(tmp_path / "page.html", items)
    browser.call("Page.navigate", url=page.as_uri())
    browser.wait("document.readyState == 'complete' && document.querySelector('.lit canvas')")
    marked = "[...document.querySelectorAll('[aria-pressed=true]')].map(word => word.id.slice(-1)).join()"

    def place(selector: str) -> dict[str, float]:
        edges = f"document.querySelector('{selector}').getBoundingClientRect()"
        return browser.run(f"(() => {{ const {{x, y}} = {edges}; return {{x: x + 9, y: y + 9}}; }})()")

    def point_at(selector: str) -> None:
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", **place(selector))

    def press(key: str) -> None:
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode={"Tab": 9}.get(key, 0))

    lit = "document.querySelector('canvas').getContext('2d').getImageData({}, 37, 1, 1).data[3] > 150"
    assert browser.run(marked) == "2" and browser.run("document.querySelectorAll('.lit').length") == 1
    assert browser.run(lit.format(168)) and not browser.run(lit.format(56))
    point_at("#image-1-word-1")
    assert browser.run(marked) == "1"
    browser.wait(lit.format(56))
    point_at("h1")
    assert browser.run(marked) == "2"
    for leave in (lambda: press("Tab"), lambda: press("Escape")):
        browser.run("document.querySelector('#image-1-word-3').focus()")
        assert browser.run(marked) == "3"
        leave()
        assert browser.run(marked) == "2"
    for tapped, expected in (("#image-1-word-3", "3"), ("h1", "2")):
        browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[place(tapped)])
        browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        browser.wait(f"{marked} == '{expected}'")
    told = "document.querySelector('.told')"
    browser.run("window.seen = ''; const slow = setInterval; window.setInterval = act => slow(act, 20);"
                f"new MutationObserver(() => seen += {marked}).observe({told}, {{childList: true}});"
                "document.querySelector('button').click()")  # fmt: skip
    browser.wait("document.querySelector('button').textContent == 'Play' && seen.length == 4")
    assert browser.run("seen") == "1232"


@pytest.mark.slow
def test_models_of_other_libraries_in_a_browser(served, browser, tmp_path) -> None:
    """A photograph is dropped; a ViT's map appears at once, beside the map of a convolutional network; the sliders and
    the text change it. A captioner is not asked for a text."""
    shots = Path(os.environ.get("VISION_ATTN_SCREENSHOTS", tmp_path))
    shots.mkdir(exist_ok=True)
    browser.call("Page.navigate", url=f"http://127.0.0.1:{served.server_port}/")
    browser.wait("document.body && 'ready' in document.body.dataset")
    asked = "getComputedStyle(document.querySelector('.asked')).display"
    assert browser.run(asked) == "none"
    choose(browser, "#photograph .first", "vit_b_32")
    choose(browser, "#photograph .second", "squeezenet1_1")
    assert browser.run(asked) == "flex"
    drop(browser)
    done = "document.querySelector('#photograph .results').dataset.done == '{}'"
    browser.wait(done.format(1))
    titles = "[...document.querySelectorAll('#photograph h3')].map(head => head.textContent)"
    answer = served.models[4][1].look(PHOTOGRAPH).text
    assert browser.run(titles)[0] == f"vit_b_32: {answer}" and browser.run(titles)[1].startswith("squeezenet1_1: ")
    page = "document.querySelector('#photograph iframe')?.contentDocument"
    browser.wait(f"{page}?.querySelector('.lit .word[aria-pressed=true]')")
    assert browser.run(f"{page}.querySelectorAll('.dials input').length") == 2
    assert (
        browser.run("document.querySelectorAll('#photograph iframe')[1].contentDocument.querySelector('.dials')")
        is None
    )
    shown = "[...document.querySelectorAll('#photograph iframe')].map(each => each.contentDocument.body.dataset.view)"
    assert browser.run(shown) == ["color"] * 2
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="v", windowsVirtualKeyCode=86)
    browser.wait(f"{shown}.join() == 'light,light'")  # one key for both models
    browser.run(f"{page}.querySelector('[value=cells]').click()")
    browser.wait(f"{shown}.join() == 'cells,cells'")
    assert browser.run(f"{page}.documentElement.clientWidth") == browser.run(
        "document.querySelector('#photograph iframe').clientWidth"  # no scroll bar
    )
    browser.run("scrollTo(0, 0)")
    browser.screenshot(shots / "look.png")
    browser.run(TURN.format(page=page, layer=3, head=12))
    told = f"[...{page}.querySelectorAll('.dials output')].map(output => output.textContent)"
    assert browser.run(told) == ["2 of 0 to 11", "11 of 0 to 11"]
    browser.screenshot(shots / "look_layer.png")
    choose(browser, ".asked .method", "attention rollout")
    browser.wait(done.format(2))
    assert "no layer of this model attends" in browser.run(titles)[1]
    choose(browser, ".asked input", "espresso; tench")
    browser.wait(done.format(3))
    assert browser.run(titles)[0].startswith("vit_b_32: espresso (")
    browser.wait(f"{page}?.querySelectorAll('.word').length == 2")
    browser.screenshot(shots / "look_texts.png")
    choose(browser, ".asked input", "")
    choose(browser, ".asked .method", "that fit the model")
    choose(browser, "#photograph .first", "swin_t")
    browser.wait("document.querySelector('#photograph h3').textContent.startsWith('swin_t: ')")
    browser.wait(f"{page}?.querySelector('.lit .dials')")
    for layer, head, expected in (
        (12, 24, ["11 of 0 to 11", "23 of 0 to 23"]), (1, 24, ["0 of 0 to 11", "2 of 0 to 2"]),
        (2, 1, ["1 of 0 to 11", "0 of 0 to 2"]),
    ):  # fmt: skip
        browser.run(TURN.format(page=page, layer=layer, head=head))
        assert browser.run(told) == expected
    browser.run("scrollTo(0, 0)")
    browser.screenshot(shots / "look_swin.png")
    browser.call("Emulation.setDeviceMetricsOverride", width=400, height=1000, deviceScaleFactor=1, mobile=False)
    frame = "document.querySelector('#photograph iframe')"
    inner = f"{page}.documentElement.scrollHeight"
    browser.wait(f"{inner} > 400 && Math.abs({frame}.clientHeight - {inner}) < 4")  # it follows the page in it
    browser.screenshot(shots / "look_narrow.png")
    assert browser.run(f"{page}.querySelector('figure').clientWidth + 30 <= {frame}.clientWidth")
    for inner in ("document", page):  # nothing is wider than the screen of a telephone
        assert browser.run(f"{inner}.documentElement.scrollWidth <= {inner}.documentElement.clientWidth"), inner


def test_a_drawn_digit_is_for_models_that_have_room_for_it(tmp_path) -> None:
    """Not for those of images of any size, whose canvas has no size."""
    source = Source()
    source.image_shape, source.num_classes = (1, 0, 0), 4
    task = Classification(source, model=partial(RAM, num_glimpses=2, first="centre")).eval()
    models = [("any", Model(task, {}, torch.device("cpu"))), ("ram", load(write_run("ram_mnist28", tmp_path / "ram")))]
    with make_server(models, port=0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        kinds = [model["kind"] for model in ask(running, "/models").json()]
        refused, answered = (ask(running, f"/digit?model={number}", picture()) for number in (0, 1))
        running.shutdown()
    assert kinds == ["classify", "digit"] and (refused.status, answered.status) == (400, 200)


def test_a_run_that_the_page_cannot_show_is_refused_at_start(tmp_path, capsys) -> None:
    """Instead of a page on which every request fails."""
    run = write_run("draw_mnist_small", tmp_path / "run", sizes=[])
    assert main(["serve", str(run), "--port", "0", "--device", "cpu"]) == 1
    printed = capsys.readouterr()
    assert f"{run} holds a generator of images, which neither captions nor classifies images" in printed.err
    assert f"vision-attn eval {run} --show 8 draws what it does" in printed.err and "ready" not in printed.out
    with pytest.raises(UserError, match="nothing to ask it"):
        make_server([("run", load(run, device="cpu"))], port=0)


def test_an_address_of_version_6_is_served(tmp_path) -> None:
    try:
        with make_server([("ram", load(write_run("ram_mnist28", tmp_path / "ram")))], host="::1", port=0) as running:
            assert running.socket.getsockname()[0] == "::1"
    except ValueError as error:
        pytest.skip(f"this machine has no such address: {error}")


def test_a_port_that_is_none_is_refused(capsys) -> None:
    assert main(["serve", "--port", "80000"]) == 1
    assert "--port is 80000: give a number from 1 to 65535" in capsys.readouterr().err

"""The lesson: what its pages compute equals what our models compute with the same weights."""

import base64
import importlib.util
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.browser import NEEDED, PROGRAM, Browser
from vision_attn.attention.filterbank import Filterbank
from vision_attn.attention.monotonic import Monotonic
from vision_attn.attention.scores import Additive
from vision_attn.contracts import Window
from vision_attn.encoders.strips import Columns
from vision_attn.fast.versions import without_loops
from vision_attn.models.encoder_decoder import RNNsearch
from vision_attn.models.memory_network import MemoryNetwork
from vision_attn.results.opening import open_model

LESSON = Path(__file__).parents[2] / "docs" / "lesson"
PAGE = (LESSON / "index.html").read_text(encoding="utf-8")


def imported(name: str) -> ModuleType:
    """A file of docs/lesson, which is no package."""
    spec = importlib.util.spec_from_file_location(f"lesson_{name}", LESSON / f"{name}.py")
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make, data = imported("make"), imported("data")
NUMBERS = make.numbers(PAGE)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    """The lesson, opened from its file."""
    if PROGRAM is None:
        pytest.skip(NEEDED)
    running = Browser(tmp_path_factory.mktemp("profile"))
    running.call("Page.navigate", url=(LESSON / "index.html").as_uri())
    running.wait("document.querySelector('nav [aria-current]')")
    yield running
    running.close()


@cache
def kept(name: str) -> Any:
    return json.loads(NUMBERS[name])


def weights(of: dict[str, Any]) -> dict[str, Tensor]:
    return {name: data.unpacked(one) for name, one in of.items()}


def digit(label: int, turn: int) -> np.ndarray:
    pixels = np.frombuffer(base64.b64decode(kept("digits")["pixels"]), np.uint8)
    return pixels.reshape(10, kept("digits")["each"], 28, 28)[label, turn] / 255


def agrees(found: Any, expected: Any) -> None:
    expected = np.array(expected.detach().tolist()) if isinstance(expected, Tensor) else expected
    np.testing.assert_allclose(np.array(found, dtype=float), np.array(expected, dtype=float), rtol=1e-4, atol=1e-4)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def counter(ask: Callable) -> None:
    model = data.Counter()
    model.load_state_dict(weights(kept("counter")))
    opens = [1] * 50 + [0, 1, 0, 0] + [0] * 60
    said, states = model(torch.tensor([opens]))
    agrees(ask(opens), torch.cat([said[0, :, None], states[0]], dim=1))
    assert said[0, 49].item() == pytest.approx(50, abs=0.5)  # beyond the 20 brackets of training


@torch.enable_grad()
def gradients(ask: Callable) -> None:
    found = ask({"w": -1.3, "f": 0.9, "x": 0.4})
    states = [torch.tensor(0.1, dtype=torch.float64, requires_grad=True)]
    for step in range(40):
        states.append((-1.3 * states[-1] + 0.4 * math.sin(1.7 * step + 0.5)).tanh())
    slopes = torch.stack(torch.autograd.grad(states[-1], states)).flip(0)
    np.testing.assert_allclose(found["squashed"], slopes.numpy(), rtol=1e-6)
    agrees(found["last"], states[-1])
    np.testing.assert_allclose([found["plain"][-1], found["cell"][-1]], [1.3**40, 0.9**40], rtol=1e-6)


def kernel(ask: Callable) -> None:
    points, bandwidth, query = [[0.5, 1.0], [2.0, -1.0], [2.5, 3.0], [7.0, 2.0]], 0.8, 2.2
    found = ask({"points": points, "bandwidth": bandwidth, "query": query})
    x, y = np.array(points).T

    def mean(query: float, x: np.ndarray, y: np.ndarray, bandwidth: float = bandwidth) -> float:
        weight = np.exp(-((query - x) ** 2) / (2 * bandwidth**2))
        return (weight * y).sum() / weight.sum()

    def left_out(bandwidth: float) -> float:
        guesses = [mean(x[i], np.delete(x, i), np.delete(y, i), bandwidth) for i in range(4)]
        return ((np.array(guesses) - y) ** 2).mean()

    agrees(found["alpha"], softmax(-((query - x) ** 2) / (2 * bandwidth**2)))
    agrees([found["mean"], found["error"]], [mean(query, x, y), left_out(bandwidth)])
    step = 1e-6  # the slope by the logarithm of the bandwidth
    slope = (left_out(bandwidth * math.exp(step)) - left_out(bandwidth * math.exp(-step))) / (2 * step)
    agrees(found["slope"], slope)


def soft(ask: Callable) -> None:
    model = data.Asked()
    model.load_state_dict(weights(kept("soft")))
    board = [[number % 10, number % 4] for number in range(3, 12)]
    pictures = torch.tensor(np.stack([digit(*one) for one in board])).float()
    alpha = model(pictures[None], torch.tensor([8]))[0]
    found = ask({"board": board, "question": 8, "temperature": 1})
    agrees(found["alpha"], alpha)
    agrees(found["mean"], alpha @ pictures.flatten(1))
    assert alpha[5] > 0.9  # the eight
    warm = ask({"board": board, "question": 8, "temperature": 2.5})
    agrees(warm["alpha"], softmax(np.array(found["scores"]) / 2.5))


@torch.enable_grad()
def hard(ask: Callable) -> None:
    scores, rewards, baseline = [0.3, -1.0, 0.8], [2.0, 5.0, -1.0], 1.5
    found = ask({"scores": scores, "rewards": rewards, "baseline": baseline})
    e = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    alpha = e.softmax(dim=0)
    exact = torch.autograd.grad(alpha @ torch.tensor(rewards, dtype=torch.float64), e)[0].numpy()
    agrees(found["gradient"], exact)

    def variance(b: float) -> float:
        """By going through all samples."""
        estimates = [(rewards[s] - b) * (np.eye(3)[s] - alpha.detach().numpy()) for s in range(3)]
        return sum(p * ((one - exact) ** 2).sum() for p, one in zip(alpha.tolist(), estimates, strict=True))

    agrees([found["variance"], found["without"]], [variance(baseline), variance(0)])
    assert variance(found["best"]) < min(variance(found["best"] - 0.1), variance(found["best"] + 0.1))


def filterbank(ask: Callable) -> None:
    size, stride, sigma, gamma, centre = 5, 3.1, 1.2, 1.5, [9.0, 26.5]  # some filters lie outside of the image
    settings = {"size": size, "stride": stride, "sigma": sigma, "gamma": gamma}
    found = ask({"label": 4, "turn": 1, "centre": centre, **settings})
    bank = Filterbank(1, (1, 28, 28), size=size)
    window = Window(torch.tensor([[centre]]), *(torch.tensor([[value]]) for value in (stride, sigma, gamma)))
    across, down = bank.filters(window)
    agrees(found["across"], across[0, 0])
    agrees(found["down"], down[0, 0])
    read = bank.read(torch.tensor(digit(4, 1)).float()[None, None], window)
    agrees(found["read"], read.flatten())
    agrees(found["written"], bank.write(read, window).flatten())


def ram(ask: Callable) -> None:
    model = open_model("weights/ram_cluttered60", device="cpu").task.model
    rounded = weights(kept("ram"))
    for name, value in model.state_dict().items():
        if name in rounded:
            assert (rounded[name] - value).abs().max() <= value.abs().max() / 80, name  # 89 levels
    model.load_state_dict(rounded, strict=False)
    image = np.zeros((60, 60))
    image[3:31, 25:53] = digit(5, 2)
    image[40:48, 2:10] = digit(8, 0)[10:18, 10:18]
    images = torch.tensor(image).float()[None, None]
    expected = model(images, 1, "mean")
    patches = model.view(images, expected).patches
    found = ask(image.flatten().tolist())
    agrees([one["location"] for one in found], expected.locations[0, 0])
    agrees([one["probabilities"] for one in found], expected.log_prob[0, 0].exp())
    agrees([one["patches"] for one in found], patches[0].flatten(1))
    assert found[-1]["probabilities"][5] > 0.9


def line(ask: Callable) -> None:
    encoder = Columns(region_size=32, width=8).eval()
    options = {"encoder_size": 24, "hidden_size": 64, "word_size": 16, "score": partial(Additive, attention_size=32)}
    model = RNNsearch(13, 32, **options, attention=partial(Monotonic, advance=1)).eval()
    encoder.load_state_dict(weights(kept("line")["encoder"]))
    model.load_state_dict(weights(kept("line")["model"]))
    for text, gap, mode in (("0123456789", 3, "expectation"), ("88", 4, "online")):
        found = ask({"text": text, "gap": gap, "mode": mode})
        pixels = torch.tensor(found["pixels"]).view(1, 1, 32, found["width"]).expand(-1, 3, -1, -1)
        memory, state = model.start(encoder((pixels * 255).round().byte()), 1)
        word = torch.zeros(1, 1, dtype=torch.long)
        with model.in_mode(mode):
            for said in found["said"]:
                logits, state, seen = model.step(word, state, memory)
                word = logits.argmax(dim=-1)
                assert word.item() == said["word"]
                agrees(said["p"], logits.softmax(dim=-1).max())
                agrees(said["alpha"], seen.alpha[0, 0])
        assert "".join(str(said["word"] - 3) for said in found["said"][:-1]) == text


def hops(ask: Callable) -> None:
    words, model = kept("hops")["words"], MemoryNetwork(len(kept("hops")["words"]), len(kept("hops")["words"])).eval()
    found = model.load_state_dict(weights(kept("hops")["weights"]), strict=False)
    assert not [name for name in found.missing_keys if name.startswith("facts")]
    facts = [
        "Mary went to the kitchen.",
        "John moved to the garden.",
        "Mary took the milk there.",
        "John got the apple.",
    ]
    ids = [[words.index(word) for word in fact.lower().strip(".").split()] for fact in reversed(facts)]
    asked = torch.tensor([[words.index(word) for word in ["where", "is", "the", "milk"]]])
    expected = model(torch.tensor([[*fact, *[0] * (6 - len(fact))] for fact in ids])[None], asked)
    answer = ask({"facts": facts, "question": "Where is the milk?"})
    agrees(answer["answers"], expected.log_prob[0].exp())
    agrees(answer["maps"], expected.alpha[0].flip(-1))  # the page begins with the oldest sentence
    assert words[int(np.argmax(answer["answers"]))] == "kitchen"


def caption(ask: Callable) -> None:
    for number, photograph in enumerate(kept("caption")["photographs"]):
        found = ask({"photograph": number, "word": 1})
        assert found["words"] == [one["word"] for one in photograph["words"]]
        rows, columns = photograph["grid"]
        alpha = np.frombuffer(base64.b64decode(photograph["words"][1]["map"]), np.uint8).reshape(rows, columns)

        def spread(regions: int, low: float, high: float) -> np.ndarray:
            """Shares of regions, which lie from `low` to `high` in [-1, 1], at 96 places."""
            at = ((np.arange(96) + 0.5) / 48 - 1 - low) / (high - low) * regions - 0.5
            weight = np.exp(-((at[:, None] - np.arange(regions)) ** 2) / 0.72)
            return weight / weight.sum(axis=1, keepdims=True)

        left, top, right, bottom = photograph["extent"]
        light = spread(rows, top, bottom) @ alpha @ spread(columns, left, right).T
        agrees(found["mass"], (light / light.max()).sum())
        assert found["brightest"] == [*divmod(int(light.argmax()), 96)][::-1]


def elsewhere(ask: Callable) -> None:
    """The included captioner with rounded weights, greedy; each object's box at the first colour, which then is its."""
    model = open_model("weights/drawn_scenes", device="cpu")
    task, scenes = model.task, kept("scenes")["scenes"][:3]
    task.encoder.load_state_dict(weights(kept("scenes")["encoder"]))
    task.model.load_state_dict(weights(kept("scenes")["model"]), strict=False)
    followed = 0
    for number, scene in enumerate(scenes):
        pixels = np.frombuffer(base64.b64decode(scene["pixels"]), np.uint8).reshape(3, 40, 40).transpose(1, 2, 0)
        for strength, each in [(0, scene["objects"][0]), *((1, each) for each in scene["objects"])]:
            place = None if strength == 0 else {2: tuple(each["box"])}
            expected = model.caption(pixels, beams=1, attend=place, strength=strength)
            found = ask({"scene": number, "at": 2, "box": each["box"], "strength": strength})
            assert [one["word"] for one in found] == list(expected.words)
            for word, alpha, log_prob in zip(found, expected.alpha, expected.log_prob, strict=True):
                agrees(word["alpha"], alpha.flatten())
                agrees(max(word["p"]), math.exp(log_prob))
            followed += strength and found[1]["word"] in each["words"]
    assert followed >= sum(len(scene["objects"]) for scene in scenes) - 1


CHECKS = [counter, gradients, kernel, soft, hard, filterbank, ram, line, hops, caption, elsewhere]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_page_computes_what_our_code_computes(browser, check) -> None:
    with without_loops(), torch.no_grad():  # compiling them takes longer than all of these tests
        check(lambda given: browser.run(f"lesson.check({check.__name__!r}, {json.dumps(given)})"))


PLAY = """
(() => {
  const page = document.querySelector("section:not([hidden])"), input = new Event("input");
  const handle = page.querySelector("[data-handle]");
  for (const one of page.querySelectorAll("input[type=range]"))
    for (const value of [one.min, one.max, one.defaultValue]) { one.value = value; one.dispatchEvent(input); }
  handle?.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp", bubbles: true }));
})()
"""
"""Moves the sliders of the page that is shown to their ends, and its first handle."""


OVERLAPPING = """
[...document.querySelectorAll("section:not([hidden]) svg:not(.scene)")].flatMap(drawing => {
  const texts = [...drawing.querySelectorAll("text")].map(one => [one.textContent, one.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
  return texts.flatMap(([text, a], number) => texts.slice(number+1).flatMap(([o, b]) => meet(a, b) ? [text + o] : []));
})
"""
"""The labels of charts that lie on each other. In a scene, glimpses are numbered where they are."""


def test_every_page_draws_and_fits_any_screen(browser) -> None:
    """Its sliders move, its handles follow arrow keys, nothing is wider than a telephone, and no label of a chart lies
    on another; no error on the way."""
    assert browser.run("Object.keys(lesson.pages)") == [check.__name__ for check in CHECKS]
    for width in (390, 1280):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        for number in range(1, len(CHECKS) + 1):
            browser.run(f"location.hash = {number}")
            browser.wait(f"document.querySelector('nav [aria-current]').textContent == '{number}'")
            wide = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            scroll, client = browser.run(wide)
            assert scroll <= client, f"page {number} at {width} pixels"
            assert browser.run(OVERLAPPING) == [], f"page {number} at {width} pixels"
            browser.run(PLAY)
    assert browser.run("lesson.errors") == []


def test_a_word_follows_the_place_that_is_clicked(browser) -> None:
    """By mouse; and by keyboard alone."""
    browser.run("location.hash = 11")
    browser.wait("document.querySelector('#elsewhere:not([hidden]) .now')?.textContent")
    scene, said = kept("scenes")["scenes"][0], "document.querySelector('#elsewhere .now').textContent.split(' ')[1]"
    for one in scene["objects"]:
        x, y = ((one["box"][axis] + one["box"][axis + 2]) / 2 for axis in (0, 1))
        edges = "(({x, y, width, height}) => [x, y, width, height])(document.querySelector('#elsewhere .scene')"
        browser.run("document.querySelector('#elsewhere .scene').scrollIntoView({block: 'center'})")
        left, top, width, height = browser.run(f"{edges}.getBoundingClientRect())")
        place = {"x": left + (x + 1) / 2 * width, "y": top + (y + 1) / 2 * height, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            browser.call("Input.dispatchMouseEvent", type=kind, **place)
        assert browser.run(said) in one["words"]
    mark = "document.querySelector('#elsewhere .now mark').textContent"
    assert browser.run(mark) == browser.run(said)  # the last object is not the one that it names by itself
    press = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{key: '{}', bubbles: true}}))"
    browser.run("document.querySelector('#elsewhere [data-handle]').focus()")
    first = scene["objects"][0]["box"]
    across, down = (round(10 * ((first[axis] + first[axis + 2]) / 2 - at)) for axis, at in enumerate((x, y)))
    aside, along = "ArrowRight" if across > 0 else "ArrowLeft", "ArrowDown" if down > 0 else "ArrowUp"
    for key in [aside] * abs(across) + [along] * abs(down):
        browser.run(press.format(key))
    assert browser.run(said) in scene["objects"][0]["words"]
    browser.run("document.querySelector('#elsewhere .before [tabindex=\"0\"]').focus()")
    browser.run(press.format("ArrowRight"))
    assert browser.run("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert browser.run("lesson.errors") == []


def test_arrow_keys_turn_pages(browser) -> None:
    browser.run("location.hash = 1")
    browser.wait("document.querySelector('nav [aria-current]').textContent == '1'")
    press = "document.querySelector('{}').dispatchEvent(new KeyboardEvent('keydown', {{key: '{}', bubbles: true}}))"
    browser.run(press.format("body", "ArrowRight"))
    browser.wait("document.querySelector('#gradients:not([hidden])')")
    browser.run(press.format("#gradients input", "ArrowRight"))  # which moves the slider
    browser.run(press.format("body", "ArrowLeft"))
    browser.wait("document.querySelector('#counter:not([hidden])')")


def test_the_page_is_written_from_its_parts() -> None:
    assert make.joined(NUMBERS) == PAGE, "index.html is out of date: run `python docs/lesson/make.py`"


def test_no_text_of_its_data_ends_the_script() -> None:
    """`DATA` reads it back whole."""
    text = "</script><img src=x onerror=alert(1)><!--\u2028"
    page = f'<script type="application/json" id="data-x">{make.encoded([text])}</script>'
    assert json.loads(make.numbers(page)["x"]) == [text] and "<" not in make.encoded(text)


def test_nothing_is_loaded_from_elsewhere() -> None:
    """One file, without a server and a network. Links of its text may lead to the web."""
    text = make.DATA.sub("", PAGE)
    assert re.findall(r'(?:src|href)="(?!data:|#|https://creativecommons\.org)[^"]*"', text) == []
    assert not re.search(r"\b(?:fetch|import|XMLHttpRequest|WebSocket)\b\s*\(|@import|url\(", text)
    for code in re.findall(r"<code>((?:vision_attn|docs|weights)/[\w./]+)</code>", text):
        assert (LESSON.parents[1] / code).exists(), f"the lesson names {code}"
    assert len(PAGE.encode()) < 3_000_000


def test_levels_of_weights() -> None:
    weight = torch.tensor([[1.0, -0.5, 0.013], [0.0, 0.0, 0.0]])
    agrees(data.unpacked(data.packed(weight)), torch.tensor([[1.0, -0.5, 1 / 44], [0, 0, 0]]))
    assert set(data.LETTERS).isdisjoint('"<\\') and len(set(data.LETTERS)) == 2 * data.HALF + 1

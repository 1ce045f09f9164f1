"""The page asks questions: about a story, and about an image."""

import io
import threading
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from PIL import Image

from tests.web.test_play import browser, model, press, shot  # noqa: F401
from tests.web.test_serve import ask

pytest.importorskip("uvicorn", reason="the page needs the extra [web]: starlette, uvicorn")
from vision_attn.web import make_server, server  # noqa: E402

STORY = "Mary went to the kitchen. John took the milk. Mary went to the garden."


@pytest.fixture(scope="module")
def served() -> Iterator[server.Server]:
    with make_server([(name, model(name)) for name in ("stories", "scene_questions")], port=0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def test_questions_are_answered_about_stories_and_scenes(served):
    asked = {"model": 0, "question": "Where is Mary?"}
    told = ask(served, f"/answer?{urlencode(asked)}", STORY.encode()).json()
    own = model("stories").answer(STORY, "Where is Mary?")
    assert told["text"] == own.text == "garden" and told["question"] == "Where is Mary?" and "hop 1" in told["page"]
    with io.BytesIO() as file:
        Image.new("RGB", (40, 40), "white").save(file, "PNG")
        picture = file.getvalue()
    question = "what is the colour of the circle ?"
    told = ask(served, f"/answer?{urlencode({'model': 1, 'question': question})}", picture).json()
    assert told["text"] == model("scene_questions").answer(picture, question).text


@pytest.mark.parametrize("number, question, body, said", [
    (0, None, STORY.encode(), "give one question"),
    (0, "Where?", b"\xff\xfe", "a story is sent as text in UTF-8"),
    (0, "Where?", b" ", "a story is sent as text in UTF-8"),
    (0, "Where?", b"a. " * 40_000, "at most 100000 bytes"),
    (0, "Where is Mary?", b"/etc/passwd", "knows no word of this story"),
    (1, "Where?", STORY.encode(), "not a readable image"),
])  # fmt: skip
def test_questions_that_cannot_be_answered(served, number, question, body, said):
    options = {"model": number} | ({} if question is None else {"question": question})
    answer = ask(served, f"/answer?{urlencode(options)}", body)
    assert answer.status == 400 and said in answer.json()["error"]


def test_a_question_is_asked_by_keyboard(browser, tmp_path):  # noqa: F811
    browser.run("document.querySelector('#question input[type=text]').focus()")
    press(browser, "Enter")
    browser.wait("document.querySelector('#question .results').dataset.done === '1'")
    assert browser.run("document.querySelector('#question h3').textContent") == "stories: garden"
    assert browser.run("document.querySelector('#question .image').offsetParent === null")
    shot(browser, "question", "#question", tmp_path)

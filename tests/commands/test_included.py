"""Every included model answers by command, in Python and on the page, in an empty folder without any data."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.web.test_serve import ask
from vision_attn.api import load
from vision_attn.commands import main
from vision_attn.tasks.answer import Answering
from vision_attn.tasks.caption import Captioning
from vision_attn.tasks.classify import Classification
from vision_attn.tasks.generate import Generation
from vision_attn.web import make_server

WEIGHTS = sorted(path.parent.name for path in Path(__file__).parents[2].glob("weights/*/model.safetensors"))


@pytest.fixture
def image(tmp_path, monkeypatch) -> Path:
    """A photograph, and a film of it, in an empty folder, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VISION_ATTN_DATA", raising=False)
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).resize((160, 120))
    picture.save("a.png")
    picture.save("a.gif", save_all=True, append_images=[picture.rotate(90 * turn) for turn in (1, 2)])
    return Path("a.png")


@pytest.mark.parametrize("name", WEIGHTS)
def test_an_included_model_answers_without_its_data(name, image, capsys):
    model = load(f"weights/{name}", device="cpu")
    if isinstance(model.task, Generation):
        assert model.draw(2, steps=2).images.isfinite().all()
        return
    if isinstance(model.task, Answering):
        question = "where is the milk ?" if name == "stories" else "what colour is the circle ?"
        facts = "the milk is in the kitchen ." if name == "stories" else str(image)
        assert main(["answer", f"weights/{name}", facts, question, "--device=cpu", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["answer"] == model.answer(facts, question).text
        return
    verb = {Captioning: "caption", Classification: "classify"}[type(model.task)]
    film = model.task.unit == "film"
    file = image.with_suffix(".gif") if film else image
    assert main([verb, f"weights/{name}", str(file), "--device=cpu", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    with make_server([(name, model)], port=0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        served = ask(running, f"/{verb}", file.read_bytes()).json()
        running.shutdown()
    if verb == "caption":
        assert told["captions"][0]["caption"] == model.caption(file).text == served["text"]
        assert film or model.look(file).text == served["text"]
        return
    likely = told["probabilities"]
    for way in ("a.png", Image.open("a.png"), np.asarray(Image.open("a.png"))):
        answer = model.classify(way)
        assert answer.name == told["answer"]
        assert answer.probabilities[-1].tolist() == pytest.approx(list(likely.values()), abs=1e-5)
    assert served["text"].startswith(told["answer"]) and served["probabilities"] == pytest.approx(likely, abs=1e-5)


def test_the_included_models_are_known():
    assert {"photographs", "draw_mnist", "ram_cluttered60", "ram_photographs"} <= set(WEIGHTS)

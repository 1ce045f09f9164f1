"""Uploads to the page's server are decoded in other processes, before their turn."""

import http.client
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageFile

from tests.untrained import write_run
from vision_attn.api import load
from vision_attn.data.images.open import Encoded
from vision_attn.data.isolated.decoders import Decoders, Upload
from vision_attn.explain.libraries.opening import open_model
from vision_attn.explain.look import look
from vision_attn.results.explainer import Explainer
from vision_attn.system.files import ours

pytest.importorskip("uvicorn", reason="the page needs the extra [web]: starlette, uvicorn")
from vision_attn.web import make_server, server  # noqa: E402

PHOTOGRAPH = Path(__file__).parents[2] / "docs" / "photographs" / "coffee.jpg"
FOREVER, FAR = 3600.0, 120


def picture(kind: str = "PNG", size: tuple[int, int] = (28, 28), **options) -> bytes:
    file = BytesIO()
    Image.linear_gradient("L").resize(size).save(file, kind, **options)
    return file.getvalue()


def animation() -> bytes:
    frames = [Image.new("RGB", (64, 48), (12 * number, 40, 90)) for number in range(20)]
    return picture_of(frames)


def picture_of(frames: list[Image.Image]) -> bytes:
    file = BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=100)
    return file.getvalue()


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[server.Server]:
    """A model for every way in which an upload is read."""
    folder = tmp_path_factory.mktemp("served")
    torch.manual_seed(0)
    network = open_model("squeezenet1_1", weights="none")
    models = [
        ("captioner", load(write_run("sat_soft_scenes", folder / "scenes"), device="cpu")),
        ("digits", load(write_run("ram_mnist28", folder / "ram"), device="cpu")),
        ("films", load(ours() / "weights" / "drawn_films", device="cpu")),
        ("lines", load(write_run("strings_read_ctc", folder / "lines", sizes=["--run.device=cpu"]), device="cpu")),
        ("photographs", load(ours() / "weights" / "ram_photographs", device="cpu")),
        ("network", Explainer("squeezenet1_1", network.kind, partial(look, network), torch.device("cpu"))),
    ]
    with make_server(models, port=0) as running:
        running._decoders.seconds = FOREVER
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def ask(served: server.Server, path: str, body: bytes) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", served.server_port, timeout=FAR)
    connection.request("POST", path, body)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


ASKED = {
    "/caption?model=0": PHOTOGRAPH.read_bytes(), "/look?model=0": PHOTOGRAPH.read_bytes(),
    "/classify?model=1": picture(), "/digit?model=1&clutter=2": picture(), "/caption?model=2": animation(),
    "/caption?model=3": picture(size=(80, 28)), "/classify?model=4": PHOTOGRAPH.read_bytes(),
    "/look?model=5": PHOTOGRAPH.read_bytes(),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", ASKED)
def test_no_upload_is_decoded_in_the_server_or_while_a_model_answers(path: str, served, monkeypatch) -> None:
    """And what is seen is what Python reads of the same file."""
    number, verb = int(path.partition("model=")[2][:1]), path[1:].partition("?")[0]
    model, file = served.models[number][1], Encoded("this image", ASKED[path])
    called = model.caption if verb == "caption" and number != 3 else None
    expected = called(file).text if called else model.transcribe(file).text if verb == "caption" else None
    decoding, opened = [], Upload.opened

    def noted(self, what, *arguments):
        before = len(self._known)
        found = opened(self, what, *arguments)
        decoding.extend([threading.current_thread()] * (len(self._known) - before))
        return found

    def never(*_, **__) -> None:
        raise AssertionError("this is decoded in the process of the server")

    monkeypatch.setattr(Upload, "opened", noted)  # no answer shows in which thread a file was decoded
    monkeypatch.setattr(ImageFile.ImageFile, "load", never)
    monkeypatch.setattr("av.open", never)
    status, answer = ask(served, path, ASKED[path])
    assert status == 200 and answer["page"].startswith("<!doctype html>"), answer
    assert expected is None or answer["text"] == expected
    assert decoding and {*decoding} <= {*served._decoders._threads._threads}


def test_times_of_a_film_are_in_its_answer(served) -> None:
    status, answer = ask(served, "/caption?model=2", animation())
    assert status == 200 and answer["times"] == pytest.approx([0.05 + 1.9 / 8 * n for n in range(9)], abs=0.001)
    assert re.search(r'<div class="ends"><span>0\.\d s</span><span>[12]\.\d s</span></div>', answer["page"])
    assert re.search(r"looks at frame \d of 9 \(\d\.\d s\)", answer["page"])
    status, answer = ask(served, "/caption?model=0", PHOTOGRAPH.read_bytes())
    assert status == 200 and "times" not in answer


def test_others_are_answered_while_an_upload_takes_long(served) -> None:
    """Its process is stopped here, and does nothing until it is told to go on."""
    assert ask(served, "/caption", PHOTOGRAPH.read_bytes())[0] == 200
    (process,) = served._decoders._all
    os.kill(process._popen.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as client:
        slow = client.submit(ask, served, "/caption", PHOTOGRAPH.read_bytes())
        while served._decoders._idle:
            pass
        for path, body in ASKED.items():
            assert ask(served, path, body)[0] == 200
        assert not slow.done()
        os.kill(process._popen.pid, signal.SIGCONT)
        assert slow.result(FAR)[0] == 200


def test_an_upload_that_takes_too_long_is_refused(served, monkeypatch) -> None:
    assert ask(served, "/caption", PHOTOGRAPH.read_bytes())[0] == 200
    for process in served._decoders._all:
        os.kill(process._popen.pid, signal.SIGSTOP)
    served._decoders.seconds = 0.2
    try:
        status, answer = ask(served, "/caption?name=slow.ppm", b"P6\n#" + b"x" * 1000)
    finally:
        served._decoders.seconds = FOREVER
    assert status == 413 and answer["error"].startswith("slow.ppm: decoding it takes more than")
    assert ask(served, "/caption", PHOTOGRAPH.read_bytes())[0] == 200


def test_lists_of_films_and_broadcasts_are_refused(served, tmp_path, monkeypatch) -> None:
    """They name a film, or all pictures, of the folder in which the server runs, or open sockets."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "film.gif").write_bytes(animation())
    for content in (
        b"ffconcat version 1.0\nfile film.gif\n",
        b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfilm.gif\n#EXT-X-ENDLIST\n",
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 0.0.0.0\nt=0 0\nm=video 5004 RTP/AVP 32\n",
        picture_of([Image.new("L", (1, 1))]).replace(b"\1\0\1\0", b"\xff\xff\xff\xff"),
    ):
        status, answer = ask(served, "/caption?model=2", content)
        assert status == 400 and "this image: not a readable film (" in answer["error"] and "\n" not in answer["error"]


def test_a_server_that_ends_leaves_no_process(tmp_path) -> None:
    model = load(write_run("sat_soft_scenes", tmp_path / "scenes"), device="cpu")
    with make_server([("one", model)], port=0) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        assert ask(running, "/caption", PHOTOGRAPH.read_bytes())[0] == 200
        (process,) = running._decoders._all
        running.shutdown()
        thread.join(FAR)
    assert not running._decoders._all and process.status is not None
    assert isinstance(running._decoders, Decoders)

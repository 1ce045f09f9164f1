"""A service that answers images from memory: the example of docs/service.md, and images as bytes and as open files."""

import asyncio
import io
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vision_attn
from tests.untrained import write_run
from vision_attn.system.errors import UserError

ROOT = Path(__file__).parents[2]


def encoded(seed: int = 0, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (44, 60, 3), dtype=np.uint8)).save(file, kind)
    return file.getvalue()


def at_its_end(content: bytes) -> io.BytesIO:
    """As `picture.save(file, "PNG")` leaves it."""
    file = io.BytesIO()
    file.write(content)
    return file


def spooled(content: bytes) -> Any:
    """As web frameworks keep uploads."""
    file = tempfile.SpooledTemporaryFile()  # noqa: SIM115
    file.write(content)
    return file


class Stream(io.RawIOBase):
    """Bytes that arrive once, three at a time."""

    def __init__(self, content: bytes) -> None:
        self.content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        some = self.content.read(min(3, len(buffer)))
        buffer[: len(some)] = some
        return len(some)


FORMS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes, "bytearray": bytearray, "memoryview": memoryview, "BytesIO": io.BytesIO, "at its end": at_its_end,
    "spooled": spooled, "a stream": Stream, "a buffered stream": lambda content: io.BufferedReader(Stream(content)),
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run("sat_soft_scenes", tmp_path_factory.mktemp("service") / "run")


@pytest.fixture(scope="module")
def model(run: Path) -> Any:
    return vision_attn.load(run, device="cpu")


@pytest.fixture(scope="module")
def glimpses(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return vision_attn.load(write_run("ram_mnist28", tmp_path_factory.mktemp("glimpses") / "run"), device="cpu")


@pytest.mark.parametrize("form", FORMS)
def test_bytes_and_a_file_that_is_open_are_one_image(form: str, model: Any, glimpses: Any, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(encoded())
    other, make = encoded(1), FORMS[form]
    expected = model.caption(tmp_path / "photo.png").record(maps=True)
    assert expected != model.caption(other).record(maps=True)
    one = model.caption(make(encoded()))
    assert one.record(maps=True) == expected and one.file == "image 1"
    several = model.caption([make(other), make(encoded())])
    assert [each.file for each in several] == ["image 1", "image 2"]
    torch.testing.assert_close(several[1].alpha, one.alpha)  # a batch is rounded differently
    assert several[1].log_prob == pytest.approx(one.log_prob) != several[0].log_prob
    assert isinstance(one.log_prob, list) and one.probabilities.shape == (len(one.words),) == one.alpha.shape[:1]
    torch.testing.assert_close(one.probabilities.log(), torch.tensor(one.log_prob), rtol=1e-4, atol=1e-5)
    (last,) = model.caption(iter([make(encoded())]))
    assert last.record(maps=True) == expected
    assert model.look(make(encoded())).words == one.words
    known = glimpses.classify(tmp_path / "photo.png").record()
    assert glimpses.classify(make(encoded())).record() == known


def test_measure_takes_bytes(model: Any) -> None:
    settings = {"methods": "attention", "steps": 2, "best": 0, "sanity": 0}
    for given in (encoded(), io.BytesIO(encoded()), [io.BytesIO(encoded())]):
        assert model.measure(given, **settings).numbers["images"] == 1


def test_an_open_file_keeps_its_name_and_stays_open(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(encoded())
    with open(path, "rb") as file:
        assert model.caption(file).file == str(path)
        assert model.caption([file, file])[1].file == str(path) and not file.closed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", r"image 1: not a readable image \(the file is empty\)"),
        (b"GIF89a no picture", "image 1: not a readable image"),
        (encoded()[:200], "image 1: not a readable image"),
        (io.BytesIO(), r"image 1: not a readable image \(the file is empty\)"),
        (io.StringIO("text"), r"image 1: its read\(\) returns a str, not bytes: open it with 'rb'"),
    ],
)
def test_what_is_no_image_is_told_in_a_line(given: Any, said: str, model: Any) -> None:
    for ask in (model.caption, model.look, model.measure):
        with pytest.raises(UserError, match=f"{said}[^\n]*$"):
            ask(given)
    unreadable: list[str] = []
    assert len(model.caption([encoded(), given], unreadable=unreadable)) == 1
    assert len(unreadable) == 1 and re.match(said.replace("image 1", "image 2"), unreadable[0])


def test_a_closed_file_and_one_to_be_awaited_are_refused(model: Any) -> None:
    class Upload:
        async def read(self, size: int = -1) -> bytes:
            return encoded()

    with pytest.raises(UserError, match=r"image 1: its read\(\) is to be awaited: give what it returns"):
        model.caption(Upload())
    (closed := io.BytesIO(encoded())).close()
    with pytest.raises(UserError, match="image 1: it cannot be read"):
        model.caption(closed)


@pytest.mark.parametrize(("number", "library"), [(0, "fastapi"), (1, "starlette")])
def test_the_services_of_the_document_answer_several_at_once(number: int, library: str, run: Path) -> None:
    """The first takes an upload of a form, the second the body of a request."""
    pytest.importorskip(library, reason=f"needs {library}: pip install 'vision-attn[dev]'")
    if library == "fastapi":
        pytest.importorskip("python_multipart", reason="needs python-multipart: pip install 'vision-attn[dev]'")
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "service.md").read_text(), re.DOTALL)
    assert len(examples) == 2
    names: dict[str, Any] = {"__name__": "service"}
    exec(examples[number].replace('"weights/photographs"', repr(str(run))), names)
    headers = [(b"content-type", b"multipart/form-data; boundary=end")] if library == "fastapi" else []

    async def answer(content: bytes, path: str = "/caption", method: str = "POST") -> tuple[int, dict[str, str]]:
        if library == "fastapi":
            head = b'--end\r\nContent-Disposition: form-data; name="photograph"; filename="photo.png"\r\n\r\n'
            content = head + content + b"\r\n--end--\r\n"
        parts = [content[first : first + 1000] for first in range(0, len(content), 1000)] or [b""]
        messages = [{"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": headers,
            "scheme": "http",
            "http_version": "1.1",
            "server": ("testserver", 80),
            "client": ("testclient", 1),
            "query_string": b"",
            "root_path": "",
        }
        await names["app"](scope, receive, send)
        return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))

    async def answers(*contents: bytes) -> list[tuple[int, dict[str, str]]]:
        return await asyncio.gather(*map(answer, contents))

    assert asyncio.run(answer(b"", "/health", "GET")) == (200, {"status": "ok"})
    names["LARGEST"] = 100_000
    images = [encoded(seed) for seed in range(4)]
    found = asyncio.run(answers(*images, b"no image", bytes(100_001)))
    assert found[:4] == [(200, {"text": names["model"].caption(image).text}) for image in images]
    told = "detail" if library == "fastapi" else "error"
    assert found[4][0] == 400 and "not a readable image" in found[4][1][told]
    assert found[5] == (413, {told: "this photograph is too large"})

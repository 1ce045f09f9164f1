"""A photograph with an EXIF orientation is turned upright once, whatever way it comes."""

import io
import json
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from tests.untrained import write_run
from tests.web.test_serve import ask
from vision_attn.api import load
from vision_attn.commands import main
from vision_attn.data.images.lazy import open_pixels
from vision_attn.data.images.open import Encoded, open_as_stored, open_photograph, size_of
from vision_attn.data.images.squares import read_image
from vision_attn.results.images import encoded, pictured
from vision_attn.system.errors import UserError
from vision_attn.web import make_server

LYING = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}  # fmt: skip
"""How a picture lies in a file, by its EXIF orientation."""


def scene() -> Image.Image:
    """No two turns of it are the same."""
    x, y = np.meshgrid(np.linspace(0, 1, 48), np.linspace(0, 1, 32))
    picture = Image.fromarray(np.stack([220 * x, 200 * y, 255 * (x > 0.7) * (y < 0.4)], -1).astype(np.uint8))
    return picture.resize((96, 64))


def lying(orientation: int, kind: str) -> bytes:
    """The scene in a file, turned and marked as a camera does."""
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    turned = scene() if orientation == 1 else scene().transpose(LYING[orientation])
    turned.save(file, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_every_way_to_hand_on_a_photograph_gives_the_same_pixels(kind, orientation, tmp_path):
    content, path = lying(orientation, kind), tmp_path / f"a.{kind.lower()}"
    path.write_bytes(content)
    opened = open_photograph(path)
    assert opened.getexif().get(0x0112) is None and not opened.info
    error = np.abs(np.asarray(opened).astype(int) - np.asarray(scene()))
    assert opened.size == (96, 64) and error.mean() < (8 if kind == "JPEG" else 0.1)
    assert size_of(path) == (96, 64) == open_as_stored(path).size
    expected = read_image(path, 32)
    with Image.open(io.BytesIO(content)) as stored:
        ways = [path, str(path), Encoded("a", content), opened, stored, np.asarray(opened)]
        assert all(torch.equal(encoded(way, 32, "centre"), expected) for way in ways)
        squares = [np.asarray(pictured(way, "centre")) for way in ways]
    assert all(np.array_equal(square, squares[0]) for square in squares)
    assert np.array_equal(open_pixels(path), np.asarray(opened))


def test_the_page_the_command_and_python_agree_on_turned_photographs(tmp_path, capsys):
    """By the log-probabilities of an untrained captioner, which every pixel changes."""
    run = write_run("sat_soft_scenes", tmp_path / "run")
    model = load(run, device="cpu")
    files = []
    for orientation in (1, 3, 6):
        files.append(tmp_path / f"{orientation}.png")
        files[-1].write_bytes(lying(orientation, "PNG"))
    assert main(["caption", str(run), *map(str, files), "--device=cpu", "--json"]) == 0
    lines = [json.loads(line)["captions"][0] for line in capsys.readouterr().out.splitlines()]
    told = [[word["log_prob"] for word in line["words"]] for line in lines]
    with make_server([("captioner", model)], port=0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        served = [ask(running, "/caption?name=a.png", file.read_bytes()).json() for file in files]
        running.shutdown()
    assert len({one["page"] for one in served}) == 1  # with the picture in it
    for (file, one), line in zip(zip(files, served, strict=True), told, strict=True):
        assert line == pytest.approx(told[0], abs=1e-5) and len(line) > 0
        assert [word["log_prob"] for word in one["words"]] == pytest.approx(line, abs=1e-5)
        for way in (file, open_photograph(file), Image.open(file), np.asarray(open_photograph(file))):
            assert model.caption(way).log_prob == pytest.approx(line, abs=1e-5)


def test_a_large_photograph_is_captioned_alike_by_the_page_and_the_command(tmp_path):
    """A JPEG is decoded at a fraction of its size, which changes pixels: the page does as the command does."""
    model = load(write_run("sat_soft_scenes", tmp_path / "run"), device="cpu")
    noise = np.random.default_rng(0).integers(0, 256, (900, 1600, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.jpg", quality=95)
    with make_server([("captioner", model)], port=0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        one = ask(running, "/caption", (tmp_path / "large.jpg").read_bytes()).json()
        running.shutdown()
    expected = model.caption(tmp_path / "large.jpg")
    assert [word["log_prob"] for word in one["words"]] == pytest.approx(expected.log_prob, abs=1e-6)


def test_a_served_file_is_never_taken_for_an_array_on_the_server(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 4), np.uint8))
    with pytest.raises(UserError, match="not a readable image"):
        open_pixels(Encoded(str(tmp_path / "a.npy"), b"nothing"))

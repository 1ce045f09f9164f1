"""An encoder that sees the whole photograph: its maps lie on the object, in the photograph's own shape."""

import base64
import io
import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.nn import functional as F

import vision_attn
from tests.untrained import write_run
from vision_attn.attention.images import overview
from vision_attn.commands import main
from vision_attn.contracts import AttentionMap, Caption, Captioner, Classifier, ClassifierOutput, Encoder, Glimpses
from vision_attn.data.images.squares import read_image, seen_part, square_of
from vision_attn.data.photographs.annotation_vectors.feature_index import make_header
from vision_attn.data.photographs.pixels import View
from vision_attn.encoders.backbone import Backbone
from vision_attn.encoders.concatenated import Concatenated
from vision_attn.geometry.extents import WHOLE, centres
from vision_attn.results.model import Model
from vision_attn.system.errors import UserError
from vision_attn.task import Source
from vision_attn.tasks.classify import Classification
from vision_attn.viz.overlay.scale import light
from vision_attn.viz.panel_sheets import PANEL

COLOUR = (255, 210, 0)
SIZES = {"wide": (448, 224), "tall": (150, 400)}
PLACES = {"wide": (0.82, -0.4), "tall": (-0.3, 0.85)}
"""Of the object: near an edge that the centre square does not reach."""
HALF = 1 / 14
"""Half a region of 14 x 14, where a side is 2 long."""


class Cells(Encoder):
    """The mean colour of each cell."""

    resolution, region_size, grid = 56, 3, (14, 14)

    def __init__(self, fit: str = "whole") -> None:
        super().__init__()
        self.fit = fit

    def identity(self):
        return {"backbone": "cells"}

    def forward(self, images):
        return F.adaptive_avg_pool2d(images / 255, 14).flatten(2).mT


class Yellow(Captioner):
    """Says the same two words, and looks at the cells that are yellow."""

    def __init__(self, num_words: int, region_size: int):
        super().__init__()
        self.logits = nn.Parameter(20.0 * F.one_hot(torch.tensor(4), num_words))

    def start(self, regions, rows):
        alpha = (20 * (regions[..., 0] - regions[..., 2])).softmax(dim=-1)
        return alpha, regions.new_zeros(len(regions), rows)

    def step(self, word, state, memory):
        logits = self.logits.expand(*word.shape, -1)
        return logits, state, AttentionMap(memory[:, None].expand(-1, word.shape[1], -1))

    def forward(self, regions, words):
        return Caption(torch.zeros(words.shape))


class Finder(Classifier):
    """Takes one glimpse, at the cell of an image of any size that is most yellow."""

    any_size, pixels = True, 256

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(num_classes))

    def forward(self, images, rows=1, mode="sample"):
        red, _, blue = overview(images, 14).unbind(dim=1)
        places = centres(14, 14, WHOLE)[(red - blue).flatten(1).argmax(dim=1)]
        return ClassifierOutput(self.scores.log_softmax(0).expand(len(places), 1, 1, -1), places[:, None, None])

    def view(self, images, glance):
        return Glimpses(torch.zeros(len(glance.log_prob), 1, 1, 3, 16, 16))


def photograph(path: Path, size: tuple[int, int], place: tuple[float, float]) -> Path:
    """A grey photograph with a yellow object at a place (x, y) in [-1, 1]. A file *.turned.png is stored lying on its
    side, with the EXIF tag that turns it upright."""
    picture = Image.new("RGB", size, (110, 110, 110))
    x, y = ((edge + 1) / 2 * side for edge, side in zip(place, size, strict=True))
    ImageDraw.Draw(picture).rectangle(
        (x - size[0] / 24, y - size[1] / 24, x + size[0] / 24, y + size[1] / 24), fill=COLOUR
    )
    exif = Image.Exif()
    if ".turned" in path.name:
        exif[0x0112] = 6
        picture = picture.transpose(Image.Transpose.ROTATE_90)
    picture.save(path, exif=exif)
    return path


def of_object(picture: Image.Image) -> np.ndarray:
    """Which pixels are as yellow and as bright as the object."""
    return (np.abs(np.asarray(picture.convert("RGB")).astype(int) - COLOUR) < 60).all(axis=-1)


def middle(mask: np.ndarray) -> tuple[float, float]:
    """The mean place (x, y) in [-1, 1] of pixels."""
    rows, columns = np.nonzero(mask)
    return (2 * (columns.mean() + 0.5) / mask.shape[1] - 1, 2 * (rows.mean() + 0.5) / mask.shape[0] - 1)


def check_page(html: str, size: tuple[int, int], place: tuple[float, float]) -> None:
    """The picture of a page has the photograph's shape, and its first map is brightest where the object is."""
    picture = Image.open(io.BytesIO(base64.b64decode(re.search(r"data:image/jpeg;base64,([^\"]+)", html)[1])))
    assert picture.width / picture.height == pytest.approx(size[0] / size[1], rel=0.02)
    assert middle(of_object(picture)) == pytest.approx(place, abs=0.02)
    bits = np.frombuffer(base64.b64decode(re.search(r'data-map="([^"]+)"', html)[1]), np.uint8)
    assert re.search(r'data-extent="([^"]+)"', html)[1] == "0.0000 0.0000 1.0000 1.0000"
    assert centres(14, 14, WHOLE)[int(bits.argmax())].tolist() == pytest.approx(place, abs=HALF)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = "tests.results.test_whole_photograph."
    options = [f"--task.encoder={own}Cells", f"--task.model={own}Yellow", "--task.max_words=2", "--run.device=cpu"]
    return write_run("sat_soft_scenes", tmp_path_factory.mktemp("whole") / "run", *options, sizes=())


@pytest.mark.parametrize("name", ["plain.png", "photograph.turned.png"])
@pytest.mark.parametrize("shape", SIZES)
def test_a_map_lies_on_the_object(run: Path, tmp_path: Path, shape: str, name: str, capsys) -> None:
    """In Python, the PNG and the page."""
    size, place = SIZES[shape], PLACES[shape]
    file = photograph(tmp_path / name, size, place)
    model = vision_attn.load(run, device="cpu", trust="tests")
    for result in (model.caption(file), model.caption(Image.open(file)), model.look(file)):
        assert result.picture.width / result.picture.height == pytest.approx(size[0] / size[1], rel=0.02)
        assert middle(of_object(result.picture)) == pytest.approx(place, abs=0.02)
        (lit, *_) = light(result.alpha, result.picture.height, result.picture.width, result.extent)
        assert middle(lit.numpy() > 0.9) == pytest.approx(place, abs=HALF)
    out = tmp_path / "out"
    assert main(["caption", str(run), str(file), "--out", str(out), "--device=cpu", "--trust=tests"]) == 0
    check_page((out / "index.html").read_text(), size, place)
    # The sheet shows the object three times: as it is, and for each of the two words lit, not in the dark.
    (png,) = out.glob("*.png")
    with Image.open(png) as sheet:
        red, _, blue = np.asarray(sheet.convert("RGB")).astype(int).transpose(2, 0, 1)
    assert ((red - blue > 60) & (red > 150)).sum() > 2 * PANEL**2 * min(size) / max(size) / 144
    capsys.readouterr()
    assert main(["caption", str(run), str(file), "--json", "--device=cpu", "--trust=tests"]) == 0
    assert json.loads(capsys.readouterr().out)["captions"][0]["caption"] == model.caption(file).text


@pytest.mark.parametrize(("shape", "name"), [("wide", "plain.png"), ("tall", "photograph.turned.png")])
def test_a_served_map_lies_on_the_object(run: Path, tmp_path: Path, shape: str, name: str) -> None:
    from tests.web.test_serve import ask, make_server  # skips without the extra [web]

    size, place = SIZES[shape], PLACES[shape]
    file = photograph(tmp_path / name, size, place)
    model = vision_attn.load(run, device="cpu", trust="tests")
    with make_server([("captioner", model)], port=0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        answer = ask(running, "/caption?name=a.png", file.read_bytes()).json()
        running.shutdown()
    check_page(answer["page"], size, place)


@pytest.mark.parametrize("name", ["plain.png", "photograph.turned.png"])
@pytest.mark.parametrize("shape", SIZES)
def test_a_glimpse_lies_on_the_object_in_the_gif(tmp_path: Path, shape: str, name: str) -> None:
    size, place = SIZES[shape], PLACES[shape]
    source = Source()
    source.image_shape, source.num_classes = (3, 0, 0), 2
    model = Model(Classification(source, model=Finder).eval(), {}, torch.device("cpu"))
    result = model.classify(photograph(tmp_path / name, size, place))
    assert result.locations[0].tolist() == pytest.approx(place, abs=HALF)
    gif = base64.b64decode(re.search(r"data:image/gif;base64,([^\"]+)", result.page())[1])
    with Image.open(io.BytesIO(gif)) as frame:
        pixels = np.asarray(frame.convert("RGB")).astype(int)
    grey = (np.abs(pixels - 110) < 12).all(axis=-1)  # the photograph, not the black of the glimpse's panel
    (top, *_, bottom), (left, *_, right) = (np.flatnonzero(grey.mean(axis=axis) > 0.15) for axis in (1, 0))
    assert (right - left + 1) / (bottom - top + 1) == pytest.approx(size[0] / size[1], rel=0.06)
    red, _, blue = pixels[top : bottom + 1, left : right + 1][4:-4, 4:-4].transpose(2, 0, 1)
    assert middle((red > 150) & (red - blue > 60)) == pytest.approx(place, abs=HALF)


def test_the_two_fits_differ_and_caches_know(tmp_path: Path) -> None:
    file = photograph(tmp_path / "a.turned.png", (448, 224), (0.9, 0.0))
    whole, centre = read_image(file, 56, "whole"), read_image(file, 56)
    assert (
        whole[:, 28, 53].tolist() == pytest.approx(COLOUR, abs=3)
        and not of_object(Image.fromarray(centre.permute(1, 2, 0).numpy())).any()
    )
    mirrored = square_of(View("a", file, mirrored=True).read(56, "whole"), 56)
    assert torch.equal(mirrored, whole.flip(-1))
    with Image.open(file) as stored:
        assert seen_part(stored, "whole").size == stored.size and seen_part(stored, "centre").size == (224, 224)
    network = {"name": "efficientnet_lite0", "node": "blocks.1", "resolution": 32}
    encoders = [Backbone(**network, fit=fit) for fit in ("centre", "whole")]
    encoders[1].load_state_dict(encoders[0].state_dict())
    headers = [make_header(encoder, [View("a", file)]) for encoder in encoders]
    assert headers[0]["encoder"] | {"fit": "whole"} == headers[1]["encoder"]
    with pytest.raises(UserError, match="must see the same part of a photograph"):
        Concatenated(encoders)


def test_a_crop_is_marked_on_the_whole_photograph(run: Path, tmp_path: Path, capsys) -> None:
    """The page and the picture show all of it, and the map where the object is; `picture` is what the model saw. A view
    and a scale that are asked for begin the page."""
    size, place = (448, 224), (0.25, 0.3)
    file = photograph(tmp_path / "a.png", size, place)
    model = vision_attn.load(run, device="cpu", trust="tests")
    model.task.encoder.fit = "centre"
    for result in (model.caption(file), model.look(file)):
        assert result.picture.size == (224, 224) and result.light().shape[1:] == (224, 224)
        html = result.save(tmp_path / "a.html", overlay="cells", scale="one").read_text()
        picture = Image.open(io.BytesIO(base64.b64decode(re.search(r"data:image/jpeg;base64,([^\"]+)", html)[1])))
        assert picture.size == (448, 224) and middle(of_object(picture)) == pytest.approx(place, abs=0.02)
        assert 'data-seen="0.2500 0.0000 0.7500 1.0000"' in html and 'class="seen" style="inset: 0.00% 25.00%' in html
        assert re.search(r'data-extent="([^"]+)"', html)[1] == "0.0000 0.0000 1.0000 1.0000"  # of that part
        bits = np.frombuffer(base64.b64decode(re.search(r'data-map="([^"]+)"', html)[1]), np.uint8)
        x, y = centres(14, 14, WHOLE)[int(bits.argmax())].tolist()
        assert (x / 2, y) == pytest.approx(place, abs=HALF)
        assert "An outline marks the part" in html and "attention" in html and "p is the probability" in html
        assert re.findall(r'value="(\w+)" checked', html) == ["cells", "one"]
        assert "value=&#34;contours&#34; checked" in result.show(overlay="contours")._repr_html_()
        pictures = [result.save(tmp_path / f"{view}.png", overlay=view).read_bytes() for view in ("color", "light")]
        assert pictures[0] != pictures[1]
    command = ["caption", str(run), str(file), "--device=cpu", "--trust=tests", "--out", str(tmp_path / "out")]
    assert main([*command, "--overlay=contours", "--scale=one"]) == 0
    html = (tmp_path / "out" / "index.html").read_text()
    assert re.findall(r'value="(\w+)" checked', html) == ["contours", "one"] and "Maps of " in html
    capsys.readouterr()

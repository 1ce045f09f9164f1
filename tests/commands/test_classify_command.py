"""`vision-attn classify`: prints an answer for each image of any size and colours, and draws where the model looked."""

import contextlib
import json
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import torch
from PIL import Image

from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.data.digits.mnist import read_mnist

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ram(tmp_path_factory):
    return write_run("ram_mnist28", tmp_path_factory.mktemp("ram") / "run")


@pytest.fixture
def images(tmp_path):
    """One image in many colours and sizes, and files that are none."""
    grey = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50), dtype=np.uint8))
    folder = tmp_path / "images"
    folder.mkdir()
    for name, image in {
        "grey.png": grey, "rgb.png": grey.convert("RGB"), "palette.png": grey.quantize(256, dither=0),
        "alpha.png": grey.convert("LA"), "black_on_white.png": Image.eval(grey, lambda level: 255 - level),
        "tiny.png": grey.resize((1, 1)), "long.png": grey.resize((3000, 2)),
    }.items():  # fmt: skip
        image.save(folder / name)
    np.save(folder / "array.npy", np.asarray(grey))
    (folder / "text.md").write_text("no image")
    return folder


def lines(capsys) -> dict[str, tuple[str, str]]:
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    return {Path(file).name: (name, probability) for file, name, probability in rows}


def test_every_size_and_colour_is_answered(ram, images, tmp_path, capsys):
    assert main(["classify", str(ram), str(images), "--out", str(tmp_path / "look")]) == 0
    found = lines(capsys)
    assert len(found) == 8 and {name for name, _ in found.values()} <= set("0123456789")
    assert found["rgb.png"] == found["grey.png"] == found["array.npy"] == found["alpha.png"] == found["palette.png"]
    drawn = sorted((tmp_path / "look").glob("*.png"))
    page = (tmp_path / "look" / "index.html").read_text()
    assert all(f'src="{quote(path.name)}"' in page for path in drawn) and "alpha.png: " in page
    assert len(drawn) == 8 and all(max(Image.open(path).size) < 3000 for path in drawn)


def test_an_answer_depends_on_nothing_else(ram, images, capsys):
    """Sampled glimpses of an image are the same, whatever is classified before it; after an option, too."""
    one = ["classify", str(ram), "--task.at_test=copies", str(images / "grey.png")]
    assert main(one) == 0
    alone = lines(capsys)["grey.png"]
    assert main(["classify", str(ram), str(images), "--task.at_test", "copies"]) == 0
    assert lines(capsys)["grey.png"] == alone


def test_places_to_look_at_are_given(ram, images, capsys):
    """Those that are given are where it looks; the others are its own."""
    one = ["classify", str(ram), str(images / "grey.png"), "--json"]
    assert main(one) == 0
    own = json.loads(capsys.readouterr().out)
    assert main([*one, "--locations", "- 0.9,-0.9"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["locations"][1] == pytest.approx([0.9, -0.9])
    assert found["locations"][0] == own["locations"][0] and found["entropy"][0] == own["entropy"][0]
    probabilities = np.array(list(found["probabilities"].values()))
    assert found["entropy"][-1] == pytest.approx(-(probabilities * np.log(probabilities)).sum(), rel=1e-4)
    assert len(found["locations"]) == len(found["entropy"]) == len(own["locations"])


@pytest.mark.parametrize("given, said", [
    ("0,2", "glimpse 1 is (0.0, 2.0), but all numbers must lie in [-1, 1]"),
    ("0,0,1,1", "takes a location (x, y) for each glimpse"),
    (" ".join(["0,0"] * 99), "takes 2 glimpses, and 99 locations are given"),
    ("here", "give numbers, as in \"0.3,-0.2 - 0,0.5\""),
])  # fmt: skip
def test_places_that_there_are_not(ram, images, capsys, given, said):
    with contextlib.suppress(SystemExit):
        assert main(["classify", str(ram), str(images / "grey.png"), "--locations", given]) > 0
    assert said in capsys.readouterr().err


def test_black_and_white_can_be_swapped(ram, images, capsys):
    assert main(["classify", str(ram), str(images / "grey.png")]) == 0
    plain = lines(capsys)["grey.png"]
    assert main(["classify", str(ram), str(images / "black_on_white.png"), "--invert"]) == 0
    assert lines(capsys)["black_on_white.png"] == plain


def test_json_holds_all_probabilities(ram, images, capsys):
    assert main(["classify", str(ram), str(images / "grey.png"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["probability"] == max(answer["probabilities"].values()) == answer["probabilities"][answer["answer"]]
    assert list(answer["probabilities"]) == list("0123456789") and len(answer["locations"]) == 2


def test_what_cannot_be_read_is_named_and_the_rest_is_answered(ram, images, capsys):
    missing = images / "missing.png"
    assert main(["classify", str(ram), str(images / "text.md"), str(missing), str(images / "grey.png")]) == 1
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1
    assert f"{images / 'text.md'}: not a readable image" in told.err and f"{missing}: no such file" in told.err


@pytest.mark.parametrize("arguments, message", [
    ([], "name an image, or a folder of them"), (["x.png", "--nonsense=1"], "nonsense"),
    (["x.png", "--beams=3"], "beams"),
])  # fmt: skip
def test_wrong_arguments(ram, arguments, message, capsys):
    try:
        assert main(["classify", str(ram), *arguments]) == 1
    except SystemExit as error:
        assert error.code == 2
    assert message in capsys.readouterr().err


def test_a_run_that_classifies_nothing_says_so(tmp_path, images, capsys):
    run = write_run("draw_mnist", tmp_path / "run")
    assert main(["classify", str(run), str(images / "grey.png")]) == 1
    assert "holds a generator of images, which classifies no images" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_printed(ram, images, monkeypatch, capsys):
    from vision_attn.tasks.classify import Classification

    answer, calls = Classification.answer, []

    def interrupted(*given):
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return answer(*given)

    # a signal from outside would come at another image each time
    monkeypatch.setattr(Classification, "answer", interrupted)
    assert main(["classify", str(ram), str(images)]) == 130
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 2 and "interrupted" in told.err


@pytest.mark.parametrize("name", ["ram_cluttered60", "draw_reader_cluttered100"])
def test_weights_that_come_along_read_digits(name, data_folder, tmp_path, monkeypatch, capsys):
    """From any folder: of eight digits on black, in the middle of an image in colour, at most one is misread."""
    folder = ROOT / "weights" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    monkeypatch.chdir(tmp_path)
    digits = read_mnist(str(data_folder / "mnist"))["test"]
    for number in range(8):
        canvas = torch.zeros(60, 60, dtype=torch.uint8)
        canvas[12:40, 20:48] = digits.images[number]
        Image.fromarray(canvas.numpy()).convert("RGB").save(f"{number}.png")
    files = [f"{number}.png" for number in range(8)]
    assert main(["classify", f"weights/{name}", *files, "--out", "look"]) == 0
    said = [answer for answer, _ in lines(capsys).values()]
    assert sum(answer == str(int(label)) for answer, label in zip(said, digits.labels[:8], strict=True)) >= 7
    assert len(list(Path("look").glob("*.png"))) == 8


def test_what_is_unlike_the_training_images_is_said(ram, tmp_path, capsys):
    paper = ("paper.png", (28, 28), 250)
    for name, size, level in (
        ("large.png", (600, 90), 0),
        paper,
        ("fine.png", (40, 40), 9),
        ("both.png", (90, 90), 250),
    ):
        Image.new("L", size, level).save(tmp_path / name)
    assert main(["classify", str(ram), str(tmp_path)]) == 0
    *both, large, paper = (line for line in capsys.readouterr().err.splitlines() if "the model learned from" in line)
    assert "large.png is seen with 600 x 90 pixels, but the model learned from 28 x 28" in large
    assert "paper.png is mostly bright" in paper and "--invert" in paper
    assert [line.split("both.png ")[1].split()[:2] for line in both] == [["is", "seen"], ["is", "mostly"]]
    assert main(["classify", str(ram), str(tmp_path / "paper.png"), "--invert"]) == 0
    assert "learned from" not in capsys.readouterr().err

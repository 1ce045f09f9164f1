"""The weights that come with the repository: they open, say how they were made, and do what is told of them."""

import json
import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests import slow
from vision_attn.commands import main
from vision_attn.configuration.run_folder import open_run
from vision_attn.data.digits.mnist import DigitBatch

WEIGHTS = sorted(path.parent for path in (Path(__file__).parent.parent / "weights").glob("*/model.safetensors"))


@pytest.mark.parametrize("folder", WEIGHTS, ids=lambda folder: folder.name)
def test_weights_open_and_are_small(folder):
    task, _, config = open_run(folder)
    assert all(parameter.isfinite().all() for parameter in task.parameters())
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert size < (25_000_000 if folder.name == "photographs" else 5_000_000)
    assert config["run"]["seed"] is not None


@pytest.mark.slow
def test_ram_reads_cluttered_digits(data_folder, tmp_path):
    """On a tenth of the test canvases, from all over (MNIST's first test digits are harder than its last), its error is
    within what chance makes of the 10,000's; and it can be shown."""
    folder = next(folder for folder in WEIGHTS if folder.name == "ram_cluttered60")
    told = json.loads((folder / "metrics_test.json").read_text())
    assert told["error_low"] < told["error"] < told["error_high"] < 4.04  # the paper's
    task, source, _ = open_run(folder)
    source.prepare(task)
    with torch.no_grad():
        metrics = task.eval().evaluate(islice(source.split("test"), 0, None, 10))
    assert metrics["error_low"] <= told["error"] <= metrics["error_high"]
    assert metrics["pixels"] == told["pixels"] and metrics["last_glimpse_on_digit"] > 0.9
    small = ["--data.test_images=16", "--device=cpu"]
    assert main(["eval", str(folder), "--out", str(tmp_path / "look"), "--show=2", *small]) == 0
    assert len(list((tmp_path / "look/pictures_test").glob("*.gif"))) == 2
    assert json.loads((tmp_path / "look/metrics_test.json").read_text())["overrides"] == small[:1]


@pytest.mark.slow
def test_films_are_told_word_by_word(tmp_path, monkeypatch, capsys):
    """The film that docs/films.md draws, and the first test films."""
    text = (Path(__file__).parent.parent / "docs" / "films.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], {})
    expected = re.search(r"caption weights/drawn_films frames --out look +# (.*)", text)[1]
    assert main(["caption", "weights/drawn_films", "frames", "--out", "look", "--device=cpu"]) == 0
    assert capsys.readouterr().out == f"frames\t{expected}\n" and (tmp_path / "look" / "index.html").is_file()
    folder = next(folder for folder in WEIGHTS if folder.name == "drawn_films")
    task, source, _ = open_run(folder)
    source.prepare(task)
    with torch.no_grad():
        metrics = task.eval().evaluate(islice(source.split("test"), 4))
    told = json.loads((folder / "metrics_test.json").read_text())
    assert metrics["pointing"] == pytest.approx(told["pointing"], abs=0.1) and told["pointing"] > 0.7
    assert metrics["BLEU-4"] == pytest.approx(told["BLEU-4"], abs=0.1)


def test_photographs_of_ones_own_start_from_drawn_objects(tmp_path, capsys):
    """Their classes are added to the 42 of the weights."""
    for number, colour in enumerate(["teal", "brown"] * 20):
        folder = tmp_path / "images" / colour
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30 + number, 40), colour).save(folder / f"{number}.png")
    weights = next(folder for folder in WEIGHTS if folder.name == "ram_photographs")
    options = ["run.epochs=1", "run.warmup=0", "run.device=cpu", "data.batch_size=8", "data.labels=null"]
    options += [f"data.images={tmp_path / 'images'}", f"run.folder={tmp_path / 'run'}", f"run.start_from={weights}"]
    assert main(["train", "ram_photographs", *(f"--{option}" for option in options)]) == 0
    assert f"keeps 42 classes of {weights} and adds 2" in capsys.readouterr().out
    classes = json.loads((tmp_path / "run" / "best" / "classes.json").read_text())
    assert len(classes) == 44 and classes[:42] == json.loads((weights / "classes.json").read_text())
    assert main(["classify", str(tmp_path / "run"), str(tmp_path / "images" / "teal" / "0.png")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split("\t")[1] in classes


@pytest.mark.parametrize(
    "name, samples", slow.after(1, [("draw_mnist", 100), ("draw_mnist32", 1), ("draw_mnist64", 1)])
)
def test_draw_draws_digits(name, samples, data_folder, tmp_path):
    """On the first 1,000 test digits its bound is within what chance makes of the 10,000's, and it draws anew."""
    folder = next(folder for folder in WEIGHTS if folder.name == name)
    told = json.loads((folder / "metrics_test.json").read_text())
    assert told["nll"] < told["nll_bound"] < told["bound"] + 1
    assert (
        told["bound"] == pytest.approx(told["reconstruction"] + told["kl"]) and told["bound"] < 87.4
    )  # without attention
    task, source, _ = open_run(folder, overrides=[f"--task.importance_samples={samples}"])
    source.prepare(task)
    first = list(islice(source.split("test"), 8))
    metrics = task.eval().evaluate(first)
    assert metrics["bound"] == pytest.approx(told["nll_bound"], abs=1.5)
    paths = task.show(DigitBatch(*(part[:3] for part in first[0])), tmp_path)
    assert [path.name for path in paths] == ["index.html", "samples.gif", "samples.png", "reconstructions.png"]


def test_draw_reads_cluttered_digits(data_folder, tmp_path):
    """A tenth of the test canvases, from all over: MNIST's first test digits are harder than its last."""
    folder = next(folder for folder in WEIGHTS if folder.name == "draw_reader_cluttered100")
    told = json.loads((folder / "metrics_test.json").read_text())
    task, source, _ = open_run(folder)
    source.prepare(task)
    some = list(islice(source.split("test"), 0, None, 10))
    metrics = task.eval().evaluate(some)
    assert metrics["error_low"] <= told["error"] <= metrics["error_high"] and told["error"] < 5
    assert metrics["pixels"] == told["pixels"] == (4 + 1) * 12 * 12 and metrics["last_glimpse_on_digit"] > 0.9
    paths = task.show(DigitBatch(*(part[:3] for part in some[0])), tmp_path)
    assert [path.name for path in paths] == ["index.html", "reads.png", "reads.gif"]

"""Export to ONNX and torch.export: the same numbers, for any number of images."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.config import open_run
from vision_attn.data.images import read_image
from vision_attn.decode import greedy

onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX needs the extra [onnx]")
pytest.importorskip("onnxscript", reason="ONNX needs the extra [onnx]")
PHOTOGRAPHS = sorted((Path(__file__).parents[1] / "docs" / "photographs").glob("*.jpg"))


def session(path: Path) -> "onnxruntime.InferenceSession":
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_a_captioner_writes_the_same_captions_with_onnxruntime_alone(tmp_path, capsys) -> None:
    run, out = write_run("sat_soft_scenes", tmp_path / "run"), tmp_path / "out"
    assert main(["export", str(run), "--out", str(out), "--device=cpu"]) == 0
    assert capsys.readouterr().out.count("differs from PyTorch by") == 6
    task, _, _ = open_run(run)
    images = torch.stack([read_image(path, task.resolution) for path in PHOTOGRAPHS])
    with torch.no_grad():
        regions = task.encoder(images)
        found = session(out / "encoder.onnx").run(None, {"images": images.numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(found), regions, atol=1e-4, rtol=0)
        loaded = torch.export.load(out / "encoder.pt2").module()
        torch.testing.assert_close(loaded(images)[0], regions, atol=1e-4, rtol=0)
        decoded = greedy(task.model, regions, max_words=task.max_words, never=(2,))
    expected = [" ".join(task.vocabulary.words[word] for word in row[0].tolist() if word > 1) for row in decoded.words]
    script = "import sys; sys.modules['torch'] = None; sys.argv[:] = sys.argv[1:]; exec(open(sys.argv[0]).read(), "
    script += "{'__name__': '__main__', '__file__': sys.argv[0]})"
    call = [sys.executable, "-c", script, str(out / "caption.py"), *map(str, PHOTOGRAPHS)]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line.split("\t")[1] for line in done.stdout.splitlines()]
    assert said == expected
    assert len((out / "caption.py").read_text().splitlines()) <= 36


def test_a_generator_is_exported(tmp_path) -> None:
    run, out = write_run("draw_mnist", tmp_path / "run"), tmp_path / "out"
    assert main(["export", str(run), "--no-onnx", "--out", str(out)]) == 0
    task, _, _ = open_run(run)
    noise = torch.randn(5, task.model.num_turns, task.model.latent_size)
    with torch.no_grad():
        found = torch.export.load(out / "generator.pt2").module()(noise)[0]
        drawing = task.model.decode(noise.transpose(0, 1)[:, :, None])
    np.testing.assert_allclose(found, drawing.canvases[-1].sigmoid(), atol=1e-4)


def test_what_cannot_be_exported_is_told(tmp_path, monkeypatch, capsys) -> None:
    run = write_run("ram_mnist28", tmp_path / "run")
    assert main(["export", str(run), "--out", str(tmp_path / "out")]) == 1
    assert "the first glimpse of this model is at a random place" in capsys.readouterr().err
    monkeypatch.setattr("vision_attn.commands.export.find_spec", lambda name: None)
    assert main(["export", str(run), "--out", str(tmp_path / "out")]) == 1
    assert "pip install 'vision-attn[onnx]'" in capsys.readouterr().err
    assert main(["export", str(run), "--no-onnx", "--out", str(tmp_path / "out"), "--task.model.first=centre"]) == 0
    program = torch.export.load(tmp_path / "out" / "classifier.pt2").module()
    images = torch.rand(7, 1, 28, 28)
    task, _, _ = open_run(run, overrides=["--task.model.first=centre"])
    with torch.no_grad():
        glance = task.model(images, way="mean")
        probabilities, locations = program(images)
    torch.testing.assert_close(probabilities, glance.log_prob[:, 0].exp(), atol=1e-4, rtol=0)
    torch.testing.assert_close(locations, glance.locations[:, 0], atol=1e-4, rtol=0)

"""The weights that come with the repository: they open, say how they were made, and do what is told of them."""

import json
from itertools import islice
from pathlib import Path

import pytest
import torch

from vision_attn.commands import main
from vision_attn.config import open_run

WEIGHTS = sorted(path.parent for path in (Path(__file__).parent.parent / "weights").glob("*/model.safetensors"))


@pytest.mark.parametrize("folder", WEIGHTS, ids=lambda folder: folder.name)
def test_weights_open_and_are_small(folder):
    task, _, config = open_run(folder)
    assert all(parameter.isfinite().all() for parameter in task.parameters())
    assert (folder / "model.safetensors").stat().st_size < 5_000_000
    assert config["run"]["seed"] == 0


def test_ram_reads_cluttered_digits(data_folder, tmp_path):
    """On the first 1,000 test canvases its error is within what chance makes of the 10,000's; and it can be shown."""
    folder = next(folder for folder in WEIGHTS if folder.name == "ram_cluttered60")
    told = json.loads((folder / "metrics_test.json").read_text())
    assert told["error_low"] < told["error"] < told["error_high"] < 4.04  # the paper's
    task, source, _ = open_run(folder)
    source.prepare(task)
    with torch.no_grad():
        metrics = task.eval().evaluate(islice(source.split("test"), 4))
    assert metrics["error_low"] <= told["error"] <= metrics["error_high"]
    assert metrics["pixels"] == told["pixels"] and metrics["last_look_on_digit"] > 0.9
    small = ["--data.test_images=16", "--device=cpu"]
    assert main(["eval", str(folder), "--out", str(tmp_path / "look"), "--show=2", *small]) == 0
    assert len(list((tmp_path / "look/pictures").glob("*.gif"))) == 2

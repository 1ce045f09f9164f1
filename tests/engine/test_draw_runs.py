"""Runs of DRAW that are split over two processes equal those of one."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.fake_mnist import write_mnist
from tests.whole_runs import assert_close, in_two_processes, train
from vision_attn.commands import main
from vision_attn.models.draw import DRAW

BATCHES = 3
TINY = {
    "task.model.num_steps": 3, "task.model.hidden_size": 16, "task.model.latent_size": 6, "data.batch_size": 100,
    "run.epochs": 2, "run.precision": "fp32", "run.device": "cpu", "run.log_every": 1, "run.show": 0,
    "run.validate_every": 2,
    "schedule": "null",
}  # fmt: skip


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> str:
    return write_mnist(tmp_path_factory.mktemp("mnist"))


def command(folder: Path, digits: str, **settings) -> list[str]:
    """The command line that trains a tiny DRAW."""
    return train("draw_mnist_small", **TINY | settings | {"run.folder": folder, "data.folder": digits})


def draw_jointly(change: Callable[[object, str, Callable], None] = setattr) -> None:
    """Make the noise depend on the joined batch alone; each process takes the part of its images."""
    rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    forward, calls = DRAW.forward, []

    def forward_jointly(model: DRAW, images: torch.Tensor, noise: torch.Tensor | None = None):
        calls.append(1)
        generator = torch.Generator().manual_seed(len(calls))
        joint = torch.randn(model.num_steps, world * len(images), 1, model.latent_size, generator=generator)
        return forward(model, images, joint[:, rank::world])

    change(DRAW, "forward", forward_jointly)


def test_two_processes_equal_one_with_the_joined_batch(digits, tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    settings = {
        "optimizer": "torch.optim.SGD", "optimizer__lr": 0.001, "run__validate_every": 0, "task__binarisation": "fixed",
    }  # fmt: skip
    draw_jointly(monkeypatch.setattr)  # a run takes no noise
    assert main(command(one, digits, **settings)) == 0
    in_two_processes(command(two, digits, **settings), draw_jointly)
    assert_close(one, two, number=2 * BATCHES)


def test_two_processes_evaluate_as_one_does(digits, tmp_path):
    """Also what is sampled: the estimates of log p(x), and the pictures."""
    run, one, two = (tmp_path / name for name in ("run", "one", "two"))
    assert main(command(run, digits, run__epochs=1, run__validate_every=0)) == 0
    sizes = ["--data.batch_size=50", "--task.importance_samples=3", "--task.importance_images=90", "--show=2"]
    assert main(["eval", str(run), *sizes, f"--out={one}"]) == 0
    in_two_processes(["eval", str(run), *sizes, f"--out={two}"], print)
    records = [json.loads((folder / "metrics_test.json").read_text()) for folder in (one, two)]
    assert records[1].pop("processes") == 2
    for record in records:
        del record["seconds"], record["time"]
    assert records[0] == records[1] and records[0]["nll_images"] == 90
    for path in sorted((one / "pictures_test").iterdir()):
        assert path.read_bytes() == (two / "pictures_test" / path.name).read_bytes(), path.name

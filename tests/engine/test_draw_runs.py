"""Whole runs of DRAW: killed and resumed, split over two processes, and diverged."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.fake_mnist import write_mnist
from tests.whole_runs import assert_close, in_two_processes, train
from vision_attn.commands import main
from vision_attn.models.draw import DRAW
from vision_attn.tasks.generate import Generation

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


def die_at(call: int) -> None:
    """Kill this process at the `call`-th forward pass of training."""
    forward, calls = Generation.forward, []

    def forward_or_die(task: Generation, *batch) -> dict[str, torch.Tensor]:
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(task, *batch)

    Generation.forward = forward_or_die


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
    draw_jointly(monkeypatch.setattr)
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


def test_a_run_that_diverges_stops_and_keeps_its_last_good_weights(digits, tmp_path, monkeypatch, capsys):
    forward, calls = Generation.forward, []

    def blow_up(task: Generation, *batch) -> dict[str, torch.Tensor]:
        calls.append(1)
        metrics = forward(task, *batch)
        return metrics | {"loss": metrics["loss"] * (torch.nan if len(calls) == BATCHES + 2 else 1)}

    monkeypatch.setattr(Generation, "forward", blow_up)
    assert main(command(tmp_path, digits, run__save_every=0)) == 1
    assert f"step {BATCHES + 2}: the loss is not finite" in capsys.readouterr().err
    assert json.loads((tmp_path / "last/position.json").read_text())["step"] <= BATCHES + 1
    assert all(weights.isfinite().all() for weights in load_file(tmp_path / "last/model.safetensors").values())

"""Tasks with static shapes train captured as they do eagerly: on a CPU by recorded operations, on a GPU by graphs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from toy import Plane, adam, toy_run

from tests import pretend
from tests.engine.test_capture import EVERYTHING, Reading, Uneven
from tests.fake_mnist import write_mnist
from tests.graphs import TapeGraph
from tests.whole_runs import steps, train
from vision_attn.commands import main
from vision_attn.engine.capture import WARM_UP, CUDAGraph, RecordedStep
from vision_attn.engine.fit import fit
from vision_attn.fast import versions

CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(torch.version.cuda is None, reason="needs CUDA"),
]
CLUTTER = {
    "data.canvas": 36, "data.pieces": 2, "data.batch_size": 8, "data.epoch_images": 8 * (WARM_UP + 3),
    "data.val_images": 8, "data.test_images": 8,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "ram_cluttered60": CLUTTER | {
        "task.model.num_glimpses": 3, "task.model.retina.size": 6, "task.model.retina.num_scales": 2,
        "task.model.core.hidden_size": 16, "task.model.policy.first_sigma": 0.5,
        "task.model.policy.batches_to_sigma": 20,
    },
    "draw_reader_cluttered60": CLUTTER | {
        "task.model.num_glimpses": 3, "task.model.size": 4, "task.model.hidden_size": 16,
    },
    "draw_mnist_small": {
        "data.batch_size": 50, "task.model.num_steps": 3, "task.model.hidden_size": 16, "task.model.latent_size": 6,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> str:
    return write_mnist(tmp_path_factory.mktemp("mnist"))


@pytest.fixture
def captures(monkeypatch) -> list[RecordedStep]:
    """The graphs of the runs of a test, captured or not yet."""
    made = []
    create = RecordedStep.__init__

    def noted(one: RecordedStep, *arguments: Any) -> None:
        create(one, *arguments)
        made.append(one)

    monkeypatch.setattr(RecordedStep, "__init__", noted)
    return made


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "last" / "model.safetensors")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("config", SIZES)
def test_captured_tasks_train_as_eager_ones(config, precision, device, digits, tmp_path, captures, monkeypatch):
    if device == "cpu":  # The tape records tensor operations alone, as a CUDA graph records kernels.
        pretend.captured_steps(monkeypatch, TapeGraph)
    common = {"run.precision": precision, "run.device": device, "run.epochs": 2, "run.average": 0.9, "run.warmup": 2,
              "run.clip": 1.0, "run.compile": "false", "run.log_every": 1, "run.show": 0, "run.validate_every": 0,
              "data.folder": digits}  # fmt: skip
    for name, setting in (("eager", "false"), ("captured", "auto")):
        settings = SIZES[config] | common | {"run.capture": setting, "run.folder": tmp_path / name}
        with versions.without_loops(device == "cpu"):
            assert main(train(config, **settings)) == 0
    assert [one.ready for one in captures] == [True]
    eager, captured = weights(tmp_path / "eager"), weights(tmp_path / "captured")
    near = {"rtol": 0, "atol": 0} if device == "cpu" else {}  # A GPU gets the rate in float32, or adds in any order.
    for name in eager:
        torch.testing.assert_close(captured[name], eager[name], **near)
    losses = [[line["loss"] for line in steps(tmp_path / name)] for name in ("eager", "captured")]
    assert len(losses[0]) >= 12 and losses[1] == pytest.approx(losses[0], rel=1e-3 if device == "cuda" else 0)


def train_toy(folder: Path, task: type = Plane, **settings: Any) -> None:
    run = toy_run(folder, **EVERYTHING | {"device": "cuda", "precision": "fp32"} | settings)
    fit(task=task, data=Uneven(), optimizer=adam, run=run)


@pytest.mark.parametrize("rehearsed", [pytest.param(True, marks=CUDA), pytest.param(False, marks=CUDA)])
def test_a_task_that_waits_for_the_gpu_runs_eagerly(tmp_path, capsys, monkeypatch, rehearsed):
    """Whether a rehearsal finds it out or the capture itself fails, training goes on as if nothing had been tried."""
    if not rehearsed:
        # what no rehearsal finds out depends on the version of CUDA
        monkeypatch.setattr(CUDAGraph, "warm_up", lambda graph, function: function())
    train_toy(tmp_path / "eager", Reading, capture=False)
    capsys.readouterr()
    train_toy(tmp_path / "captured", Reading, capture=True)
    said = [line for line in capsys.readouterr().out.splitlines() if "cannot be captured" in line]
    assert len(said) == 1 and (not rehearsed or "it waits for the device in" in said[0])
    eager, captured = weights(tmp_path / "eager"), weights(tmp_path / "captured")
    for name in eager:
        torch.testing.assert_close(captured[name], eager[name])


@pytest.mark.parametrize("settings", [pytest.param({}, marks=CUDA), pytest.param({"accumulate": 2}, marks=CUDA)])
def test_a_captured_run_on_a_gpu_is_resumed_exactly(tmp_path, captures, settings):
    train_toy(tmp_path / "whole", capture=True, **settings)
    train_toy(tmp_path / "parts", capture=True, **settings | {"epochs": 3})
    train_toy(tmp_path / "parts", capture=True, **settings)
    assert any(one.ready for one in captures)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)

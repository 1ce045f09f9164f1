"""Whole runs of RAM: a killed run resumes exactly, two processes equal one, and metrics are checked by hand."""

import json
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.engine.test_resume import assert_same
from tests.fake_mnist import write_mnist
from tests.whole_runs import assert_close, elsewhere, in_two_processes, steps, train
from vision_attn.attention.reinforce import MovingAverage
from vision_attn.commands import main
from vision_attn.configuration.run_folder import open_run
from vision_attn.data.digits.clutter import Clutter
from vision_attn.data.random_streams import FRESH
from vision_attn.metrics.errors import predictions
from vision_attn.models.policies import Gaussian
from vision_attn.tasks.classify import Classification

BATCHES, GLIMPSES = 3, 3
TINY = {
    "task.model.num_glimpses": GLIMPSES, "task.model.retina.size": 6, "task.model.retina.num_scales": 2,
    "task.model.core.hidden_size": 16, "task.model.policy.first_sigma": 0.5, "task.model.policy.batches_to_sigma": 20,
    "data.canvas": 36, "data.pieces": 2, "data.batch_size": 8, "data.epoch_images": 8 * BATCHES, "data.val_images": 8,
    "data.test_images": 20, "run.epochs": 2, "run.warmup": 0, "run.device": "cpu", "run.log_every": 1,
    "run.precision": "fp32", "schedule": "null", "task.at_test": "mean",
    "task.reward_by": "answer",
}  # fmt: skip


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> str:
    return write_mnist(tmp_path_factory.mktemp("mnist"))


def command(folder: Path, digits: str, baseline: str, **settings) -> list[str]:
    """The command line that trains a tiny RAM."""
    settings |= {"run.folder": folder, "data.folder": digits}
    settings |= {"task.reinforce.baseline": f"vision_attn.attention.reinforce.{baseline}"}
    return train("ram_cluttered60", **TINY | settings)


def die_before(epoch: int, batch: int) -> None:
    """Kill this process when it asks for that batch."""
    draw = Clutter.sample

    def draw_or_die(source: Clutter, name: str, stream: tuple[int, ...], num_images: int) -> torch.Tensor:
        if stream == (FRESH, 0, epoch, batch):
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(source, name, stream, num_images)

    Clutter.sample = draw_or_die


def draw_jointly(change: Callable[[object, str, Callable], None] = setattr) -> None:
    """Make the samples of training depend on the joined batch alone, and the loss on the samples."""
    change(Gaussian, "noise", joint_noise)
    change(Classification, "initialise", initialise)


def joint_noise(policy: Gaussian, like: torch.Tensor, mode: str) -> torch.Tensor:
    """Noise for the joined batch, which depends only on its number; each process takes the part of its images."""
    rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    generator = torch.Generator().manual_seed(int(policy.batches))
    glimpses, images, *rest = like.shape
    joint = torch.randn(glimpses, images * world, *rest, generator=generator)
    return joint[:, rank::world] * (policy.sigma if mode == "sample" else 0)


@torch.no_grad()
def initialise(task: Classification) -> None:
    """Weights so large that other glimpses often give other answers, and a moving average that starts at zero: normally
    it starts at the mean of the first batch, of which each of two processes only knows its part."""
    for weight in task.parameters():
        weight.mul_(2)
    if isinstance(task.reinforce.baseline, MovingAverage):
        task.reinforce.baseline.number.fill_(1e-6)


# Killed in the middle of an epoch of which every step was saved, or none.
@pytest.mark.parametrize("baseline, save_every", [("MovingAverage", 0), ("Learned", 600)])
def test_a_killed_run_resumes_exactly(digits, tmp_path, baseline, save_every):
    """The first location is sampled too. Schedules and baselines are among the weights that are compared."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings = {"run__save_every": save_every, "task__model__first": "random"}
    assert main(command(whole, digits, baseline, **settings)) == 0
    process = elsewhere(command(killed, digits, baseline, **settings), partial(die_before, 1, 2))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    steps = json.loads((killed / "last/position.json").read_text())["step"]
    assert steps == (BATCHES + 2 if save_every == 0 else BATCHES)
    assert load_file(killed / "last/model.safetensors")["model.policy.batches"] == steps
    assert main(command(killed, digits, baseline, **settings)) == 0
    assert_same(killed, whole)
    weights = load_file(whole / "last/model.safetensors")
    assert weights["model.policy.batches"] == 2 * BATCHES
    if baseline == "MovingAverage":
        assert weights["reinforce.baseline.total"] > 0 and weights["reinforce.baseline.number"] > 0


@pytest.mark.parametrize("baseline", ["Learned", "MovingAverage"])
def test_two_processes_equal_one_with_the_joined_batch(digits, tmp_path, monkeypatch, baseline):
    """Each process samples by itself; given the samples of one process for the joined batch, two compute the same."""
    one, two = tmp_path / "one", tmp_path / "two"
    settings = {"optimizer": "torch.optim.SGD", "optimizer__lr": 0.001}
    draw_jointly(monkeypatch.setattr)  # a run takes no noise
    assert main(command(one, digits, baseline, **settings)) == 0
    in_two_processes(command(two, digits, baseline, **settings), draw_jointly)
    sums_over_a_part = [f"reinforce.baseline.{name}" for name in ("total", "number") if baseline == "MovingAverage"]
    assert_close(one, two, number=2 * BATCHES, besides=sums_over_a_part)
    assert sum(step["advantage"] for step in steps(one)) > 0.1  # or the policy would not have been trained


def test_the_sigma_schedule_restarts_where_a_run_starts_from_another(digits, tmp_path):
    assert main(command(tmp_path / "first", digits, "Learned")) == 0
    settings = {"run__start_from": tmp_path / "first", "run__epochs": 1}
    assert main(command(tmp_path / "second", digits, "Learned", **settings)) == 0
    batches = [
        load_file(tmp_path / run / "last/model.safetensors")["model.policy.batches"] for run in ("first", "second")
    ]
    assert batches == [2 * BATCHES, BATCHES]


def test_a_run_is_measured_and_shown(digits, tmp_path):
    """By the command, and by hand."""
    folder, out = tmp_path / "run", tmp_path / "out"
    assert main(command(folder, digits, "LeaveOneOut", run__epochs=1)) == 0
    assert main(["eval", str(folder), "--device=cpu", f"--out={out}", "--show=2"]) == 0
    measured = json.loads((out / "metrics_test.json").read_text())

    again: list[dict] = []  # in three batches, by one process and by two, which sample the same
    for start in (main, partial(in_two_processes, change=print)):
        start(["eval", str(folder), "--device=cpu", "--data.batch_size=8", f"--out={tmp_path / 'again'}"])
        again.append(json.loads((tmp_path / "again" / "metrics_test.json").read_text()))
        assert again[-1].pop("seconds") > 0 and again[-1].pop("time")
    assert again[1].pop("processes") == 2 and again[0] == again[1] and again[0]["error"] == measured["error"]

    task, source, _ = open_run(folder / "best")  # what a user would send to a friend
    source.prepare(task)
    right = on_digit = 0
    for images, labels, boxes in source.split("test"):
        with torch.no_grad():
            glance = task.model(images, mode="mean")
        hit = predictions(glance)[:, -1] == labels
        x, y = glance.locations[:, 0, -1].T
        inside = (boxes[:, 0] <= x) & (x <= boxes[:, 2]) & (boxes[:, 1] <= y) & (y <= boxes[:, 3])
        right, on_digit = right + int(hit.sum()), on_digit + int((hit & inside).sum())
    assert measured["error"] == measured["error_mean"] == 100 * (20 - right) / 20 < 100
    assert measured["error_low"] < measured["error"] < measured["error_high"]
    assert {"error_sample", "error_copies"} <= measured.keys()
    assert measured["last_glimpse_on_digit"] == on_digit / right
    assert measured["pixels"] == GLIMPSES * 2 * 6 * 6 + 12 * 12  # of the context
    assert measured["multiply_adds"] > GLIMPSES * 4 * 16 * (256 + 16)  # the core alone
    page, *pictures = sorted((out / "pictures_test").iterdir(), key=lambda path: (path.suffix != ".html", path))
    sources = re.findall(r'src="(.*?)"', page.read_text())
    assert page.name == "index.html" and sources == ["gallery.png", "01.gif", "02.gif"]
    shown = [Image.open(path) for path in pictures]
    assert [Path(image.filename).name for image in shown] == ["01.gif", "01.png", "02.gif", "02.png", "gallery.png"]
    assert shown[0].n_frames == GLIMPSES and min(min(image.size) for image in shown) > 36

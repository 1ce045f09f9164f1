"""Whole runs by the command, for tests of tasks: two steps of a config, runs in other processes, what a run left."""

import json
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.engine.test_resume import lines
from tests.fake_mnist import write_mnist
from tests.ports import free_port
from tests.scoring import quickly
from vision_attn.commands import main
from vision_attn.metrics.coco import captions

CONFIGS = Path(__file__).parents[1] / "configs"

processes = multiprocessing.get_context("forkserver")  # torch and numba are imported once, for all of them
processes.set_forkserver_preload(
    [
        "torch._dynamo", "torch.utils.flop_counter", "PIL.Image", "charset_normalizer",
        "vision_attn.configuration.config", "vision_attn.configuration.run_folder", "vision_attn.engine.fit",
        "vision_attn.tasks.classify", "vision_attn.tasks.caption", "vision_attn.data.digits.clutter",
        "vision_attn.data.scenes.scenes", "vision_attn.models.ram", "vision_attn.fast.loops",
    ]
)  # fmt: skip


def train(config: str, **settings) -> list[str]:
    """What `main` trains a config with. `run__epochs` is `run.epochs`, and overrides it."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return ["train", str(CONFIGS / f"{config}.yaml"), *(f"--{name}={value}" for name, value in named.items())]


def steps(folder: Path) -> list[dict]:
    """What a run logged of each step of training."""
    return [line for line in lines(folder) if "loss" in line]


def two_steps(config: str, folder: Path, **settings) -> dict[str, float]:
    """Take two steps by a config on made-up digits, and return what is measured of them on the test split."""
    run = folder / "run"
    settings = {
        "data.folder": write_mnist(folder / "mnist"), "run.folder": run, "run.epochs": 1, "run.warmup": 0,
        "run.device": "cpu", "run.log_every": 1, "run.sanity_check": "false",
    } | settings  # fmt: skip
    assert main(train(config, **settings)) == 0
    losses = [step["loss"] for step in steps(run)]
    assert len(losses) == 2 and all(map(math.isfinite, losses))
    assert main(["eval", str(run), "--device=cpu", f"--out={folder}"]) == 0
    return json.loads((folder / "metrics_test.json").read_text())


def elsewhere(argv: list[str], change: Callable[[], None], **environment: str) -> multiprocessing.Process:
    """`main(argv)` in another process, on which `change` was made first, and which scores captions itself."""
    process = processes.Process(target=_run, args=(argv, change, environment))
    process.start()
    return process


def _run(argv: list[str], change: Callable[[], None], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    captions.run = quickly
    change()
    sys.exit(main(argv))


def in_two_processes(argv: list[str], change: Callable[[], None]) -> None:
    """`main(argv)` as two processes that share the work, as torchrun starts them."""
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    both = [elsewhere(argv, change, **meeting, RANK=rank, LOCAL_RANK=rank) for rank in "01"]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]


def assert_close(one: Path, other: Path, *, number: int, besides: Collection[str] = (), near: float = 1e-7) -> None:
    """All lines of the log, those of `number` steps among them, and every weight `besides` these are the same up to
    rounding. near: how much numbers of the log may differ in any case."""
    assert len(steps(one)) == number
    for line, again in zip(lines(one), lines(other), strict=True):
        for each in (line, again):
            each.pop("seconds", None), each.pop("items_per_second", None), each.pop("waits", None)
        # How far maps move is a sum of differences of weights near 1/196, each rounded by up to 3e-10.
        assert again == pytest.approx(line, rel=1e-5, abs=near)
    weights = [load_file(folder / "last/model.safetensors") for folder in (one, other)]
    assert weights[0].keys() == weights[1].keys() and weights[0].keys() >= set(besides)
    for name in weights[0].keys() - set(besides):
        torch.testing.assert_close(weights[1][name], weights[0][name], rtol=1e-5, atol=1e-6)

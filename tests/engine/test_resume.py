"""A run that is killed, stopped or starved of disk goes on exactly, or says why not."""

import json
import os
import random
import signal
import time
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from toy import Server

from vision_attn.engine.run_folder.folders import lock_folder


@pytest.fixture(scope="module")
def server():
    return Server.shared()


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    """A run that nothing disturbed, which saves after every step."""
    folder = tmp_path_factory.mktemp("whole")
    code, output = server.train(folder, save_every=0)
    assert code == 0, output
    return folder


SAVED_LESS = ("last", "best")
"""What must be the same where the one run saved more often than the other."""


def lines(folder: Path) -> list[dict]:
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if name not in ("seconds", "items_per_second", "waits")}
        for line in read
    ]


def tensors(tree, prefix="") -> dict[str, torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return {prefix: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return {name: tensor for key, part in items for name, tensor in tensors(part, f"{prefix}/{key}").items()}


def assert_same(one: Path, other: Path, *, parts: Collection[str] = ("last", "previous", "best")) -> None:
    """Every weight, average, moment and random state is the same to the bit, and so is every logged line."""
    for part in parts:
        assert (one / part / "model.safetensors").read_bytes() == (other / part / "model.safetensors").read_bytes()
    trainers = [tensors(torch.load(folder / "last" / "trainer.pt", weights_only=True)) for folder in (one, other)]
    assert trainers[0].keys() == trainers[1].keys() and len(trainers[0]) > 20
    assert all(torch.equal(trainers[0][name], trainers[1][name]) for name in trainers[0])
    assert lines(one) == lines(other)
    for part in ("", *parts):  # and nothing is left over
        assert {path.name for path in (one / part).iterdir()} == {path.name for path in (other / part).iterdir()}


@pytest.mark.parametrize("start", range(0, 12, 2))
def test_killed_at_any_touch_of_a_file(server, whole, tmp_path, start):
    """Each process of the run dies a few file operations after the one before died, until one lives to the end."""
    generator = random.Random(start)
    code, deaths = -signal.SIGKILL, 0
    while code == -signal.SIGKILL:
        touches = start + generator.randrange(150)
        code, output = server.train(tmp_path, save_every=0, die_at=touches)
        deaths += code == -signal.SIGKILL
    assert code == 0, output
    assert_same(tmp_path, whole)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("moment", ["TOY_SIGNAL", "TOY_SIGNAL_IN_VALIDATION"])
def test_asked_to_stop_saves_and_goes_on(server, whole, tmp_path, number, code, moment):
    ended, output = server.train(tmp_path, environment={moment: str(int(number))})
    assert ended == code and "stopped " in output and "run the same command again to resume" in output
    assert json.loads((tmp_path / "last" / "position.json").read_text())["step"] in (4, 6)
    ended, output = server.train(tmp_path)
    assert ended == 0, output
    assert_same(tmp_path, whole, parts=SAVED_LESS)


@pytest.mark.parametrize("limit", [500, 2000, 8000])
def test_full_disk_keeps_the_checkpoint_before(server, whole, tmp_path, limit):
    """The limit strikes the log, the weights or the rest of a checkpoint: one line says so, and nothing is lost."""
    code, output = server.train(tmp_path, environment={"TOY_FILE_LIMIT": str(limit)})
    last = output.splitlines()[-1]
    assert code == 1 and last.startswith("UserError: ")
    assert "could not be written" in last and "large" in last
    assert json.loads((tmp_path / "last" / "position.json").read_text())["epoch"] == 1
    code, output = server.train(tmp_path)
    assert code == 0, output
    assert_same(tmp_path, whole, parts=SAVED_LESS)


def test_second_process_is_refused_and_a_killed_one_lets_go(server, whole, tmp_path):
    process = server.start(tmp_path, environment={"TOY_SIGNAL": str(int(signal.SIGSTOP))})
    while not (tmp_path / "last" / "position.json").exists():
        time.sleep(0.01)
    code, output = server.train(tmp_path)
    assert code == 1 and f"{tmp_path} is being trained by process {process}" in output
    os.kill(process, signal.SIGKILL)
    assert server.wait(process)[0] == -signal.SIGKILL
    code, output = server.train(tmp_path)
    assert code == 0, output
    assert_same(tmp_path, whole, parts=SAVED_LESS)


def test_finished_run_says_so_and_returns_its_best(server, whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    code, output = server.train(whole)
    best = json.loads((whole / "best" / "metrics_val.json").read_text())
    assert code == 0 and f"{whole} is finished after epoch 3" in output
    assert json.loads(output.splitlines()[-2]) == {name: best[name] for name in ("error", "images", "noise")}
    assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.mark.parametrize("setting", [{"seed": 1}, {"accumulate": 1}, {"warmup": 1}, {"batch": 4}])
def test_changed_settings_are_refused(server, tmp_path, setting):
    assert server.train(tmp_path, environment={"TOY_SIGNAL": str(int(signal.SIGTERM))})[0] == 143
    code, output = server.train(tmp_path, **setting)
    said = f"holds a run with other settings ({next(iter(setting))} was"
    if "batch" in setting:
        said = "the data had 6 training batches when this run began, "
    assert code == 1 and said in output


def test_a_data_loaders_worker_does_not_hold_the_lock(tmp_path):
    read, write = os.pipe()
    with lock_folder(tmp_path):
        worker = os.fork()
        if not worker:
            os.write(write, b"!")
            time.sleep(60)
            os._exit(0)
    os.read(read, 1)  # The worker is up.
    try:
        with lock_folder(tmp_path):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)

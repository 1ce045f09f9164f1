"""Two processes train as one would on the joined batch, and leave together."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.run import main as torchrun
from toy import Server

from tests.engine.test_resume import SAVED_LESS, assert_same
from tests.ports import free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server():
    return Server.shared()


def start_two(server: Server, folder: Path, **settings) -> list[int]:
    """What torchrun does for two processes, forked in a moment."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    more = settings.pop("environment", {})
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    return [server.start(folder, environment=shared | rank | more, **settings) for rank in ranks]


def train_two(server: Server, folder: Path, **settings) -> list[tuple[int, str]]:
    return [server.wait(process) for process in start_two(server, folder, **settings)]


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_torchrun_of_two_equals_one_with_the_joined_batch(server, tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    code, output = server.train(one, dropout=0.0)
    assert code == 0, output
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)}
    try:  # in this process, which has imported torch
        torchrun(["--standalone", "--nproc-per-node=2", str(ROOT / "tests/toy.py"), str(two), '{"dropout": 0.0}'])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for part in ("last", "best"):
        weights = [load_file(folder / part / "model.safetensors") for folder in (one, two)]
        assert weights[0].keys() == weights[1].keys()
        for name in weights[0]:  # among them the buffer that moves with each batch
            torch.testing.assert_close(weights[1][name], weights[0][name], rtol=1e-6, atol=1e-6)
    assert len(lines(one)) == len(lines(two)) > 3
    for alone, joined in zip(lines(one), lines(two), strict=True):
        assert alone.keys() == joined.keys()
        for name in alone.keys() - {"seconds", "items_per_second", "waits"}:
            assert joined[name] == pytest.approx(alone[name], rel=1e-5), name


def test_two_killed_processes_go_on_exactly_and_saving_changes_no_line_of_the_log(server, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert [code for code, _ in train_two(server, whole)] == [0, 0]
    processes = start_two(server, killed, save_every=0, environment={"TOY_SIGNAL": str(int(signal.SIGSTOP))})
    while not (killed / "last" / "position.json").exists():
        time.sleep(0.01)
    for process in processes:
        os.kill(process, signal.SIGKILL)
    assert [server.wait(process)[0] for process in processes] == [-signal.SIGKILL] * 2
    for code, output in train_two(server, killed, save_every=0):
        assert code == 0, output
    assert_same(killed, whole, parts=SAVED_LESS)


@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_is_killed_the_other_ends_and_both_go_on_exactly(server, tmp_path, rank):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert [code for code, _ in train_two(server, whole)] == [0, 0]
    both = start_two(server, killed, environment={"TOY_KILLED_RANK": str(rank)})
    ended = [server.wait(process) for process in both]
    assert ended[rank][0] == -signal.SIGKILL
    code, output = ended[1 - rank]
    last = output.splitlines()[-1]
    assert code == 1 and last.startswith("UserError: another process of this run has ended, or ")
    for code, output in train_two(server, killed):
        assert code == 0, output
    assert_same(killed, whole)


@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_stands_still_the_other_ends(server, tmp_path, rank):
    """As if its machine had vanished: its connections stay open."""
    both = start_two(server, tmp_path, environment={"TOY_STOPPED_RANK": str(rank), "TOY_PATIENCE": "2"})
    code, output = server.wait(both[1 - rank])
    os.kill(both[rank], signal.SIGKILL)
    server.wait(both[rank])
    assert code == 1 and f"or its machine does not answer, so process {1 - rank} ends" in output, output


def test_one_signal_stops_both_after_the_same_step(server, tmp_path):
    processes = start_two(server, tmp_path, environment={"TOY_SIGNAL_RANK": "1"})
    ended = [server.wait(process) for process in processes]
    assert [code for code, _ in ended] == [143, 143], ended
    assert json.loads((tmp_path / "last" / "position.json").read_text())["step"] == 4
    for code, output in train_two(server, tmp_path):
        assert code == 0, output


def test_both_name_the_batch_that_is_not_finite(server, tmp_path):
    for code, output in train_two(server, tmp_path, bad=20):
        assert code == 1 and "the loss is not finite; ids of its batch: " in output and "point20" in output, output


def test_weights_without_a_gradient_are_named(server, tmp_path):
    code, output = server.train(tmp_path / "one", environment={"TOY_IDLE": "1"})
    assert code == 0, output
    for code, output in train_two(server, tmp_path / "two", environment={"TOY_IDLE": "1"}):
        assert code == 1 and "every weight needs a gradient in each step, and idle.weight has none, as 1 more" in output

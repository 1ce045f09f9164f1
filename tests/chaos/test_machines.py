"""Two groups of torchrun stand in for two machines: together they train as one process would, and one may die."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from toy import Server

from tests.ports import free_port

TESTS = Path(__file__).parents[1]
SETTINGS = {"dropout": 0.0, "save_every": 0}


def start_machines(folder: Path, **environment: str) -> list[subprocess.Popen]:
    """What one would type on each of two machines that share a disk, for two processes each."""
    place = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d",
        f"--rdzv-endpoint={place}", "--rdzv-id=test", "--local-addr=127.0.0.1", "--max-restarts=0",
        str(TESTS / "toy.py"), str(folder), json.dumps(SETTINGS),
    ]  # fmt: skip
    places = os.environ | {"PYTHONPATH": str(TESTS.parent), "OMP_NUM_THREADS": "1"} | environment
    return [subprocess.Popen(command, env=places, start_new_session=True, stderr=subprocess.DEVNULL) for _ in range(2)]


def end(machines: list[subprocess.Popen]) -> None:
    for machine in machines:
        if machine.poll() is None:
            os.killpg(machine.pid, signal.SIGKILL)
        machine.wait()


def kill_workers(folder: Path) -> None:
    """Kill the processes that train in `folder`: stopped ones do not end with their launcher."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder) in (process / "cmdline").read_text().split("\0"):
                os.kill(int(process.name), signal.SIGKILL)


def test_one_machine_of_two_is_killed(tmp_path: Path, tally: Any) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    code, output = Server.shared().train(one, **SETTINGS)
    assert code == 0, output
    # All four processes stop at the second epoch until the second machine is killed, after its first checkpoint.
    machines = start_machines(two, TOY_SIGNAL=str(int(signal.SIGSTOP)))
    try:
        until = time.monotonic() + 300
        while not (two / "last" / "position.json").exists() and time.monotonic() < until:
            time.sleep(0.1)
        os.killpg(machines[1].pid, signal.SIGKILL)  # a launcher's workers have groups of their own
    finally:
        end(machines)
    kill_workers(two)
    assert json.loads((two / "last" / "position.json").read_text())["epoch"] < 3
    machines = start_machines(two)
    try:
        assert [machine.wait(timeout=300) for machine in machines] == [0, 0]
    finally:
        end(machines)
    for part in ("last", "best"):
        weights = [load_file(folder / part / "model.safetensors") for folder in (one, two)]
        for name, weight in weights[0].items():
            torch.testing.assert_close(weights[1][name], weight, rtol=1e-6, atol=1e-6)
    tally.add(None)
    tally.check()

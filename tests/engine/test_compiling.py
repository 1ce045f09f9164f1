"""Compiling: the user is told, and the first Ctrl-C ends it, whatever the compiler does, with all of its processes."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.engine.test_resume import lines
from tests.whole_runs import elsewhere, train
from vision_attn.engine import compiling
from vision_attn.tasks.answer import Answering

SETTINGS = {
    "data.stories": 10, "data.questions": 2, "data.test_stories": 2, "data.batch_size": 5, "task.model.num_hops": 1,
    "run.epochs": 2, "run.device": "cpu", "run.show": 0, "run.log_every": 1, "run.compile": "true",
}  # fmt: skip
LONG = 3600


def in_python() -> None:
    while True:
        pass


def in_another_process() -> None:
    subprocess.run(["sleep", str(LONG)])


def in_threads() -> None:
    """As torch does: each thread goes on with the next one when the compiler of C++ has failed."""
    for _ in range(2):
        threading.Thread(target=lambda: [in_another_process() for _ in range(99)]).start()
    time.sleep(LONG)


def in_c() -> None:
    """Where Python's handler of signals does not run: a mutex that is locked twice."""
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


def compiled_by(work, output: Path) -> None:
    """Let `work` be done where runs are compiled. What is printed goes to a file."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1), os.dup2(file, 2)

    def backend(graph, inputs):
        print("the compiler works", flush=True)
        work and work()
        return graph.forward

    compiling.GRACE, compiling.EVERY = 0.1, 0.2
    Answering.compile = lambda task, **_: torch.nn.Module.compile(task, backend=backend)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("work", "number", "others"),
    [
        (in_python, signal.SIGINT, 0),
        (in_another_process, signal.SIGTERM, 1),
        (in_threads, signal.SIGINT, 2),
        (in_c, signal.SIGINT, 0),
    ],
)
def test_the_first_signal_ends_the_compiler_and_its_processes(tmp_path: Path, work, number: int, others: int) -> None:
    settings = SETTINGS | {"run.folder": tmp_path / "run"}
    output = tmp_path / "printed.txt"
    process = elsewhere(train("memory_stories", **settings), partial(compiled_by, work, output))
    while (
        not (output.exists() and "still compiling" in output.read_text())
        or len(compiling.descendants(process.pid)) < others
    ):
        assert process.is_alive(), output.read_text()
        time.sleep(0.05)
    started = compiling.descendants(process.pid)
    os.kill(process.pid, number)
    process.join(timeout=120)
    printed = output.read_text()
    assert process.exitcode == 128 + number and not any(map(alive, started)), printed
    assert printed.count("compiling (run.compile)") == printed.count("stopped while compiling") == 1
    assert "goes on from the last checkpoint, or begins again" in printed and "Traceback" not in printed


def test_a_run_that_was_stopped_while_compiling_begins_again_and_says_so_once(tmp_path: Path) -> None:
    settings, printed = SETTINGS | {"run.folder": tmp_path / "run"}, []
    for work, code in ((interrupted, 130), (None, 0)):
        output = tmp_path / f"{code}.txt"
        process = elsewhere(train("memory_stories", **settings), partial(compiled_by, work, output))
        process.join()
        printed.append(output.read_text())
        assert process.exitcode == code, printed[-1]
    assert "stopped while compiling" in printed[0] and "stopped while" not in printed[1]
    assert printed[1].count("compiling (run.compile)") == 1
    assert {line["epoch"] for line in lines(tmp_path / "run")} == {1, 2}


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(LONG)

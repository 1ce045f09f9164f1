"""Run jobs in separate processes, so that a hang or a crash in one does not affect the others.

A job is a function of `scorers`. It runs in a new Python process, the leader of a process group that includes the Java
processes it starts. The whole group is killed when the job is done, when its time is up, when
the caller is interrupted, and (see `child`) when the caller is killed. Its files are in the caller's folder.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import vision_attn
from vision_attn.metrics.coco.java import plain_environment
from vision_attn.system.console import progress

# Appended, not prepended: if the package is in site-packages, that folder must not shadow the standard library.
ENTRY = (
    "import sys; sys.path.append(sys.argv.pop(1)); from vision_attn.metrics.coco.child import main; main(*sys.argv[1:])"
)


class JobResult(NamedTuple):
    """The result of a job: its value, or an error in one line."""

    value: Any = None
    error: str | None = None


def run(jobs: Iterable[str], folder: Path, *, time_limit: int | float) -> dict[str, JobResult]:
    """Run `jobs` in parallel on the files in `folder`, for at most `time_limit` seconds."""
    deadline = time.monotonic() + time_limit
    processes: dict[str, subprocess.Popen] = {}
    answers = {}
    try:
        for job in jobs:
            processes[job] = start(job, folder)
        bar = progress(processes.items(), what="metrics", unit="metric", total=len(processes))
        for job, process in bar:
            try:
                wait(process, deadline, bar.refresh)
                answers[job] = read_answer(job, folder, process.returncode)
            except subprocess.TimeoutExpired:
                answers[job] = JobResult(error=f"no answer within {time_limit:g} s, so it was stopped")
            end(process)
    finally:
        for process in processes.values():
            end(process)
    return answers


def wait(process: subprocess.Popen, deadline: float, tell: Callable[[], Any]) -> None:
    """Wait for `process`, calling `tell` every second. Raises TimeoutExpired at `deadline`, in monotonic seconds."""
    while True:
        left = deadline - time.monotonic()
        try:
            process.wait(max(0.0, min(1.0, left)))
            return
        except subprocess.TimeoutExpired:
            if left <= 1.0:
                raise
            tell()


def start(job: str, folder: Path) -> subprocess.Popen:
    """Start `job` in a new session and process group, which the terminal's Ctrl-C does not reach."""
    root = Path(vision_attn.__file__).parent.parent
    with open(folder / f"{job}.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", ENTRY, str(root), job, str(folder)],
            cwd=folder,  # not the user's folder: a json.py there would shadow the standard library's
            env={**plain_environment(os.environ), "TMPDIR": str(folder)},
            stdin=subprocess.PIPE,  # never written to; end of file tells the child that this process has ended
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def end(process: subprocess.Popen) -> None:
    """Kill what is left of the group of `process`, and wait for its leader."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses if only a zombie is left
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows
        process.kill()
    process.wait()
    if process.stdin:
        process.stdin.close()


def read_answer(job: str, folder: Path, exit_status: int) -> JobResult:
    """Read the answer of `job` from `folder`. An error also quotes the first exception in its log."""
    path = folder / f"{job}.json"
    error = f"its process ended with status {exit_status} and without an answer"
    if path.exists():
        value, error = json.loads(path.read_text(encoding="utf-8"))
        if error is None:
            return JobResult(value)
    log = (folder / f"{job}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    complaints = [line.strip() for line in log if "Exception" in line or "Error" in line]
    return JobResult(error=": ".join([error, *complaints[:1]]))

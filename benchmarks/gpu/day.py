"""Run a prepared day on a GPU: measurements in order, each part within its time, each result written at once.

`python -m benchmarks gpu --day 10 --out FOLDER` runs the parts one after the other, as processes of their own. Each has
a log, `NUMBER_NAME.log`, whose lines begin with the seconds since its start, and `day.md` sums them up after each. A
part that takes longer than its time is interrupted by Ctrl-C, so a training saves; the last ones have what is left.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PATIENCE = 15.0
"""Seconds from Ctrl-C until a part is killed."""
KEPT = 6
"""The number of last lines of a log that day.md repeats."""
TESTS = {"VISION_ATTN_SHAPES": "0"}


class Part(NamedTuple):
    """A process of the day."""

    name: str
    words: Sequence[str]
    """The command line after `python`."""
    minutes: float
    """The largest number of minutes that it may take; less where the day ends before."""
    settings: Mapping[str, str] = {}
    """Variables of its environment."""


class Result(NamedTuple):
    """The outcome of a part."""

    part: Part
    seconds: float
    status: str
    log: Path


def day(folder: Path, minutes: float, *, quick: bool = False) -> list[Result]:
    """Run the parts within `minutes`, and write their logs and day.md into `folder`. quick: the same parts at a size
    that a CPU does in seconds."""
    return all_carried_out(parts(folder, minutes, quick), folder, minutes)


def all_carried_out(parts: Iterable[Part], folder: Path, minutes: float, patience: float = PATIENCE) -> list[Result]:
    """Run parts one after the other within `minutes`."""
    folder.mkdir(parents=True, exist_ok=True)
    end, results = time.monotonic() + 60 * minutes, list[Result]()
    for number, part in enumerate(parts, start=1):
        left = end - time.monotonic() - patience
        log = folder / f"{number}_{part.name}.log"
        if left > 0:
            results.append(carried_out(part, log, min(left, 60 * part.minutes), patience))
        else:
            results.append(Result(part, 0.0, "no time was left", log))
        (folder / "day.md").write_text(told(results), encoding="utf-8")
    return results


def parts(folder: Path, minutes: float, quick: bool) -> Iterator[Part]:
    """Yield the parts of the day: tests, trainings as a user starts them, speeds, rows of papers."""
    program = ["-m", "vision_attn"]
    if quick:
        tiny = ["--data.epoch_images=8", "--data.val_images=4", "--run.epochs=1", "--run.warmup=0", "--run.device=cpu"]
        yield Part("tests", ["-m", "pytest", "-q", "-m", "gpu", "--collect-only", "tests/test_gpu.py"], 1)
        run = f"--run.folder={folder / 'runs' / 'vit_scenes'}"
        yield Part("vit_scenes", [*program, "train", "vit_scenes", run, "--data.batch_size=4", *tiny], 1)
        yield Part("speeds", ["-m", "benchmarks", "scores", "--quick", "--threads=1"], 1)
        rows = ["memory_task1", "--quick", "--show=0", f"--out={folder / 'rows'}"]
        yield Part("rows", [*program, "reproduce", *rows], 1)
        return
    processes = ["-n", "12", "--dist=worksteal"] if find_spec("xdist") else []
    yield Part("tests", ["-m", "pytest", "-q", "-m", "gpu", *processes], 2.5, TESTS)
    for name, options, most in STARTED:
        run = f"--run.folder={folder / 'runs' / name}"
        yield Part(name, [*program, "train", name, run, "--run.epochs=3", "--run.log_every=1", *options], most)
    yield Part("speeds", ["-m", "benchmarks", "gpu"], 2)
    rows = f"--out={folder / 'rows'}"
    yield Part("best_rows", [*program, "reproduce", *BEST, rows], minutes)
    yield Part("rows", [*program, "reproduce", "--all", f"--out={folder / 'more_rows'}"], minutes)


STARTED: list[tuple[str, list[str], float]] = [
    ("ram_cluttered60", [], 0.5),
    ("draw_mnist64", [], 1),
    ("sat_photographs", [], 1.5),
    ("sat_photographs_cider", ["--run.start_from=weights/photographs"], 1.5),
    ("sat_soft_flickr8k", [], 1),
]
"""Trainings of three epochs: the config, options, and the largest number of minutes."""
BEST = ["draw_mnist64", "ram_cluttered60", "ram_cluttered100", "draw_reader_cluttered100"]
"""Rows that come first: those on which the documents wait, or that other rows start from."""


def carried_out(part: Part, log: Path, seconds: float, patience: float = PATIENCE) -> Result:
    """Run a part for at most `seconds`; its output goes to `log`, with the time of each line."""
    began, told_to_stop = time.monotonic(), False
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, **part.settings}
    process = subprocess.Popen(
        [sys.executable, *part.words], cwd=ROOT, env=environment, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    reader = threading.Thread(target=_kept, args=(process, log, began), daemon=True)
    reader.start()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        told_to_stop = True
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    finally:
        _end(process)
        reader.join(5)
    spent = time.monotonic() - began
    stopped = "stopped after its time, " if told_to_stop else ""
    return Result(part, spent, f"{stopped}exit status {process.returncode}", log)


def _end(process: subprocess.Popen) -> None:
    """Kill a process and those that it has started, as far as they still run."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _kept(process: subprocess.Popen, log: Path, began: float) -> None:
    with open(log, "w", encoding="utf-8") as file:
        for line in process.stdout or ():
            if text := line.split("\r")[-1].rstrip():
                file.write(f"{time.monotonic() - began:8.2f}  {text}\n")
                file.flush()


def told(results: Sequence[Result]) -> str:
    """The summary in Markdown: the seconds of each part, when a training began and ended its epochs, and its end."""
    lines = ["| part | seconds | |", "|---|---|---|"]
    lines += [f"| {result.part.name} | {result.seconds:.0f} | {result.status} |" for result in results]
    for result in results:
        text = result.log.read_text(encoding="utf-8").splitlines() if result.log.is_file() else []
        marked = [line for line in text if re.search(r"training on|epoch \d+/|waits|written to|passed|failed", line)]
        shown = list(dict.fromkeys([*marked, *text[-KEPT:]]))
        lines += [
            "",
            f"## {result.part.name}",
            "",
            f"`python {' '.join(result.part.words)}`",
            "",
            "```text",
            *shown,
            "```",
        ]
    return "\n".join(lines) + "\n"

"""`python -m benchmarks.threads` measures the cost of `run.threads: auto` against the better of one thread and all
threads.

Trains the captioner of `make demo` for some steps with each setting in turn, in processes of their own, on a machine as
it is, or while other processes keep its cores busy (`--busy`). Prints a table: the seconds of the steps with each
setting, from the first step on and so with the trial of `auto`, and the median of each, relative to the better one of
the fixed settings. For the settings of the acceptance:

    python -m benchmarks.threads --busy=2 --steps=100 --rounds=3
    python -m benchmarks.threads --steps=1000 --rounds=3
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.measure import table
from vision_attn import commands
from vision_attn.system.machine import cores, processor
from vision_attn.system.thread_trial import VARIABLES, named

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs" / "sat_soft_scenes.yaml"
SMALL = ["--task.model.hidden_size=8", "--task.model.word_size=8", "--data.batch_size=2"]


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Within this context, this number of processes compute without end."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def train(threads: str, steps: int, *, quick: bool) -> tuple[float, str]:
    """Return the seconds of `steps` steps with this setting of `run.threads`, and the number of threads that was kept.
    quick: whether a smaller captioner is trained, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--run.folder={folder}/run", f"--run.threads={threads}", "--run.device=cpu", "--run.epochs=1"]
        options += ["--run.warmup=0", "--run.validate_every=0", "--run.sanity_check=false", f"--run.log_every={steps}"]
        options += [f"--data.epoch_images={steps * (2 if quick else 32)}", *(SMALL if quick else [])]
        verb = ["train", str(CONFIG), *options]
        if quick:
            status = commands.main(verb)
        else:
            environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
            status = subprocess.run(
                [sys.executable, "-m", "vision_attn", *verb], stdout=subprocess.DEVNULL, env=environment
            ).returncode
        if status:
            raise RuntimeError(f"vision-attn {' '.join(verb)} failed")
        line = json.loads((Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["step"] == steps
    return line["seconds"], named(line["threads"]) if "threads" in line else "none yet"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads", description=__doc__)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="processes that also compute (default: 0)")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="steps of each training (default: 100)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="trainings with each setting (default: 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes, once: tests that it runs, measures nothing")
    given = parser.parse_args()
    steps, rounds = (2, 1) if given.quick else (given.steps, given.rounds)
    most = 1 if given.quick else cores()  # on a busy machine, two steps in all threads may take minutes
    settings = {"1": named(1), str(most): named(most), "auto": "auto"}
    seconds: dict[str, list[float]] = {setting: [] for setting in settings}
    kept: list[str] = []
    with busy(given.busy):
        for number in range(rounds):  # in turn, and back, so that a change of load does not decide
            for setting in list(settings)[:: -1 if number % 2 else 1]:
                taken, threads = train(setting, steps, quick=given.quick)
                seconds[setting].append(taken)
                kept += [threads] * (setting == "auto")
                print(f"{settings[setting]}: {taken:.1f} s, kept {threads}", file=sys.stderr, flush=True)
    best = min(median(seconds[setting]) for setting in settings if setting != "auto")
    rows = [
        [settings[setting], ", ".join(f"{time:.1f}" for time in times), f"{median(times) / best:.2f}"]
        for setting, times in seconds.items()
    ]
    load = f"load {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else ""
    title = f"{processor()}, {cores()} cores, {given.busy} busy processes, {steps} steps, {load}"
    print(table(title, ["threads", "seconds", "to the better fixed setting"], rows))
    print(f"\nauto kept: {', '.join(kept)}")


if __name__ == "__main__":
    main()

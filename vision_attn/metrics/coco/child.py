"""The main function of an isolated process: run one job, write one answer file and exit at once."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from vision_attn.metrics.coco import scorers


def main(job: str, folder: str) -> None:
    """Run the function `job` of `scorers` and write `[value, error]` into `folder`. Never returns."""
    threading.Thread(target=die_with_parent, daemon=True).start()
    try:
        answer = [getattr(scorers, job)(Path(folder)), None]
    except Exception as error:
        answer = [None, " ".join(f"{type(error).__name__}: {error}".split())]
    path = Path(folder) / f"{job}.json"
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(answer), encoding="utf-8")
    os.replace(temporary, path)
    # Skips the interpreter's shutdown, where a lock or a thread could hang.
    os._exit(0)


def die_with_parent() -> None:
    """Kill this process group when standard input is closed, as it is when the parent ends for any reason."""
    while sys.stdin.buffer.read(1):
        pass
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)  # Windows

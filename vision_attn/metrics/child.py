"""The inside of an isolated process: one job, one answer file, and an end that nothing can hold up."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from vision_attn.metrics import scorers


def main(job: str, folder: str) -> None:
    """Run the function `job` of `scorers` and leave `[value, error]` in `folder`; never returns."""
    threading.Thread(target=die_with_parent, daemon=True).start()
    try:
        answer = [getattr(scorers, job)(Path(folder)), None]
    except Exception as error:
        answer = [None, " ".join(f"{type(error).__name__}: {error}".split())]
    path = Path(folder) / f"{job}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(answer), encoding="utf-8")
    os.replace(part, path)
    # Not through the interpreter's shutdown, where a lock or a thread could wait for ever.
    os._exit(0)


def die_with_parent() -> None:
    """Kill our group once the other end of standard input is closed, which death by any cause does."""
    while sys.stdin.buffer.read(1):
        pass
    os.killpg(0, signal.SIGKILL)

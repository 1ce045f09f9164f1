"""A block of `gpu_day`: runs in its own process, yields rows, and writes them to a file after each one.

`python -m benchmarks.gpu.block MODULE:FUNCTION OPTIONS` is what `gpu_day` starts for each block. OPTIONS are `Options`
as JSON. The function takes them and yields `Row`s.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.system.files import replacing

ROOT = Path(__file__).parent.parent.parent
FAILED = "failed"
"""How a `Row` begins that gives an error in place of a result."""


class Options(NamedTuple):
    """What a block is told."""

    block: str
    out: str
    """Folder for the block's JSON, log and archives."""
    runs: str
    """Folder for run folders and caches. What lies there already is resumed or reused."""
    device: str
    """"cpu" or "cuda"."""
    seconds: float
    """Time that the block should take. It is stopped soon after."""
    compile: bool
    """Whether runs are compiled, if that works."""
    quick: bool
    """Tiny sizes: tests that the block runs, measures nothing."""

    @property
    def path(self) -> Path:
        """The file with the block's numbers."""
        return Path(self.out) / f"{self.block}.json"


class Row(NamedTuple):
    """One result."""

    what: str
    said: str
    """The result in words, for the table."""
    numbers: dict[str, Any] = {}


Block = Callable[[Options], Iterator[Row]]


class Record:
    """The file of a block: hardware, versions, status, rows."""

    def __init__(self, path: Path, **content: Any) -> None:
        self.path, self.content = path, content

    @classmethod
    def read(cls, path: Path) -> "Record":
        """The record in `path`; empty if the block wrote none."""
        with suppress(OSError, ValueError):
            return cls(path, **json.loads(path.read_text(encoding="utf-8")))
        return cls(path)

    def write(self, **changes: Any) -> None:
        self.content |= changes
        with replacing(self.path) as temporary:
            temporary.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")


def run(command: Sequence[str], seconds: float, *, group: bool = False, **options: Any) -> int | None:
    """Run a command in the repository for at most `seconds`, then kill it.

    Returns its exit status, or minus the signal that ended it; None if it was killed here. With `group`, everything
    that it started is killed at its end too.
    """
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=group, **options)
    try:
        return process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        if group:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def function(path: str) -> Block:
    """The function "module:name"."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


def main(path: str, options: str) -> int:
    """Run one block. Every row is written and printed as soon as it is there."""
    import torch

    from vision_attn.commands.eval import hardware, versions

    asked = Options(**json.loads(options))
    began = time.monotonic()
    record = Record(asked.path, **asked._asdict(), status="running", rows=[])
    record.write(hardware=hardware(torch.device(asked.device)), versions=versions())
    try:
        for row in function(path)(asked):
            print(f"{row.what}: {row.said}", flush=True)
            spent = round(time.monotonic() - began, 1)
            record.write(rows=[*record.content["rows"], row._asdict()], took=spent)
    except Exception as error:
        traceback.print_exc()
        record.write(status="failed", reason=" ".join(f"{type(error).__name__}: {error}".split())[:300])
        return 1
    failed = sum(row["said"].startswith(FAILED) for row in record.content["rows"])
    reason = {"reason": f"{failed} of {len(record.content['rows'])} failed"} if failed else {}
    record.write(status="failed" if failed else "done", took=round(time.monotonic() - began, 1), **reason)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

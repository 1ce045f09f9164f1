"""Everything that must be measured on a GPU: `python -m benchmarks.gpu.day OUT [BLOCK..]`; docs/gpu.md says how.

Each block runs in its own process with its own time, writes OUT/BLOCK.log and OUT/BLOCK.json, and costs the others
nothing if it fails. A table of all results is printed last, and written to OUT/summary.md.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.gpu.block import Options, Record, run
from benchmarks.measure import table
from vision_attn.data.digits.mnist import locate
from vision_attn.system.files import find, replacing

LATE = 1.1
"""A block is killed after this multiple of its time."""


class Block(NamedTuple):
    """A block: its function, its seconds by default, and a function that raises ValueError if its data is missing."""

    function: str
    seconds: float
    check: Callable[[bool], object]


def nothing(quick: bool) -> None:
    """Needs no data."""


def mnist(quick: bool) -> None:
    """Needs the four files of MNIST."""
    locate("mnist", download=False)


def flickr8k(quick: bool) -> None:
    """Needs photographs, their captions and, unless `quick`, the encoder's weights."""
    for path in ("flickr8k/images", "flickr8k/captions.json"):
        find(path)
    if not quick:
        find("weights/mobilenet_v2_torchvision.fp16.safetensors")


BLOCKS = {
    "check": Block("benchmarks.gpu.check:check", 300, nothing),
    "speed": Block("benchmarks.gpu.speed:speed", 480, nothing),
    "draw64": Block("benchmarks.gpu.runs:draw64", 560, mnist),
    "ram": Block("benchmarks.gpu.runs:ram", 300, mnist),
    "captioners": Block("benchmarks.gpu.runs:captioners", 300, flickr8k),
}
"""In the order in which they run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the blocks and print the table. Returns 1 if a block failed."""
    asked = arguments(argv)
    if asked.quick:
        os.environ["OMP_NUM_THREADS"] = "1"  # a second thread is mostly waited for
    if asked.data:
        os.environ["VISION_ATTN_DATA"] = str(Path(asked.data).resolve())
    device = asked.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    records = []
    for name in [name for name in BLOCKS if name in asked.blocks]:
        block = BLOCKS[name]
        seconds = asked.seconds or block.seconds
        folders = str(asked.out.resolve()), str(asked.runs.resolve())
        options = Options(name, *folders, device, seconds, not asked.no_compile, asked.quick)
        records.append(carry_out(block, options))
        record = records[-1].content
        print(f"{name}: {record['status']}, {record['took']:.0f} s {record.get('reason', '')}", flush=True)
    text = summary(records)
    with replacing(asked.out / "summary.md") as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)
    return int(any(record.content["status"] == "failed" for record in records))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.day", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for logs, numbers and archives of trained runs")
    parser.add_argument("blocks", nargs="*", metavar="BLOCK", help=f"which of {', '.join(BLOCKS)} (default: all)")
    parser.add_argument("--seconds", type=float, help="time of each block (default: its own)")
    parser.add_argument("--data", metavar="FOLDER", help="holds mnist/, flickr8k/ and weights/ ($VISION_ATTN_DATA)")
    parser.add_argument("--runs", type=Path, default=Path("runs/gpu"), help="run folders, resumed if there (runs/gpu)")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--no-compile", action="store_true", help="runs are captured but not compiled")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: tests that it runs, measures nothing")
    asked = parser.parse_args(argv)
    unknown = [name for name in asked.blocks if name not in BLOCKS]
    if unknown:
        parser.error(f"there is no block {unknown[0]!r}: choose from {', '.join(BLOCKS)}")
    if asked.seconds is not None and asked.seconds <= 0:
        parser.error(f"--seconds is {asked.seconds}: give a positive number")
    asked.blocks = asked.blocks or list(BLOCKS)
    return asked


def carry_out(block: Block, options: Options) -> Record:
    """Run one block in its own process. Returns what it wrote, completed if the block could not do so itself."""
    Path(options.out).mkdir(parents=True, exist_ok=True)
    for old in Path(options.out).glob(f"{options.block}.*.tar"):
        old.unlink()
    Record(options.path, **options._asdict(), rows=[]).write(status="running", took=0.0)
    began = time.monotonic()
    with open(options.path.with_suffix(".log"), "wb") as log:
        try:
            block.check(options.quick)
        except ValueError as error:
            log.write(f"{error}\n".encode())
            record = Record.read(options.path)
            record.write(status="skipped", reason=str(error))
            return record
        path, asked = block.function, json.dumps(options._asdict())
        command = [sys.executable, "-u", "-m", "benchmarks.gpu.block", path, asked]
        status = run(command, options.seconds * LATE, group=True, stdout=log, stderr=log)
    record = Record.read(options.path)
    record.write(took=round(time.monotonic() - began, 1))
    if status is None:
        record.write(status="stopped", reason=f"not done after {options.seconds:.0f} s")
    elif record.content["status"] not in ("done", "failed"):
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        record.write(status="failed", reason=f"{how}: see {options.path.with_suffix('.log').name}")
    return record


def summary(records: Sequence[Record]) -> str:
    """The table of all results, in Markdown, with the hardware in its title."""
    rows = []
    for record in (record.content for record in records):
        state = record["status"] + (f": {record['reason']}" if record.get("reason") else "")
        rows.append((record["block"], state, f"{record['took']:.0f} s"))
        rows += [("", row["what"], row["said"]) for row in record["rows"]]
    known = [record.content for record in records if record.content.get("hardware")]
    title = f"{known[0]['hardware']}, torch {known[0]['versions']['torch']}" if known else "Nothing ran"
    if any(record.content["quick"] for record in records):
        title += ", tiny sizes: these numbers measure nothing"
    return table(title, ("block", "what", "result"), rows)


if __name__ == "__main__":
    sys.exit(main())

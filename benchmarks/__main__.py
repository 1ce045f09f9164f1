"""`python -m benchmarks`: all tables; most compare the fast versions with plain torch, measured in the same run."""

import argparse
import os
import sys
import time
from pathlib import Path

import torch

from benchmarks.attention import attention, scores
from benchmarks.compiled import compiled
from benchmarks.decoding import decoding
from benchmarks.draw import draw
from benchmarks.encoders import encoders
from benchmarks.glimpse import glimpse
from benchmarks.gpu.day import day
from benchmarks.gpu.kernels import kernels
from benchmarks.gpu.pack import pack
from benchmarks.gpu.speeds import gpu
from benchmarks.loaders import loaders
from benchmarks.parts import parts
from benchmarks.peers import peers
from benchmarks.photographs import photographs
from benchmarks.ram import ram
from benchmarks.reinforce import variance
from benchmarks.self_critical import self_critical
from benchmarks.shapes import QUICK, Shapes
from benchmarks.show_attend_tell import hard_training, training
from benchmarks.size import size
from benchmarks.strings import strings
from vision_attn.system.console import bytes_of
from vision_attn.system.machine import processor
from vision_attn.system.memory import keep_freed_memory

TABLES = {
    "attention": attention,
    "scores": scores,
    "training": training,
    "decoding": decoding,
    "hard": hard_training,
    "variance": variance,
    "self-critical": self_critical,
    "loaders": loaders,
    "photographs": photographs,
    "encoders": encoders,
    "glimpse": glimpse,
    "ram": ram,
    "size": size,
    "draw": draw,
    "strings": strings,
    "compiled": compiled,
    "gpu": gpu,
    "kernels": kernels,
    "peers": peers,
    "parts": parts,
}


APART = "compiled", "parts"
"""Tables that are made only when they are named: they compile or train for an hour."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "tables",
        nargs="*",
        help=f"which of {', '.join(TABLES)} (default: all that this machine can run, except {' and '.join(APART)})",
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="measurements of each side, after a warm-up; seeds of parts"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, once: tests that it runs, measures nothing")
    prepared = parser.add_argument_group("a prepared day on a GPU", "with the table gpu: see docs/gpu.md")
    prepared.add_argument("--day", type=float, metavar="MINUTES", help="tests, trainings, speeds and rows in this time")
    prepared.add_argument("--out", type=Path, default=Path("runs/day"), metavar="FOLDER", help="of --day")
    prepared.add_argument("--pack", type=Path, metavar="FOLDER", help="write what a machine without a network needs")
    options = parser.parse_args()
    if options.day is not None or options.pack is not None:
        if options.tables != ["gpu"]:
            parser.error("--day and --pack are of the table gpu: python -m benchmarks gpu --day 10")
        sys.exit(prepared_day(options))
    unknown = [name for name in options.tables if name not in TABLES]
    if unknown:
        parser.error(f"there is no table {unknown[0]!r}: choose from {', '.join(TABLES)}")
    if options.threads < 1:
        parser.error(f"--threads is {options.threads}: give 1 or more")
    names = options.tables or [
        name for name in TABLES if name not in APART and (name != "gpu" or torch.cuda.is_available())
    ]
    if "gpu" in names and not torch.cuda.is_available():
        parser.error("the table gpu needs a CUDA device, and torch sees none here")

    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as every training does, and in favour of both sides
    shapes = QUICK if options.quick else Shapes()
    load = f"load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    print(f"{processor()}, {options.threads} threads, torch {torch.__version__}, {load}")
    print(", ".join(f"{key} {value}" for key, value in shapes._asdict().items() if key not in ("lengths", "quick")))
    for name in names:
        start = time.perf_counter()
        print(TABLES[name](shapes, 1 if options.quick else options.repeats))
        print(f"\n({name}: {time.perf_counter() - start:.0f} s)", flush=True)


def prepared_day(options: argparse.Namespace) -> int:
    """Pack, or run the parts of a day. Returns the exit status: 1 if a part failed."""
    if options.pack is not None:
        for path in pack(options.pack):
            print(f"{path}: {bytes_of(path.stat().st_size)}")
        return 0
    if not options.quick and not torch.cuda.is_available():
        print("--day needs a CUDA device, and torch sees none here; --quick tries its parts on a CPU", file=sys.stderr)
        return 2
    results = day(options.out, options.day, quick=options.quick)
    for result in results:
        print(f"{result.part.name}: {result.seconds:.0f} s, {result.status}")
    print(f"written to {options.out / 'day.md'}")
    return 0 if all(result.status == "exit status 0" for result in results) else 1


if __name__ == "__main__":
    main()

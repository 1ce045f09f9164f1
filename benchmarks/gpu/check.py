"""The block `check`: the tests marked `gpu`, by pytest in its own process."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu.block import ROOT, Options, Row, run
from vision_attn.system.files import scratch

QUICK = ["-k", "decoding or captured"]
"""The tests that `--quick` runs on a CPU: as tests of the tests."""
PROCESSES = 8


def check(options: Options) -> Iterator[Row]:
    """One row for each failure, and one with the counts. Raises RuntimeError if a test, or pytest itself, failed."""
    with scratch("check") as folder:
        report = folder / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-ra", f"--junitxml={report}", *modules()]
        if options.device == "cuda" and importlib.util.find_spec("xdist"):
            command += ["-n", str(PROCESSES), "--dist=worksteal"]
        command += QUICK if options.quick else []
        # Shape checks do not mix with torch.compile.
        environment = {**os.environ, "VISION_ATTN_SHAPES": "0", "VISION_ATTN_GPU": options.device}
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = "2"
        status = run(command, options.seconds * 0.95, env=environment)
        if status is None:
            raise RuntimeError(f"the tests were not done after {options.seconds * 0.95:.0f} s")
        if status not in (0, 1):
            raise RuntimeError(f"pytest ended with status {status}")
        yield from rows(report)
    if status:
        raise RuntimeError("there are failures: see the log")


def modules() -> list[str]:
    """The test modules that use the marker: collecting all others would take longer than running these."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if "mark.gpu" in path.read_text(encoding="utf-8")]


def rows(report: Path) -> Iterator[Row]:
    """The failures in a JUnit report, then the counts."""
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for case in ElementTree.parse(report).iter("testcase"):
        bad = next((child for child in case if child.tag in ("failure", "error")), None)
        state = "failed" if bad is not None else "skipped" if case.find("skipped") is not None else "passed"
        counts[state] += 1
        if bad is not None:
            yield Row(case.get("name", ""), f"failed: {' '.join(bad.get('message', '').split())[:160]}")
        for told in case.iter("property"):
            yield Row(f"{case.get('name', '')}, {told.get('name', '')}", told.get("value", ""))
    yield Row("tests marked gpu", ", ".join(f"{number} {state}" for state, number in counts.items() if number), counts)

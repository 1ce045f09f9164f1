"""For all tests: shape checks on the whole package, one thread, and the folder of real data where there is one."""

import atexit
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from types import FunctionType

import pytest

if os.environ.get("VISION_ATTN_SHAPES", "1") != "0":  # before the package is imported anywhere
    import jaxtyping

    def checked(fn: Callable | None = None, *, typechecker: Callable, jaxtyped: Callable = jaxtyping.jaxtyped):
        """`jaxtyped`, which costs 60 microseconds a call, where annotations have shapes or quotes; or `typechecker`."""
        if fn is None:
            return partial(checked, typechecker=typechecker)
        annotations = getattr(fn, "__annotations__", {}).values()
        special = any(re.search(r"jaxtyping|^'|[\[(,] ?'", repr(each)) for each in annotations)
        plain = isinstance(fn, FunctionType) and not special
        return typechecker(fn) if plain else jaxtyped(fn, typechecker=typechecker)

    jaxtyping.jaxtyped = checked
    jaxtyping.install_import_hook("vision_attn", "beartype.beartype")

import torch

from vision_attn.metrics import captions, isolated, scorers

torch.set_num_threads(1)  # tests are small: a second thread on a busy machine is mostly waited for
os.fsync = lambda _: None  # tests kill processes, never the machine


SLOW = {
    "test_metrics",
    "test_commands",
    "test_look",
    "test_distributed",
    "test_package",
    "test_self_critical",
    "test_transcribe",
    "test_serve",
    "test_ram_runs",
    "test_startup",
    "test_benchmarks",
    "test_additive_triton",
    "test_kernels",
    "test_captioning",
    "test_image_tokens",
    "test_sizes",
}
"""Files that take half of the time of all."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores, because some tests wait for others; each costs 12 seconds to start."""
    return min(4, len(os.sched_getaffinity(0)) + 1) if hasattr(os, "sched_getaffinity") else 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow files first, so that the processes that share the tests end together."""
    items.sort(key=lambda item: item.path.stem not in SLOW)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets; the test is skipped where there is none."""
    folder = os.environ.get("VISION_ATTN_DATA")
    if not folder:
        pytest.skip("real data is needed: VISION_ATTN_DATA names no folder")
    if not Path(folder).is_dir():
        pytest.skip(f"real data is needed: {folder} (VISION_ATTN_DATA) does not exist")
    return Path(folder)


def quickly(jobs: Iterable[str], folder: Path, *, time_limit: float) -> dict[str, isolated.JobResult]:
    """`isolated.run` in this process, and without Java where captions are plain words, which its tokenizer keeps."""
    answers = {}
    for job in jobs:
        if job == "tokenise":
            texts = json.loads((folder / "captions.json").read_text())
            if all(PLAIN.fullmatch(text) for text in texts):
                answers[job] = isolated.JobResult([" ".join(text.split()) for text in texts])
                continue
        if job == "meteor" and "VISION_ATTN_JAVA" not in os.environ:
            answers[job] = isolated.JobResult(scorers.ask_meteor(meteor(), *scorers.tokens(folder)))
        elif job in ("tokenise", "meteor", "spice"):
            answers |= isolated.run([job], folder, time_limit=time_limit)
        else:
            answers[job] = isolated.JobResult(getattr(scorers, job)(folder))
    return answers


@cache
def meteor() -> subprocess.Popen:
    """METEOR's Java program, which takes seconds to start, for all tests of this process."""
    folder = tempfile.TemporaryDirectory()
    process = scorers.start_meteor(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(process.kill)
    return process


@pytest.fixture
def onednn_for_small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of the sizes of tests are too small for oneDNN otherwise."""
    monkeypatch.setattr("vision_attn.layers.linear.SMALL", 0)


PLAIN = re.compile("[a-z ]*")


@pytest.fixture(autouse=True)
def metrics_without_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captions are scored in this process: starting others takes seconds. Not in tests marked `processes`."""
    if request.node.get_closest_marker("processes") is None and request.node.get_closest_marker("chaos") is None:
        monkeypatch.setattr(captions, "run", quickly)

"""What a day on a GPU relies on, without one: graphs keep what they read, and nothing is missing there."""

import ast
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gpu.cases import capture
from benchmarks.gpu.pack import THERE, WHEELS

ROOT = Path(__file__).parents[1]


class Addresses:
    """A stand-in for a CUDA graph: a replay computes again with the model and the inputs of the call that was recorded,
    which it does not hold, as a graph does not hold the memory that it reads."""

    def __init__(self) -> None:
        self.model: Callable = recorded[-1][0]
        self.inputs: Callable = recorded[-1][1]
        self.result: Callable = recorded[-1][2]

    def replay(self) -> None:
        model, inputs = self.model(), self.inputs()
        assert model is not None and inputs is not None, "a graph reads freed memory"
        with torch.no_grad():
            self.result().copy_(model(inputs))


recorded: list[tuple[Callable, Callable, Callable]] = []


def test_a_captured_call_keeps_alive_what_its_graph_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: stream)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Addresses)

    def start() -> tuple[Callable[[], Tensor], Tensor]:
        model, inputs, result = nn.Linear(3, 2), torch.randn(4, 3), torch.zeros(4, 2)
        recorded.append((weakref.ref(model), weakref.ref(inputs), weakref.ref(result)))

        def run() -> Tensor:
            with torch.no_grad():
                return result.copy_(model(inputs))

        return capture(run), run().clone()

    replay, expected = start()
    gc.collect()
    replay().zero_()  # the result is the graph's own memory
    assert torch.equal(replay(), expected)


def imported(path: Path) -> Iterator[str]:
    """The packages that a module imports when it is imported itself."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


def test_nothing_is_needed_beyond_the_wheels_that_are_packed() -> None:
    """What is imported inside functions, such as pycocoevalcap, belongs to commands that are not run there."""
    elsewhere = {"caption_onnx.py", "self_critical.py"}  # a captioner without torch, and a benchmark of rewards
    modules = [*(ROOT / "vision_attn").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    modules = [path for path in modules if path.name not in elsewhere or path.parent.name == "criteria"]
    tests = ("conftest", "test_gpu", "fake_mnist", "whole_runs", "test_resume", "toy")
    modules += [next((ROOT / "tests").rglob(f"{name}.py")) for name in tests]
    of_these = {"numpy", "PIL", "filelock", "triton"}  # with torch and torchvision
    optional = {"numba", "llvmlite", "starlette", "uvicorn"}  # where they are there
    known = {name.replace("-", "_") for name in (*THERE, *WHEELS)} | {"yaml"} | of_these | optional
    own = {"vision_attn", "benchmarks", "tests", *tests}
    for path in modules:
        needed = set(imported(path)) - own - set(sys.stdlib_module_names)
        assert needed <= known, f"{path.relative_to(ROOT)} needs {needed - known}: add it to WHEELS of gpu_pack.py"

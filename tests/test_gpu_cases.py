"""What is timed on a GPU, without one: graphs keep what they read, and the table of speeds."""

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gpu import speeds as gpu
from benchmarks.gpu.cases import capture
from benchmarks.shapes import QUICK


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


@pytest.mark.slow
def test_the_table_of_speed_is_made_on_a_cpu(monkeypatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    lines = gpu.gpu(QUICK, 1, "cpu").splitlines()
    found = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    ways = ("plain", "eager", "captured", "compiled", "compiled and captured")
    assert found == ["", *(f"SAT soft, {way}" for way in ways)] and not any("Error" in line for line in lines)


def test_the_share_is_of_the_rate_that_allows_less() -> None:
    rates = {"matrix": 1e12, "copy": 1e9}
    numbers = {"unit": "images", "rate": 50.0, "seconds": 2.0, "operations": 1e12, "moved": 1e8, "memory": 2**21}
    assert gpu.cells(numbers, rates) == ("50 images", "2e+03", "50.0% of the matrix rate", "2")
    limited = numbers | {"moved": 15e8, "memory": None}
    assert gpu.cells(limited, rates) == ("50 images", "2e+03", "75.0% of the copy rate", "-")


def test_one_that_cannot_be_timed_leaves_the_others() -> None:
    def broken() -> gpu.Work:
        raise RuntimeError("not captured")

    work = gpu.Work(run=lambda: None, number=3, unit="images", operations=1, moved=1)
    found = dict(gpu.measure(iter([("a", broken), ("b", lambda: work)]), "cpu", 1))
    assert found["a"] == {"error": "RuntimeError: not captured"} and found["b"]["rate"] > 0

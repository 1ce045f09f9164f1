"""The gradient of every parameter of every task, compiled, equals the eager one; on a CPU, without a compiler.

Dynamo traces the task as for any compiler. Its graphs are then run as they are (`backend="eager"`), and as functions
that compute the gradient as well (`backend="aot_eager"`). What goes wrong in either is wrong on a GPU too.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests import tiny
from vision_attn.fast import accelerate
from vision_attn.task import Batch, Task

pytestmark = pytest.mark.compile
TOLERANCE = 1e-4
SHAPES = (
    "strings_read_search", "strings_sort_search", "strings_read_dram", "pairs_add_dram", "pairs_read_dram",
    "transformer_scenes",
)  # fmt: skip
"""Cases with captions of several lengths, compiled for sizes that vary, as in training. The others have captions of one
length and are compiled for their sizes, which takes a fifth of the time."""
ZERO = 1e-6
"""The share of the whole gradient below which a parameter's is 0 in theory: rounding alone, as of the bias of keys."""
Gradients = dict[str, Tensor | None]


@pytest.fixture(autouse=True)
def same_random_numbers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Eager tasks draw the masks of dropout as compiled ones do."""

    def dropped(input: Tensor, p: float, size: torch.Size) -> Tensor:
        return F.dropout(input, p) if size == input.shape else input * F.dropout(input.new_ones(size), p)

    monkeypatch.setattr("vision_attn.fast.dropout._dropped", dropped)
    yield
    torch.compiler.reset()


class Both:
    """A backend of torch.compile whose graphs run by the backend `use`."""

    def __init__(self) -> None:
        self.use, self.graphs = "eager", 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        ways = {"eager": graph.forward, "aot_eager": torch._dynamo.lookup_backend("aot_eager")(graph, inputs)}
        return lambda *arguments: ways[self.use](*arguments)


def gradients(task: Task, batch: Batch) -> Gradients:
    """The gradient of every parameter, and the loss as `loss`. Leaves the state of the task as it was."""
    before = {name: buffer.clone() for name, buffer in task.named_buffers()}
    task.zero_grad()
    torch.manual_seed(1)
    loss = task(*batch)["loss"]
    loss.backward()
    found = {name: None if one.grad is None else one.grad.clone() for name, one in task.named_parameters()}
    with torch.no_grad():
        for name, buffer in task.named_buffers():
            buffer.copy_(before[name])
    return {"loss": loss.detach()} | found


def differences(found: Gradients, expected: Gradients) -> dict[str, str]:
    """What is wrong with each parameter's gradient; empty if all are right."""
    whole = torch.stack([one.norm() for name, one in expected.items() if one is not None and name != "loss"]).norm()
    assert whole > 0
    wrong = {}
    for name, right in expected.items():
        one = found[name]
        if one is None or right is None:
            if one is not right:
                wrong[name] = f"no gradient {'compiled' if one is None else 'eager'}"
            continue
        size = max(right.norm(), one.norm())
        size = whole if size < ZERO * whole else right.norm()
        if not (one - right).norm() <= TOLERANCE * size:
            wrong[name] = f"relative error {(one - right).norm() / size:.1e}"
    return wrong


def wrong(case: str) -> dict[str, dict[str, str]]:
    """What each backend gets wrong. Cases that differ in data alone are the same at this size, and computed once."""
    settings = f"{case in SHAPES} {tiny.resolved(case).task}"
    if settings not in known:
        task, batch = tiny.made(case, ragged=case in SHAPES)
        accelerate(task)
        expected, both = gradients(task, batch), Both()
        task.compile(backend=both, **({} if case in SHAPES else {"dynamic": False}))
        found = {}
        for both.use in ("eager", "aot_eager"):
            found[both.use] = differences(gradients(task, batch), expected)
        assert both.graphs
        known[settings] = found
    return known[settings]


known: dict[str, dict[str, dict[str, str]]] = {}


@pytest.mark.parametrize("case", tiny.CASES)
def test_compiled_gradients_equal_eager_ones(case: str) -> None:
    assert wrong(case) == {"eager": {}, "aot_eager": {}}

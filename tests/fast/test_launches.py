"""Operations declare how many kernels they launch; here they are counted, on Triton's interpreter (interpreted.py)."""

import importlib
import inspect
import os
import pkgutil
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import vision_attn.fast
from benchmarks.fake_gpu import NO_KERNEL, NONE
from vision_attn.fast.launch import OPERATIONS, operation

pytest.importorskip("triton", reason="triton is not installed")

FILES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(vision_attn.fast.__path__, "vision_attn.fast.")
    if module.name.endswith("gpu")
]
"""The files of kernels, each of which declares its operations when it is imported."""
RUNS = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="run with TRITON_INTERPRET=1")
B, R, L, D, A = 2, 3, 4, 5, 6


def numbers(*shape: int) -> Tensor:
    return torch.rand(shape) + 0.5


def calls() -> dict[str, list[tuple[Any, ...]]]:
    """The arguments of calls of each operation. The first of each call is copied where it is not contiguous."""
    gates, cell, rows = numbers(B, 4 * D), numbers(B, D), numbers(B, D)
    windows, one, two, F = numbers(B, R, 5), numbers(B, R), numbers(B, R, 2), numbers(B, R, D, 9)
    images, patches, extremes = numbers(B, 2, 9, 9), numbers(B, R, 2, D, D), [10.0, 3.0, 2.5, 0.25, 6.0]
    scores, regions, context = numbers(B, R, L), numbers(B, L, D), numbers(B, R, D)
    words, ended, at = torch.ones(B, R, D, dtype=torch.long), torch.zeros(B, R, dtype=torch.bool), torch.tensor(0)
    query, keys = numbers(B, R, A), numbers(B, L, A)
    wide = numbers(B, R, 600), numbers(B, L, 600), numbers(600)
    logits = numbers(B, 9)
    found: dict[str, list[tuple[Any, ...]]] = {
        "additive_scores": [(query, keys, numbers(A)), wide],
        "additive_gradients": [
            (query, keys, numbers(A), scores, torch.zeros_like(keys)),
            (*wide, scores, torch.zeros_like(wide[1])),
        ],
        "attend": [(scores, regions, 1.0)],
        "attend_gradients": [
            (context, scores, context, scores, regions, 1.0, torch.float32),
            (context, None, context, scores, regions, 1.0, torch.float32),
        ],
        "best_words": [(logits, 3, torch.tensor([0])), (logits, 2, torch.ones(B, 2, dtype=torch.long))],
        "exponential": [(rows, 40.0)],
        "exponential_gradient": [(rows, rows, 40.0, torch.float32)],
        "extend_beam": [(numbers(B, R, D), words, one, ended, 3, None, 1, 0)],
        "filterbank_filters": [(two, one, one, D, 9, 9)],
        "filterbank_gradients": [(images, patches, two, one, one, one, F, F, False)],
        "filterbank_read": [(images, F, F, one, False)],
        "filterbank_write": [(patches, F, F, one, True)],
        "gated": [(rows, rows)],
        "gated_gradients": [(rows, rows[:, :1].contiguous(), rows), (rows, rows, rows)],
        "lstm_gradients": [(cell, cell, gates, cell, cell, False), (cell, None, gates, cell, cell, True)],
        "lstm_update": [(gates, None, None, cell), (gates, gates, gates, cell)],
        "normalise": [(rows, rows[0], rows[0], 1e-5, torch.float32)],
        "normalise_gradients": [(rows, rows, rows[0], numbers(B, 2))],
        "tanh_of_sum": [(rows, rows, rows, torch.float32)],
        "window": [(windows, two, one, two[0, 0], extremes), (windows, None, None, two[0, 0], extremes)],
        "window_gradients": [
            (windows, before, two[0, 0], [two, one, one, one], [two, one, one, one], extremes) for before in (one, None)
        ],
        "write_words": [(one, words[..., 0].contiguous(), at, words[..., 1].contiguous(), ended,
                         torch.ones(L, B, R, dtype=torch.long), numbers(L, B, R), 1, 0)],
    }  # fmt: skip
    return {f"vision_attn::{name}": given for name, given in found.items()}


class Count(TorchDispatchMode):
    """Counts the operations of torch that would launch a kernel on a GPU, but not those of the interpreter."""

    def __init__(self) -> None:
        super().__init__()
        self.number, self.within = 0, False

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function._schema.name
        if not (self.within or function.is_view or name in NONE or name.startswith(NO_KERNEL)):
            self.number += 1
        return function(*arguments, **(options or {}))


def launched(function: Callable, arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> int:
    """The kernels of a call of an operation's function: those of Triton, which run, and torch's."""
    count, space = Count(), inspect.unwrap(function).__globals__
    launch = space["launch"]

    def counted(*given: Any, **options: Any) -> None:
        count.number, count.within = count.number + 1, True
        launch(*given, **options)
        count.within = False

    with monkeypatch.context() as patch, count:
        patch.setitem(space, "launch", counted)
        function(*arguments)
    return count.number


@RUNS
@pytest.mark.parametrize("name", calls())
def test_an_operation_launches_what_it_declares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its first tensor has to be copied."""
    declared = OPERATIONS[name]
    for arguments in calls()[name]:
        number = declared.kernels(*arguments)
        assert launched(declared.function, arguments, monkeypatch) == number > 0
        strided = arguments[0].mT.contiguous().mT, *arguments[1:]
        assert not strided[0].is_contiguous() and declared.kernels(*strided) == number + 1
        assert launched(declared.function, strided, monkeypatch) == number + 1


@RUNS
def test_what_an_operation_launches_besides_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    function = OPERATIONS["vision_attn::exponential"].function

    @wraps(function)
    def twice(x: Tensor, limit: float) -> Tensor:
        return function(x, limit) + function(x, limit)

    assert launched(twice, (numbers(2, 3), 40.0), monkeypatch) == 3


def test_every_operation_of_a_file_of_kernels_is_called_here() -> None:
    assert len(FILES) > 8 and all(file.operation is operation for file in FILES)
    assert calls().keys() == OPERATIONS.keys()

"""Time only the matrix products of a training step: a lower bound on the time of the whole step."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def products(step: Callable[[], object]) -> Callable[[], None]:
    """Record the matrix products of an eager `step`, forward and backward. Returns a function that computes them again
    in the same order, on random numbers of the same shapes that stay in the cache."""
    with _Products() as record:
        step()
    calls = record.calls

    @torch.no_grad()
    def again() -> None:
        for operator, arguments in calls:
            operator(*arguments)

    return again


class _Products(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls: list[tuple[Callable, tuple[object, ...]]] = []
        self.numbers: dict[tuple[torch.Size, tuple[int, ...], torch.dtype], Tensor] = {}

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        if operator.name() in OPERATORS:
            self.calls.append((operator, tuple(self.random(value) for value in arguments)))
        return operator(*arguments, **(named or {}))

    def random(self, value: object) -> object:
        """Random numbers in the place of a tensor: the same for all tensors of its shape."""
        if not isinstance(value, Tensor):
            return value
        key = value.shape, value.stride(), value.dtype
        if key not in self.numbers:
            storage = 1 + sum((number - 1) * stride for number, stride in zip(*key[:2], strict=True))
            self.numbers[key] = torch.randn(storage, dtype=value.dtype).as_strided(*key[:2])
        return self.numbers[key]


OPERATORS = {f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm")} | {"mkldnn::_linear_pointwise"}

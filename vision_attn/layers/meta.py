"""Build modules on the meta device, without memory, to learn their shapes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

FACTORIES = frozenset(["ones", "rand", "randn", "zeros"])
FILLS = frozenset(["__setitem__", "copy_", "div_", "fill_", "normal_", "uniform_", "zero_"])
ARITHMETIC = frozenset(["add", "cos", "div", "exp", "log", "mul", "neg", "sin", "sqrt", "sub"])


class _ShapesOnly(TorchFunctionMode):
    """Computes nothing but shapes in the operations that constructors use most.

    On the meta device torch does the same, but in Python and with parts of its compiler, which takes a second to
    import. Other operations are left to torch.
    """

    def __torch_function__(
        self, function: Callable, types: Sequence[type], args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        first = args[0] if args else kwargs.get("tensor")
        if name in FACTORIES:
            made = torch.empty(*args, **{key: value for key, value in kwargs.items() if key != "generator"})
            return made if made.is_meta else function(*args, **kwargs)
        if isinstance(first, Tensor) and first.is_meta:
            if name in FILLS or getattr(function, "__module__", None) == "torch.nn.init":
                return first
            if name in ARITHMETIC and not kwargs and all(_like(other, first) for other in args):
                shapes = (other.shape for other in args if isinstance(other, Tensor))
                return torch.empty(np.broadcast_shapes(*shapes), dtype=first.dtype)  # torch's own imports sympy
        return function(*args, **kwargs)


def _like(operand: Any, first: Tensor) -> bool:
    """Return whether the result of an operation on `first` and this operand has the dtype of `first`."""
    if isinstance(operand, Tensor):
        return operand.is_meta and operand.dtype == first.dtype and operand.is_floating_point()
    return isinstance(operand, int | float)


@contextmanager
def on_meta() -> Iterator[None]:
    """Context manager: create new tensors and modules on the meta device, where they have shapes but take no memory."""
    with torch.device("meta"), _ShapesOnly():
        yield


def allocate(module: nn.Module, device: torch.device | str) -> nn.Module:
    """Move `module` to `device`. Tensors of the meta device become uninitialised ones. Weights that layers share stay
    shared. `to_empty` of torch would import parts of its compiler."""
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    made: dict[Tensor, Tensor] = {
        tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for _, tensor in tensors if tensor.is_meta
    }
    for tensor in made:
        if isinstance(tensor, nn.Parameter):
            made[tensor] = nn.Parameter(made[tensor], requires_grad=tensor.requires_grad)
    for path, tensor in tensors:
        if tensor in made:
            owner, _, name = path.rpartition(".")
            setattr(module.get_submodule(owner), name, made[tensor])
    return module.to(device)

"""Graphs of captured steps that a CPU replays, in place of CUDA's."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vision_attn.fast.graphs import Graph


class PlainGraph(Graph):
    """Replaying it calls the function again."""

    made: list["PlainGraph"] = []

    def __init__(self, like: "PlainGraph | None" = None) -> None:
        self.rehearsals = self.replays = 0
        PlainGraph.made.append(self)

    @staticmethod
    def available(device: torch.device) -> bool:
        return True

    def warm_up(self, function: Callable) -> dict[str, Tensor]:
        self.rehearsals += 1
        return function()

    def capture(self, function: Callable) -> None:
        self.function = function

    def replay(self) -> dict[str, Tensor]:
        self.replays += 1
        return self.function()


class TapeGraph(PlainGraph):
    """Records every operation of a function with its arguments, and repeats these operations, as a CUDA graph does.

    A plain number that the function took from Python stays what it was at the capture; a tensor that it replaced
    instead of overwriting is not seen again; reading a tensor's value is an error.
    """

    def capture(self, function: Callable) -> None:
        self.tape = Tape()
        random = torch.get_rng_state()
        try:
            with self.tape:
                self.scalars = function()
        finally:  # The capture of a graph computes nothing.
            torch.set_rng_state(random)
            for storage, before in self.tape.before.values():
                storage.copy_(before)

    def replay(self) -> dict[str, Tensor]:
        self.replays += 1
        with torch.no_grad():
            for operation, arguments, options, results in self.tape.operations:
                again = fresh(operation, operation(*arguments, **options))
                for old, new in zip(results, again, strict=True):
                    old.copy_(new)
        return self.scalars


class Tape(TorchDispatchMode):
    """The operations within this context, and what the storages that they wrote to held before."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.before = [], {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        given = dict(zip((one.name for one in operation._schema.arguments), args, strict=False)) | (kwargs or {})
        written = [given[one.name] for one in operation._schema.arguments if one.is_write and one.name in given]
        for tensor in (one for one in tree_leaves(written) if isinstance(one, Tensor)):
            storage = tensor.untyped_storage()
            self.before.setdefault(storage._cdata, (storage, storage.clone()))
        results = operation(*args, **(kwargs or {}))
        if written or fresh(operation, results):  # Views need not be taken again.
            self.operations.append((operation, args, kwargs or {}, fresh(operation, results)))
        return results


def fresh(operation, results) -> list[Tensor]:
    """The results of an operation that share no memory with its arguments."""
    returned = operation._schema.returns
    parts = results if len(returned) > 1 else [results]
    new = [part for one, part in zip(returned, parts, strict=False) if one.alias_info is None]
    return [leaf for leaf in tree_leaves(new) if isinstance(leaf, Tensor)]

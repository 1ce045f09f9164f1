"""No autograd function of ours changes in place what it saves, receives or returns: torch 2.11 compiles wrong gradients
from that, without a word. Each is watched as it runs."""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import vision_attn
from tests import pretend, tiny
from vision_attn.fast import accelerate, time_loops
from vision_attn.fast.versions import without_loops
from vision_attn.layers.linear import Rectified

PASSES = ("forward", "backward")


def functions() -> list[type[torch.autograd.Function]]:
    """Every autograd function of the package."""
    for module in pkgutil.walk_packages(vision_attn.__path__, "vision_attn."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, new = [], [torch.autograd.Function]
    while new:
        new = [below for each in new for below in each.__subclasses__()]
        found += [each for each in new if each.__module__.startswith("vision_attn.")]
    return sorted(found, key=name_of)


def name_of(function: type) -> str:
    return f"{function.__module__}.{function.__qualname__}"


class Changes(TorchDispatchMode):
    """Within this context, notes which memory operations of torch change."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
        options = options or {}
        results = operation(*arguments, **options)
        for number, argument in enumerate(operation._schema.arguments):
            given = arguments[number] if number < len(arguments) else options.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write:
                for part in tensors(given):
                    self.memory[part.untyped_storage()._cdata] = part.untyped_storage()
        return results

    def among(self, *parts: Any) -> bool:
        """Whether any of these tensors was changed."""
        return any(part.untyped_storage()._cdata in self.memory for part in tensors(parts))


def tensors(parts: Any) -> list[Tensor]:
    return [part for part in tree_leaves(parts) if isinstance(part, Tensor)]


def copies(parts: Any) -> list[Tensor]:
    return [part.clone() for part in tensors(parts)]


def same(parts: Any, copied: list[Tensor]) -> bool:
    pairs = zip(tensors(parts), copied, strict=True)
    return all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs)


class Watch:
    """The functions that ran, and what each changed of its own."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()
        self.wrong: set[str] = set()

    def note(self, function: type, name: str, what: str, changed: bool) -> None:
        self.seen.add((name_of(function), name))
        if changed:
            self.wrong.add(f"{function.__qualname__}.{name} changes what it {what}")

    def forward(self, function: type, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(ctx: Any, *arguments: Any) -> Any:
            before = copies(arguments)
            with Changes() as changes:
                output = original(ctx, *arguments)
            kept = (getattr(ctx, "to_save", ()), list(vars(ctx).values()))
            self.note(function, "forward", "receives", not same(arguments, before) or changes.among(arguments))
            self.note(function, "forward", "returns", changes.among(output))
            self.note(function, "forward", "saves", changes.among(kept))
            return output

        return watched

    def backward(self, function: type, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(ctx: Any, *grads: Any) -> Any:
            kept = (ctx.saved_tensors, list(vars(ctx).values()))
            before = copies((grads, kept))
            with Changes() as changes:
                output = original(ctx, *grads)
            self.note(function, "backward", "receives", changes.among(grads))
            self.note(function, "backward", "saved", not same((grads, kept), before) or changes.among(kept))
            self.note(function, "backward", "returns", changes.among(output))
            return output

        return watched


@contextmanager
def watched() -> Iterator[Watch]:
    """Within this context every autograd function of the package is watched."""
    watch = Watch()
    with pytest.MonkeyPatch.context() as patch:
        for function in functions():
            for name in PASSES:
                wrapped = getattr(watch, name)(function, getattr(function, name))
                patch.setattr(function, name, staticmethod(wrapped))
        yield watch


RUNS_ON_A_GPU = ("sat_soft_scenes", "transformer_scenes", "draw_mnist_small", "ram_cluttered60")
RUNS = ("sat_soft_scenes", "sat_soft_scenes_cider", "transformer_scenes", "draw_mnist_small", "ram_cluttered60")


def test_passes_change_nothing_of_theirs_as_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the loops of a CPU, with tensor operations, and as on a GPU, where nothing is launched, so that what is
    computed from the outputs of kernels is anything. Every function runs."""
    pytest.importorskip("triton", reason="triton is not installed")
    pretend.processor(monkeypatch, intel=False)
    pretend.small_products(monkeypatch)
    pretend.several_parts(monkeypatch)
    with watched() as watch:
        for case in RUNS:
            for plain in (False, True):
                task, batch = tiny.made(case)
                accelerate(task)
                with without_loops(plain):
                    task(*batch)["loss"].backward()
        as_on_a_gpu(monkeypatch)
        for case in RUNS_ON_A_GPU:
            task, batch = tiny.made(case)
            accelerate(task)
            with torch.autocast("cpu", torch.bfloat16):
                loss = task(*batch)["loss"]
            loss.backward()
        layer = time_loops.collecting_layer(Rectified(3, 4), torch.float32)
        layer(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert watch.wrong == set()
    assert watch.seen == {(name_of(function), each) for function in functions() for each in PASSES}


WAYS = {
    "on_gpu": lambda _: True,
    "launch": lambda *_, **options: None,
    "is_cuda": lambda _: True,
    "_wanted": lambda _: True,
}


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the ways of a GPU, without launching anything."""
    for name, module in list(sys.modules.items()):
        if name.startswith("vision_attn."):
            for one, other in WAYS.items():
                if inspect.isfunction(getattr(module, one, None)):
                    monkeypatch.setattr(module, one, other)


class _InPlace(torch.autograd.Function):
    """A softmax as the filterbank once computed it, which torch 2.11 compiled wrongly."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        filters = scores.exp()
        filters *= 1 / filters.sum(dim=-1, keepdim=True)
        ctx.save_for_backward(filters)
        return filters

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (filters,) = ctx.saved_tensors
        return torch._softmax_backward_data(grad, filters, -1, filters.dtype)


def test_a_change_in_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr(_InPlace, "forward", staticmethod(watch.forward(_InPlace, _InPlace.forward)))
    _InPlace.apply(torch.ones(2, 3, requires_grad=True))
    assert watch.wrong == {f"_InPlace.forward changes what it {what}" for what in ("returns", "saves")}

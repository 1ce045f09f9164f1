"""Whole-step capture: CUDA graphs that replay a step's kernels without the cost of launching each from Python.

A step of many small kernels is limited by the time that Python takes to launch them. `Captured` wraps the device work
of a step; neither the models nor the step itself know of it.
"""

import logging
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from vision_attn.engine.batches import is_tensors, like, size
from vision_attn.fast.graphs import CUDAGraph, Graph, reason
from vision_attn.system.console import say
from vision_attn.task import Batch, Static

log = logging.getLogger(__name__)
Scalars = dict[str, Tensor]
Work = Callable[[Iterable[Batch], int], Scalars]
"""A function that does all device work of a step over a number of batches, and returns its scalars."""

RARE = 2
"""The number of first steps of each signature that run eagerly, to compile, choose algorithms and create the
optimizer's state. Steps of a rare signature therefore always run eagerly."""
WARM_UP = RARE + 1
"""The number of steps of each signature before its capture. The last one is a rehearsal."""
MOST = 24
"""The largest number of graphs of a run. Each keeps the memory of its inputs; batches with further signatures run
eagerly."""

PLAIN = (type(None), bool, int, float, str, Static)
"""Types of fields of a batch whose values are part of its signature."""


class RecordedStep:
    """The CUDA graph of a training step for one signature, with the buffers from which it reads its batches."""

    def __init__(self, batches: list[Batch], device: torch.device, graph: Graph) -> None:
        self.graph, self.ready = graph, False
        self.buffers = [buffers(batch, device) for batch in batches]

    def fill(self, batches: list[Batch]) -> None:
        """Copy the tensors of new batches to the buffers."""
        for own, batch in zip(self.buffers, batches, strict=True):
            copy_into(own, batch)

    def inputs(self, batches: list[Batch], *, bare: bool) -> list[Batch]:
        """Return `batches` with the buffers in place of their tensors.

        bare: whether to set fields that a graph cannot read again, such as ids, to None. Otherwise the graph would keep
            their values at its capture.
        """
        return [from_buffers(own, batch, bare=bare) for own, batch in zip(self.buffers, batches, strict=True)]


def buffers(batch: Batch, device: torch.device) -> list:
    """Return a buffer for each tensor of a batch, a list of buffers for a tuple of tensors, None for other fields."""
    return [
        torch.empty_like(field, device=device) if isinstance(field, Tensor)
        else buffers(field, device) if is_tensors(field)
        else None
        for field in batch
    ]  # fmt: skip


def copy_into(buffers: list, batch: Batch) -> None:
    for buffer, field in zip(buffers, batch, strict=True):
        if isinstance(buffer, list):
            copy_into(buffer, field)
        elif buffer is not None:
            buffer.copy_(field, non_blocking=True)


def from_buffers(buffers: list, batch: Batch, *, bare: bool) -> Batch:
    fields = [
        from_buffers(buffer, field, bare=bare) if isinstance(buffer, list)
        else field if buffer is None and (isinstance(field, PLAIN) or not bare)
        else buffer
        for buffer, field in zip(buffers, batch, strict=True)
    ]  # fmt: skip
    return like(batch, fields)


class Captured:
    """Does the work of a step by replaying a graph, one for each signature of its batches.

    The first steps of a signature run eagerly, so that a rare signature costs no capture. The next step is a rehearsal,
    then the graph is captured. All these steps train like any other. Work that cannot be captured runs eagerly from
    then on, and a logged line says why.

    The scalars that it returns are overwritten by the next step.
    """

    def __init__(self, work: Work, device: torch.device, *, graph: Callable[..., Graph] | None = None) -> None:
        self.work, self.device, self.graph = work, device, graph or CUDAGraph
        self.seen: dict[tuple, int] = {}
        """The number of steps of each signature so far, without replays."""
        self.recorded: dict[tuple, RecordedStep] = {}
        self.refused = self.full = False
        self.prepared = False
        """Whether the latest step took longer than later ones, because it compiled or captured."""

    def __call__(self, batches: Iterable[Batch], number: int) -> Scalars:
        self.prepared = False
        if self.refused:
            return self.work(batches, number)
        batches = list(batches)
        key = tuple(signature(batch) for batch in batches)
        if key in self.recorded:
            return self._run(self.recorded[key], batches, number)
        if len(self.recorded) == MOST:
            if not self.full:
                say(f"there are {MOST} captured graphs: batches with further shapes run eagerly")
            self.full = True
            return self.work(batches, number)
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.seen[key] <= RARE:
            self.prepared = self.seen[key] == 1  # it may have compiled
            return self.work(batches, number)
        first = next(iter(self.recorded.values()), None)
        self.recorded[key] = recorded = RecordedStep(batches, self.device, self.graph(first and first.graph))
        recorded.fill(batches)
        self.prepared = True
        return recorded.graph.warm_up(lambda: self.work(recorded.inputs(batches, bare=False), number))

    def _run(self, recorded: RecordedStep, batches: list[Batch], number: int) -> Scalars:
        recorded.fill(batches)
        if not recorded.ready:
            self.prepared, began = True, time.monotonic()
            try:
                recorded.graph.capture(lambda: self.work(recorded.inputs(batches, bare=True), number))
            except Exception as error:
                self.refused = True
                self.recorded.clear()
                say(f"the step cannot be captured ({reason(error)}): training continues eagerly")
                return self.work(batches, number)
            recorded.ready = True
            log.info("a step of %d images is captured, in %.1f s", sum(map(size, batches)), time.monotonic() - began)
        return recorded.graph.replay()


def signature(batch: Batch) -> tuple:
    """Return the signature of a batch: its shapes, dtypes and plain values. Batches with equal signatures share a
    graph."""
    return tuple(
        (tuple(field.shape), field.dtype) if isinstance(field, Tensor)
        else signature(field) if is_tensors(field)
        else (type(field), field if isinstance(field, PLAIN) else None)
        for field in batch
    )  # fmt: skip

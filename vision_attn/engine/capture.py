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
"""All device work of a step over that number of batches. Returns its scalars."""

RARE = 2
"""Steps of each signature that run eagerly, as those of a rare one always do: they compile, choose algorithms and
create the optimizer's state."""
WARM_UP = RARE + 1
"""Steps of each signature before its capture. The last one is a rehearsal."""
MOST = 24
"""Graphs of one run. Each keeps the memory of its inputs; batches with further signatures run eagerly."""

PLAIN = (type(None), bool, int, float, str, Static)
"""Parts of a batch that belong to its signature as they are."""


class Recorded:
    """The graph of one signature, with the buffers from which it reads its batches."""

    def __init__(self, batches: list[Batch], device: torch.device, graph: Graph) -> None:
        self.graph, self.ready = graph, False
        self.buffers = [buffers(batch, device) for batch in batches]

    def fill(self, batches: list[Batch]) -> None:
        """Copy the tensors of new batches to the buffers."""
        for some, batch in zip(self.buffers, batches, strict=True):
            copy_into(some, batch)

    def inputs(self, batches: list[Batch], *, bare: bool) -> list[Batch]:
        """Return `batches` with the buffers in place of their tensors. With `bare`, parts that a graph cannot read
        again, such as ids, are None: the graph would keep those of the batches at its capture."""
        return [from_buffers(some, batch, bare=bare) for some, batch in zip(self.buffers, batches, strict=True)]


def buffers(batch: Batch, device: torch.device) -> list:
    """A buffer for each tensor of a batch, in a list for a tuple of tensors, and None for any other part."""
    return [
        torch.empty_like(part, device=device) if isinstance(part, Tensor)
        else buffers(part, device) if is_tensors(part)
        else None
        for part in batch
    ]  # fmt: skip


def copy_into(buffers: list, batch: Batch) -> None:
    for buffer, part in zip(buffers, batch, strict=True):
        if isinstance(buffer, list):
            copy_into(buffer, part)
        elif buffer is not None:
            buffer.copy_(part, non_blocking=True)


def from_buffers(buffers: list, batch: Batch, *, bare: bool) -> Batch:
    parts = [
        from_buffers(buffer, part, bare=bare) if isinstance(buffer, list)
        else part if buffer is None and (isinstance(part, PLAIN) or not bare)
        else buffer
        for buffer, part in zip(buffers, batch, strict=True)
    ]  # fmt: skip
    return like(batch, parts)


class Captured:
    """Does the work of a step by replaying a graph, one for each signature of its batches.

    The first steps of a signature run eagerly, so that a rare one costs no more than that; the next one is rehearsed,
    and then its graph is captured. All of them train as any other step does. Work that cannot be captured runs eagerly
    from then on, and a line says why.

    The scalars that it returns are overwritten by the next step.
    """

    def __init__(self, work: Work, device: torch.device, *, graph: Callable[..., Graph] | None = None) -> None:
        self.work, self.device, self.graph = work, device, graph or CUDAGraph
        self.seen: dict[tuple, int] = {}
        """The steps of each signature so far that were no replays."""
        self.recorded: dict[tuple, Recorded] = {}
        self.refused = self.full = False
        self.prepared = False
        """Whether the latest step prepared others that are like it, and so took longer than these will."""

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
        self.recorded[key] = one = Recorded(batches, self.device, self.graph(first and first.graph))
        one.fill(batches)
        self.prepared = True
        return one.graph.warm_up(lambda: self.work(one.inputs(batches, bare=False), number))

    def _run(self, one: Recorded, batches: list[Batch], number: int) -> Scalars:
        one.fill(batches)
        if not one.ready:
            self.prepared, began = True, time.monotonic()
            try:
                one.graph.capture(lambda: self.work(one.inputs(batches, bare=True), number))
            except Exception as error:
                self.refused = True
                self.recorded.clear()
                say(f"the step cannot be captured ({reason(error)}): training continues eagerly")
                return self.work(batches, number)
            one.ready = True
            log.info("a step of %d images is captured, in %.1f s", sum(map(size, batches)), time.monotonic() - began)
        return one.graph.replay()


def signature(batch: Batch) -> tuple:
    """Return what must be the same for two batches to share a graph: shapes, dtypes and plain values."""
    return tuple(
        (tuple(part.shape), part.dtype) if isinstance(part, Tensor)
        else signature(part) if is_tensors(part)
        else (type(part), part if isinstance(part, PLAIN) else None)
        for part in batch
    )  # fmt: skip

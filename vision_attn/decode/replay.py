"""Searches on a GPU: a CUDA graph of one time step is recorded for each shape of search, and replayed for each word."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import Lock
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.contracts import Captioner
from vision_attn.contracts.nested import Nested, tensors_of
from vision_attn.decode.captured_search import Growing, Search
from vision_attn.decode.hypotheses import Decoded, Selector
from vision_attn.decode.rules import Rules
from vision_attn.fast.cast import HeldCasts
from vision_attn.fast.graphs import CUDAGraph, Graph, graphs_unwanted, reason
from vision_attn.system.console import say

MOST = 4
"""The largest number of graphs that are kept for a captioner, each with its buffers. The least recently used one is
dropped."""
WARM_UP = 2
"""The number of time steps that run before a capture, in the way that will be recorded."""
REMEMBERED = 256
"""The number of shapes of searches that are remembered. The first search of a shape is not recorded, since it may be
the only one."""


def has_graphs(device: torch.device) -> bool:
    """Return whether searches on `device` replay graphs."""
    return CUDAGraph.available(device)


@torch.inference_mode(False)  # buffers that are made in inference mode could not be written to outside of it
@torch.no_grad()
def replayed(
    captioner: Captioner,
    regions: Float[Tensor, "B L D"],
    rows: int,
    rules: Rules,
    selector: Selector,
    *,
    generator: torch.Generator | None = None,
    length_power: float = 0.0,
) -> Decoded | None:
    """Decode `rows` captions of each image as `loop.decoded` does. From the second search of a shape on, time steps are
    replayed.

    Return None for a captioner whose state has no fixed shapes, because it grows from word to word.
    """
    graphs = _graphs.setdefault(captioner, Graphs())
    if graphs.growing:
        return None
    memory, state = captioner.start(regions, rows)
    recording = regions.is_cuda and torch.cuda.is_current_stream_capturing()  # of a graph around this search
    free = not (recording or graphs_unwanted() or graphs.refused) and graphs.lock.acquire(blocking=False)
    try:
        recorded = graphs.find(captioner, memory, state, rules, selector) if free else None
        search = Search(captioner, memory, state, rules, selector) if recorded is None else recorded.search
        search.start(memory, state, generator)
        if recorded is not None and recorded.casts is not None:
            recorded.casts.renew()
        number = search.run(partial((recorded or search).advance, captioner), whole=recording)
        if recorded is not None and recorded.refused:
            graphs.refuse()
        return search.decoded(number, length_power)
    except Growing as error:
        graphs.growing = True
        say(f"{error}: words are not replayed from a captured graph, and decoding is slower")
        return None
    finally:
        if free:
            graphs.lock.release()


class RecordedSearch:
    """The CUDA graph of a time step of a search, with the buffers that it reads and writes."""

    def __init__(self, search: Search, graph: Graph, weights: list[Tensor], casts: HeldCasts | None) -> None:
        self.search, self.graph, self.rehearsals = search, graph, 0
        self.ready = self.refused = False
        self.weights = weights
        """The weights at the capture. The graph reads their memory."""
        self.casts = casts
        """The casts of the weights, under autocast."""

    def advance(self, captioner: Captioner) -> None:
        """Perform a time step: eagerly as a warm-up, then by recording it, then by replaying it."""
        step = partial(self.search.advance, captioner)
        if self.refused:
            return step()
        if self.rehearsals < WARM_UP:
            self.rehearsals += 1
            with self._casting():
                return self.graph.warm_up(step)
        if not self.ready:
            try:
                with self._casting():
                    self.graph.capture(step)
            except Exception as error:  # depends on what the captioner does that no graph can
                self.refused = True
                say(f"a word of {type(captioner).__name__} cannot be captured ({reason(error)}): decoding runs eagerly")
                return step()
            self.ready = True
        return self.graph.replay()

    @contextmanager
    def _casting(self) -> Iterator[None]:
        """Context manager: disable autocast's cache of casts. A graph must not read casts that were made outside of it,
        nor leave its own to other code."""
        device_type = self.search.rules.device.type
        on, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
        with (
            torch.autocast(device_type, dtype, enabled=on, cache_enabled=False),
            self.casts.in_use() if self.casts else nullcontext(),
        ):
            yield


class Graphs:
    """The graphs of one captioner."""

    def __init__(self) -> None:
        self.recorded: OrderedDict[tuple, RecordedSearch] = OrderedDict()
        self.seen: set[tuple] = set()
        self.refused = self.growing = False
        self.lock = Lock()
        """Held during a search, since buffers serve one search at a time. Meanwhile, searches of other threads run
        eagerly."""

    def find(
        self, captioner: Captioner, memory: Nested, state: Nested, rules: Rules, selector: Selector
    ) -> RecordedSearch | None:
        """Return the `RecordedSearch` for this shape of search, new or recorded; None for the first search of a shape,
        which may be the only one."""
        weights = [weight.detach() for weight in (*captioner.parameters(), *captioner.buffers())]
        places = tuple((weight.data_ptr(), weight.dtype) for weight in weights)
        key = (rules.key, selector, _signature(memory), _signature(state), _manner(captioner, rules.device), places)
        if key in self.recorded:
            self.recorded.move_to_end(key)
            return self.recorded[key]
        if key not in self.seen:
            if len(self.seen) == REMEMBERED:
                self.seen.clear()
            self.seen.add(key)
            return None
        for other in [other for other in self.recorded if other[-1] != places]:
            del self.recorded[other]  # of weights that have moved to another device or dtype
        if len(self.recorded) == MOST:
            self.recorded.popitem(last=False)
        first = next(iter(self.recorded.values()), None)
        search, device_type = Search(captioner, memory, state, rules, selector), rules.device.type
        on, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
        casts = HeldCasts(captioner, dtype) if on else None
        self.recorded[key] = RecordedSearch(search, CUDAGraph(first.graph if first else None), weights, casts)
        return self.recorded[key]

    def refuse(self) -> None:
        """Decode eagerly from now on."""
        self.refused = True
        self.recorded.clear()


_graphs: WeakKeyDictionary[Captioner, Graphs] = WeakKeyDictionary()


def _signature(nested: Nested) -> tuple:
    """Return the shapes and dtypes of nested tensors."""
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors_of(nested))


def _manner(captioner: Captioner, device: torch.device) -> tuple:
    """Return the modes of attention and autocast, on which the kernels of a captioner depend."""
    captioners = [module for module in captioner.modules() if isinstance(module, Captioner)]
    modes = tuple((member.training, member.mode) for member in captioners)
    return modes, torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)

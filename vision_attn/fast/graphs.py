"""`CUDAGraph`: record the kernels of a function once, and replay them without launching each kernel from Python.
Training (`engine.capture`) and decoding (`decode.replay`) use it.
"""

import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vision_attn.system.context_variables import within
from vision_attn.system.locks import DRAWING

Result = Any
"""The result of a recorded function: tensors, which each replay overwrites."""

_unwanted: ContextVar[bool] = ContextVar("unwanted", default=False)


def without_graphs(wanted: bool = True) -> AbstractContextManager[None]:
    """Context manager: if `wanted`, do not record or replay searches."""
    return within(_unwanted, wanted)


def graphs_unwanted() -> bool:
    """Return whether the caller is within `without_graphs`."""
    return _unwanted.get()


class Graph:
    """Base class: records the work of a function on the device, and repeats it."""

    def __init__(self, like: "Graph | None" = None) -> None:
        """like: a graph that is never replayed at the same time, with which this one may share memory."""

    @staticmethod
    def available(device: torch.device) -> bool:
        """Return whether there are such graphs on `device`."""
        raise NotImplementedError

    def warm_up(self, function: Callable[[], Result]) -> Result:
        """Call `function` as it will be recorded, and return its result."""
        raise NotImplementedError

    def capture(self, function: Callable[[], Result]) -> None:
        """Record `function` without doing its work. Raises RuntimeError if it cannot be recorded."""
        raise NotImplementedError

    def replay(self) -> Result:
        """Do the recorded work. Returns the result of the recording, with new values."""
        raise NotImplementedError


class CUDAGraph(Graph):
    """Records the kernels that a function launches, and launches all of them at once.

    Random numbers come from torch's default generator of the device, as in an eager step: a replay advances it by the
    numbers that the kernels use.
    """

    def __init__(self, like: Any = None) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.stream: torch.cuda.Stream = like.stream if like else torch.cuda.Stream()
        self.pool: Any = like.pool if like else torch.cuda.graph_pool_handle()
        self.trouble = ""

    @staticmethod
    def available(device: torch.device) -> bool:
        return device.type == "cuda" and torch.cuda.is_available()

    def warm_up(self, function: Callable[[], Result]) -> Result:
        # Also notes whether the function waits for the device, which no graph can.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), own_warnings() as caught:
            mode = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = function()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        torch.cuda.current_stream().wait_stream(self.stream)
        waits = [warning for warning in caught if "synchronizing CUDA operation" in str(warning.message)]
        for warning in caught:
            if warning not in waits and not str(warning.message).startswith(
                "Synchronization debug mode is a prototype"
            ):
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        self.trouble = f"it waits for the device in {waits[0].filename}, line {waits[0].lineno}" if waits else ""
        return result

    def capture(self, function: Callable[[], Result]) -> None:
        if self.trouble:  # A capture that fails may leave CUDA in disorder, so it is not tried.
            raise RuntimeError(self.trouble)
        stream = torch.cuda.current_stream()
        try:
            # A capture notes in the device's generator of random numbers that it runs: others that draw have to wait.
            with (
                DRAWING,
                torch.cuda.graph(self.graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"),
            ):
                self.result = function()
        except Exception:  # Torch leaves the stream and the generator as they were within the capture.
            torch.cuda.set_stream(stream)
            generator = torch.cuda.default_generators[stream.device.index]
            generator.graphsafe_set_state(generator.clone_state())
            raise

    def replay(self) -> Result:
        self.graph.replay()
        return self.result


@contextmanager
def own_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Context manager: collect all warnings of this thread; warnings of other threads are shown. Other threads that
    want to collect wait, since Python has one setting for warnings."""
    collected, mine = list[warnings.WarningMessage](), threading.get_ident()
    with _collecting, warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
            if threading.get_ident() == mine:
                collected.append(warnings.WarningMessage(message, category, filename, lineno, file, line))
            else:
                shown(message, category, filename, lineno, file, line)

        warnings.simplefilter("always")
        warnings.showwarning = show
        yield collected


_collecting = threading.RLock()


def reason(error: BaseException) -> str:
    """Return the first line of the original error of a failed capture, and the place in the recorded code that raised
    it. Errors from the end of the capture itself are ignored."""
    cause = error.__context__ or error
    said = str(cause).strip().split("\n")[0] or type(cause).__name__
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if _is_model_code(frame.filename)]
    return f"{said}, in {frames[-1].filename}, line {frames[-1].lineno}" if frames else said


def _is_model_code(file: str) -> bool:
    """Return whether a file belongs to neither torch, nor this module, nor the engine, but to a model or a task."""
    others = Path(torch.__file__).parent, Path(__file__), Path(__file__).parents[1] / "engine"
    return not any(Path(file).is_relative_to(other) for other in others)


class Later:
    """A number on the device that the host reads later. Reading waits only for work of the device that was launched
    before the number was noted."""

    def __init__(self, number: Tensor) -> None:
        self.noted = torch.empty(number.shape, dtype=number.dtype, pin_memory=number.is_cuda)
        self.noted.copy_(number, non_blocking=True)
        self.event = torch.cuda.Event() if number.is_cuda else None
        if self.event is not None:
            self.event.record(torch.cuda.current_stream(number.device))

    def read(self) -> bool | int | float:
        """Return the number."""
        if self.event is not None:
            self.event.synchronize()
        return self.noted.item()

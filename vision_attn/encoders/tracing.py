"""Trace networks by torch.fx while other threads compute.

While torch.fx traces, it replaces `nn.Module.__call__` and `__getattr__` for the whole process. So calls of other
threads reach the tracer, which takes them for calls of its network. Two tracers at once would restore each other's
replacements.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.fx import Graph, Tracer

_one_at_a_time = threading.RLock()


class _OwnThread(Tracer):
    """Traces only the calls of its own thread."""

    def trace(self, *args: Any, **options: Any) -> Graph:
        with _one_at_a_time:
            self._thread = threading.get_ident()
            return super().trace(*args, **options)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def traced_by_torch(network: nn.Module) -> Graph:
    """Return the graph that `torch.fx.symbolic_trace` finds. Raises any error of a layer that cannot be traced."""
    return _OwnThread().trace(network)


@contextmanager
def own_thread_in(library: Any) -> Iterator[None]:
    """Context manager: let the tracers of `library` (`torchvision.models.feature_extraction`) trace only the calls of
    their own thread. The library has no option for the class of its tracer."""
    with _one_at_a_time:
        theirs = library.NodePathTracer

        library.NodePathTracer = type("NodePathTracer", (_OwnThread, theirs), {})
        try:
            yield
        finally:
            library.NodePathTracer = theirs

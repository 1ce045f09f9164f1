"""Limits on the memory of this process, errors for lack of memory, freed blocks in the C library, and garbage
collection."""

import atexit
import ctypes
import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import walk_tb

from vision_attn.system.console import bytes_of, reason_of

MEMINFO = Path("/proc/meminfo")
_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
GROUP = ((_V2 / "memory.max", _V2 / "memory.current"), (_V1 / "memory.limit_in_bytes", _V1 / "memory.usage_in_bytes"))
"""The files with the limit of a control group, such as a container, and with the memory that its processes use."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**30
ENOUGH = 2**33
"""Bytes of address space in which any build of PyTorch can be imported."""
_SIGNS = (
    "out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory", "bad_alloc",
    "status_alloc_failed", "failed to map segment",
)  # fmt: skip
_SIGNS_UNDER_A_LIMIT = ("could not create a primitive", "can't start new thread", "shared object file")
"""Texts in errors of libraries where memory is short. Those of `_SIGNS_UNDER_A_LIMIT` may have other causes, and count
only where memory is limited."""


def limit() -> int | None:
    """Return the bytes of address space that this process may have (`ulimit -v`); None for no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    bytes_ = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if bytes_ == resource.RLIM_INFINITY else bytes_


def available() -> int:
    """Return the bytes of memory that this process may take without others losing theirs: the free memory within the
    limits of its control group and of its address space, divided among the processes of a run on this machine. 0 if the
    system does not tell."""
    bounds = []
    with suppress(OSError, ValueError, IndexError, StopIteration):
        lines = MEMINFO.read_text().splitlines()
        bounds.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    for most, used in GROUP:
        with suppress(OSError, ValueError):  # no limit is a word in version 2, and a huge number in version 1
            bounds.append(int(most.read_text()) - int(used.read_text()))
    if not bounds:
        return 0
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(0, min(*bounds, limit() or sys.maxsize)) // processes


def check_address_space() -> None:
    """Raise MemoryError if this process may have too little memory to import PyTorch, which would end it with a message
    of C++. If the limit is low, a child process tries the import."""
    if (bytes_ := limit()) is None or bytes_ >= ENOUGH or "torch" in sys.modules:
        return
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode:
        raise MemoryError("PyTorch cannot be loaded")


def is_short_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, says that memory is short."""
    signs = _SIGNS if limit() is None else _SIGNS + _SIGNS_UNDER_A_LIMIT
    while error is not None:
        text = str(error).lower()
        if isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError | OSError | ImportError)
            and any(sign in text for sign in signs)
            and "not permitted" not in text  # of a disk from which no program may run
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def shortage(error: BaseException) -> str:
    """Return the reason in an error for lack of memory, without the advice of its library, and with bytes in a readable
    unit."""
    if any(_of_an_import(cause) for cause in (error, error.__cause__) if cause is not None):
        return "a library could not be loaded"
    asked = re.search(r"tried to allocate ([\d.,]*\d) (\w+)", str(error), re.IGNORECASE)
    if asked is None:
        return reason_of(error)
    exact = asked[2].lower() in ("byte", "bytes") and asked[1].isdigit()
    return f"tried to allocate {bytes_of(int(asked[1])) if exact else f'{asked[1]} {asked[2]}'}"


def _of_an_import(error: BaseException) -> bool:
    """Return whether an error came from importing a module or loading a library."""
    frames = (frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__))
    return (
        isinstance(error, ImportError)
        or (isinstance(error, OSError) and re.search(r"shared object|\.so\b", str(error)) is not None)
        or any(file.startswith("<frozen importlib") for file in frames)
    )


def way_out() -> str:
    """Return advice for a lack of memory."""
    if (bytes_ := limit()) is not None:
        return f"this process may have {bytes_ / 1e9:.1f} GB: raise the limit (ulimit -v)"
    return "close other programs or, where a command has batches, use smaller ones, e.g. with --data.batch_size"


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks of up to 1 GiB in this process; does nothing with other C libraries.

    By default glibc returns freed blocks larger than 32 MiB to the system, and the next step has to map and zero their
    pages again. That takes a fifth of the time of a step of RAM on batches of 100x100 pixels on a CPU.
    """
    if (mallopt := _in_c_library("mallopt")) is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST)
        mallopt(M_TRIM_THRESHOLD, -1)  # never


def return_freed_memory() -> None:
    """Make glibc return the pages of all freed blocks to the system; does nothing with other C libraries.

    Blocks of ragged batches differ in size from step to step, and later blocks seldom fit into the gaps.
    """
    if (malloc_trim := _in_c_library("malloc_trim")) is not None:
        malloc_trim(ctypes.c_size_t(0))


def _in_c_library(name: str):
    """Return the function of the C library with this name, or None if there is none."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


@contextmanager
def collected_later() -> Iterator[None]:
    """Context manager: turn the garbage collector off, and let it ignore the objects created meanwhile from then on.

    For imports: torch creates a million permanent objects, and scanning them repeatedly takes a fifth of the time.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if running:
            gc.enable()


def left_at_exit() -> None:
    """At exit, leave all objects to the operating system, because scanning them once more takes 0.2 s. Files are closed
    and exit handlers run as always."""

    def leave() -> None:
        if "triton" in sys.modules:  # it complains of each of its objects that is left
            gc.unfreeze()
        else:
            gc.freeze()

    atexit.register(leave)

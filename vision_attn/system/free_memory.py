"""Measure the memory that this process may still use, uses now, and has used at most."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROCESS = Path("/proc/self")
MEMINFO = Path("/proc/meminfo")
GROUPS = Path("/sys/fs/cgroup")
FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""The files of a control group, such as a container, by version: its limit, the memory that it uses, and the part of it
that can be reclaimed."""


def available() -> int | None:
    """Return the bytes that this process may still take: by the machine, by its control groups (a container) and by
    `ulimit -v`; None if the system does not tell."""
    bounds = (_of_machine(), *_of_groups())
    return min((max(0, bound) for bound in bounds if bound is not None), default=None)


def resident() -> int:
    """Return the bytes of main memory that this process has now; 0 if the system does not tell."""
    return _field(PROCESS / "status", "VmRSS") or 0


def restart_peak() -> None:
    """Let `peak` count from now on, if the system can."""
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text("5")


def peak() -> int:
    """Return the largest number of bytes of main memory that this process has had; 0 if the system does not tell."""
    return _field(PROCESS / "status", "VmHWM") or 0


def _of_machine() -> int | None:
    """Return the bytes that programs may still take; without /proc half of the memory of the machine."""
    if (free := _field(MEMINFO, "MemAvailable")) is not None:
        return free
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):  # Windows has none of it
        return None


def _of_groups() -> Iterator[int]:
    """Yield the bytes that each control group of this process may still take, and each group that contains one."""
    lines = _text(PROCESS / "cgroup").splitlines()
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if controllers and "memory" not in controllers.split(","):
            continue
        root, names = (GROUPS / "memory", FILES[1]) if controllers else (GROUPS, FILES[2])
        own = root / path.lstrip("/")
        for folder in (own, *(parent for parent in own.parents if parent.is_relative_to(root))):
            most, used, cached = (folder / names[0], folder / names[1], names[2])
            if _text(most).strip().isdigit() and _text(used).strip().isdigit():
                kept = (line.split() for line in _text(folder / "memory.stat").splitlines())
                reclaimed = sum(int(words[1]) for words in kept if len(words) == 2 and words[0] == cached)
                yield int(_text(most)) - int(_text(used)) + reclaimed


def _field(path: Path, name: str) -> int | None:
    """Return the bytes in a line such as `VmRSS: 12 kB`."""
    lines = (line.split() for line in _text(path).splitlines())
    return next((int(words[1]) * 1024 for words in lines if words and words[0] == f"{name}:"), None)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

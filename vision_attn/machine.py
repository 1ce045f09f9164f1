"""What this machine is."""

import platform
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@cache
def processor() -> str:
    """The name of the processor, as far as the system knows it."""
    return _field("model name") or platform.processor() or platform.machine()


@cache
def is_intel() -> bool:
    """Whether the processor is Intel's."""
    return "GenuineIntel" in (_field("vendor_id") or platform.processor())


def _field(name: str) -> str:
    """The first value of a field in /proc/cpuinfo; empty where there is none."""
    lines = CPUINFO.read_text(errors="replace").splitlines() if CPUINFO.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")

"""Properties of this machine: its cores, its processor, and the device of torch that "auto" stands for."""

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

from vision_attn.system.errors import UserError

CPUINFO = Path("/proc/cpuinfo")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The file with the limit of a control group (version 2), such as a container: microseconds of processor time, and the
period in microseconds."""


def cores() -> int:
    """Return how many processor cores this process may use, by its affinity and by the limit of its control group."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = (QUOTA.read_text() if QUOTA.is_file() else "max").partition(" ")
    return allowed if quota.strip() == "max" else max(1, min(allowed, int(quota) // int(period)))


@cache
def processor() -> str:
    """Return the name of the processor, as far as the system knows it."""
    return _field("model name") or platform.processor() or platform.machine()


@cache
def is_intel() -> bool:
    """Return whether the processor is Intel's."""
    return "GenuineIntel" in (_field("vendor_id") or platform.processor())


@cache
def multiplies_bf16() -> bool:
    """Return whether oneDNN multiplies matrices of bfloat16 on this processor. Where it does not, such as without
    AVX-512, products take at least 6 times as long as in float32."""
    import torch

    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return torch.backends.mkldnn.is_available() and supported is not None and supported()


def best_device() -> str:
    """Return the device for "auto": cuda, mps (Apple's GPUs) or cpu."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def torch_device(name: str) -> Any:
    """Return the torch device `name`, or the best one for "auto". Raises UserError if there is no such device."""
    import torch

    try:
        return torch.empty(0, device=best_device() if name == "auto" else name).device
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device {name!r} is not available here: {str(error).splitlines()[0]}; use auto or cpu"
        ) from error


def _field(name: str) -> str:
    """Return the first value of a field in /proc/cpuinfo; empty where there is none."""
    lines = CPUINFO.read_text(errors="replace").splitlines() if CPUINFO.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")

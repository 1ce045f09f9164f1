"""Whether Triton's kernels run on a device, and how they are launched.

The files of kernels import triton, so they are imported where they are used. Setting TRITON_INTERPRET=1 before triton
is first imported runs the kernels on a CPU, slowly; tests do so.
"""

import os
import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch

TRITON = find_spec("triton") is not None
"""Whether triton is installed, as it is with torch's CUDA builds. Looked up without the second that importing takes."""

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels are interpreted. Triton's interpreter multiplies no matrices of bfloat16, so they are widened."""


@cache
def runs_on(device: torch.device) -> bool:
    """Whether the kernels run on `device`. Warns if they do not.

    Triton builds the code that launches a kernel when the kernel first runs. That takes a C compiler and the headers
    of Python, which not every machine has.
    """
    try:
        cell = import_module("vision_attn.kernels.lstm_triton")
        cell.update(torch.ones(1, 4, device=device), None, None, torch.ones(1, 1, device=device))
    except Exception as error:  # what Triton raises depends on what is missing, and on its version
        reason = (str(error) or type(error).__name__).splitlines()[0]
        warnings.warn(f"the step runs without its Triton kernels, so more slowly: {reason}", stacklevel=2)
        return False
    return True


def launch(kernel, grid: tuple[int, ...], *arguments: object, **options: object) -> None:
    """Run `kernel` on the device of its first argument. Does nothing for an empty grid."""
    if all(grid):
        with torch.cuda.device_of(arguments[0]):
            kernel[grid](*arguments, enable_fp_fusion=True, **options)

"""How Triton's kernels are launched.

The files of kernels import triton, so they are imported where they are used. Setting TRITON_INTERPRET=1 before triton
is first imported runs the kernels on a CPU, slowly; tests do so.
"""

import os

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels are interpreted. Triton's interpreter multiplies no matrices of bfloat16, so they are widened."""


def launch(kernel, grid: tuple[int, ...], *arguments: object, **options: object) -> None:
    """Run `kernel` on the device of its first argument. Does nothing for an empty grid."""
    if all(grid):
        with torch.cuda.device_of(arguments[0]):
            kernel[grid](*arguments, enable_fp_fusion=True, **options)

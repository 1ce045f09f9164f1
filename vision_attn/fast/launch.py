"""Launch Triton kernels, and register the operations that launch them as custom operators.

The files of kernels import triton, so they are imported where they are used. Setting TRITON_INTERPRET=1 before triton
is first imported runs the kernels on a CPU, slowly; tests do so.
"""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.library import CustomOpDef

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels are interpreted. Triton's interpreter multiplies no matrices of bfloat16, so they are widened."""


class Declared(NamedTuple):
    """An operation, and the kernels that it launches."""

    function: Callable
    """The function that the operator runs."""
    launches: int | Callable[..., int]

    def kernels(self, *arguments: object) -> int:
        """Return the number of kernels that a call with these arguments launches: Triton's, sums of partial sums by
        torch, and the copies of tensors that are not contiguous."""
        own = self.launches if isinstance(self.launches, int) else self.launches(*arguments)
        return own + sum(isinstance(argument, Tensor) and not argument.is_contiguous() for argument in arguments)


OPERATIONS: dict[str, Declared] = {}
"""Operations by the names of their operators. A file of kernels adds its operations when it is imported."""


def operation(
    name: str, *, launches: int | Callable[..., int] = 1, mutates_args: Sequence[str] = ()
) -> Callable[[Callable], CustomOpDef]:
    """Register a function as a custom operator, as `torch.library.custom_op` does.

    launches: the number of kernels that a call launches for contiguous tensors, or a function from its arguments to
        this number. `benchmarks.fake_gpu` uses it, and a test compares it with the launches.
    """

    def registered(function: Callable) -> CustomOpDef:
        OPERATIONS[f"vision_attn::{name}"] = Declared(function, launches)
        return torch.library.custom_op(f"vision_attn::{name}", function, mutates_args=mutates_args)

    return registered


def launch(kernel, grid: tuple[int, ...], *arguments: object, **options: object) -> None:
    """Run `kernel` on the device of its first argument. Does nothing for an empty grid."""
    if all(grid):
        with torch.cuda.device_of(arguments[0]):
            kernel[grid](*arguments, enable_fp_fusion=True, **options)

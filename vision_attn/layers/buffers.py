"""Buffers that a forward pass changes, such as the number of batches so far."""

import torch
from torch import Tensor


def value_before(buffer: Tensor) -> Tensor:
    """The value of a buffer, for a forward pass that changes the buffer later on.

    torch.compile, of every version so far (2.11 to 2.15), computes cheap values again in the backward pass, and reads
    the buffer for it, which by then has the new value: gradients are those of the next batch. What a custom operator
    returns is kept instead.
    """
    return _copy(buffer) if torch.compiler.is_compiling() else buffer


@torch.library.custom_op("vision_attn::value_before", mutates_args=())
def _copy(buffer: Tensor) -> Tensor:
    return buffer.clone()


@_copy.register_fake
def _(buffer: Tensor) -> Tensor:
    return torch.empty_like(buffer)

"""Buffers that a forward pass changes, such as the number of batches so far."""

import torch
from torch import Tensor


def value_before(buffer: Tensor) -> Tensor:
    """Return a copy of a buffer, for a forward pass that changes the buffer later on.

    Every version of torch.compile so far (2.11 to 2.15) computes cheap values, such as a clone, again in the backward
    pass. It then reads the buffer, which has the new value by then, so that gradients are those of the next batch. This
    operator is unknown to the compiler, which keeps its output instead.
    """
    return torch.ops.vision_attn.value_before(buffer)


# Not `torch.library.custom_op`, whose first call imports torch's compiler, also where nothing is compiled.
torch.library.define("vision_attn::value_before", "(Tensor buffer) -> Tensor")


@torch.library.impl("vision_attn::value_before", "CompositeExplicitAutograd")
def _(buffer: Tensor) -> Tensor:
    return buffer.clone()


@torch.library.register_fake("vision_attn::value_before")
def _(buffer: Tensor) -> Tensor:
    return torch.empty_like(buffer)

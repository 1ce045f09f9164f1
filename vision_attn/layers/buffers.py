"""Buffers that a forward pass changes, such as the number of batches so far."""

import torch
from torch import Tensor


def value_before(buffer: Tensor) -> Tensor:
    """Return a copy of a buffer, for a forward pass that changes the buffer later on.

    torch.compile, of every version so far (2.11 to 2.15), computes cheap values again in the backward pass, a clone
    included, and reads the buffer for it, which by then has the new value: gradients are those of the next batch. What
    an operator returns that the compiler does not know is kept instead.
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

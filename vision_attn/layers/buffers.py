"""`value_before`: read a buffer that the same forward pass changes later, such as the number of batches, safely under
torch.compile."""

import torch
from torch import Tensor


def value_before(buffer: Tensor) -> Tensor:
    """Return a copy of a buffer, for a forward pass that changes the buffer later on.

    torch.compile (2.11 to 2.15) recomputes cheap values, such as a clone, in the backward pass. It would read the
    changed buffer there, and compute the gradients of the next batch. The compiler cannot look into this operator, so
    it keeps the output instead.
    """
    return torch.ops.vision_attn.value_before(buffer)


# Not `torch.library.custom_op`, whose first call imports torch's compiler even if nothing is compiled.
torch.library.define("vision_attn::value_before", "(Tensor buffer) -> Tensor")


@torch.library.impl("vision_attn::value_before", "CompositeExplicitAutograd")
def _(buffer: Tensor) -> Tensor:
    return buffer.clone()


@torch.library.register_fake("vision_attn::value_before")
def _(buffer: Tensor) -> Tensor:
    return torch.empty_like(buffer)

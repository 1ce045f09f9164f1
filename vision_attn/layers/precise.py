"""Where half precision is too coarse."""

import torch
from torch import Tensor


def precise(numbers: Tensor) -> Tensor:
    """`numbers` in float32 at least, whatever autocast made of them; wider ones stay as they are."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))

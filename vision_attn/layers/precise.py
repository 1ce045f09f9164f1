"""Conversion to float32 where half precision is too coarse."""

import torch
from torch import Tensor


def precise(numbers: Tensor) -> Tensor:
    """Convert half precision, such as autocast produces, to float32. Wider tensors are returned unchanged."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))

"""Conversion to float32 or float64 where fewer digits are too coarse."""

import torch
from torch import Tensor


def precise(numbers: Tensor) -> Tensor:
    """Convert half precision, such as autocast produces, to float32. Wider tensors are returned unchanged."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


WITHOUT_DOUBLE = {"mps"}
"""Kinds of devices that have no float64."""


def double(numbers: Tensor) -> Tensor:
    """Convert to float64, or to float32 on a device that has no float64."""
    return numbers.float() if numbers.device.type in WITHOUT_DOUBLE else numbers.double()

"""Convert to float32 or float64 where half precision is too coarse, and compute in bfloat16."""

from collections.abc import Callable

import torch
from torch import Tensor

from vision_attn.contracts import Precision


def at_least_float32(numbers: Tensor) -> Tensor:
    """Convert half precision, such as autocast produces, to float32. Wider tensors are returned unchanged."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype of products with `tensor`, which autocast may change."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


WITHOUT_DOUBLE = {"mps"}
"""Device types that have no float64."""


def double(numbers: Tensor) -> Tensor:
    """Convert to float64, or to float32 on a device that has no float64."""
    return numbers.float() if numbers.device.type in WITHOUT_DOUBLE else numbers.double()


def call_in(precision: Precision, network: Callable[[Tensor], Tensor], numbers: Tensor) -> Tensor:
    """Call `network` in bfloat16 and return float32 if `precision` is "bf16"; for "fp32", call it in the current
    precision."""
    if precision == "fp32":
        return network(numbers)
    with torch.autocast(numbers.device.type, torch.bfloat16):
        return network(numbers).float()

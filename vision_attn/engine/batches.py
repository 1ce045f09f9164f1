"""Batches: moving them to the device, slicing and counting them."""

from typing import Any

import torch
from torch import Tensor

from vision_attn.attention.images import Images
from vision_attn.task import Batch, Static


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors and `Images` on `device`, also in NamedTuples within it; other fields are
    unchanged."""

    def moved(part: Any) -> Any:
        if isinstance(part, Tensor | Images):
            return part.to(device, non_blocking=device.type == "cuda")
        return on_device(part, device) if hasattr(part, "_fields") else part

    return like(batch, [moved(part) for part in batch])


def few(batch: Batch, number: int) -> Batch:
    """Return the first `number` images of a batch whose fields each hold one entry per image, or `Static`, or None."""
    return like(batch, [part if part is None or isinstance(part, Static) else part[:number] for part in batch])


def like(batch: Batch, parts: list) -> Batch:
    """Return a batch of the type of `batch` with other parts."""
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def size(batch: Batch) -> int:
    """Return the number of images in a batch: the length of its first tensor."""
    return next((len(part) for part in batch if isinstance(part, Tensor)), 0)

"""Batches: moving them to the device, slicing and counting them."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from vision_attn.attention.images import Images
from vision_attn.console import progress
from vision_attn.engine.interrupt import Interrupt
from vision_attn.task import Batch


class Watched:
    """Validation batches with a progress bar: moves each to the device, and stops the run at an interrupt."""

    def __init__(self, batches: Iterable[Batch], device: torch.device, interrupt: Interrupt) -> None:
        self.batches, self.device, self.interrupt = batches, device, interrupt

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in progress(self.batches, what="validation", unit="batch"):
            if self.interrupt.asked:
                self.interrupt.leave("stopped during validation")
            yield on_device(batch, self.device)


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors and `Images` on `device`; other fields are unchanged."""
    parts = [part.to(device, non_blocking=True) if isinstance(part, Tensor | Images) else part for part in batch]
    return like(batch, parts)


def few(batch: Batch, number: int) -> Batch:
    """Return the first `number` images of a batch whose fields each hold one entry per image, or None."""
    return like(batch, [part if part is None else part[:number] for part in batch])


def like(batch: Batch, parts: list) -> Batch:
    """Return a batch of the type of `batch` with other parts."""
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def size(batch: Batch) -> int:
    """Return the number of images in a batch: the length of its first tensor."""
    return next((len(part) for part in batch if isinstance(part, Tensor)), 0)

"""Batches on their way from a source to a task."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from vision_attn.console import progress
from vision_attn.engine.interrupt import Interrupt
from vision_attn.task import Batch


class Watched:
    """Batches on their way to an evaluation: moved to the device, and ended at once by an interrupt."""

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
    """The batch with its tensors on `device`; what is no tensor stays as it is."""
    parts = [part.to(device, non_blocking=True) if isinstance(part, Tensor) else part for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def few(batch: Batch, number: int) -> Batch:
    """The first images of a batch, each of whose fields holds one entry per image."""
    parts = [part if part is None else part[:number] for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def size(batch: Batch) -> int:
    """The images of a batch: the length of its first tensor."""
    return next((len(part) for part in batch if isinstance(part, Tensor)), 0)

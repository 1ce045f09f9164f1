"""Make batches from photographs that are streamed from shards."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vision_attn.contracts import PAD
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.images.resizing import grouped, squares
from vision_attn.data.images.squares import in_threads
from vision_attn.system.console import printable

log = logging.getLogger("vision_attn.data.photographs.shards")


class Picked(NamedTuple):
    """A decoded sample with the captions that were chosen for a batch, as targets (`Vocabulary.targets`), longest
    first."""

    name: str
    pixels: UInt8[np.ndarray, "h w 3"]
    words: list[list[int]]
    captions: tuple[str, ...]


def readable(items: Iterable[Picked | str]) -> list[Picked]:
    """Return the samples that could be read. The others, given by a message, are logged."""
    picked = []
    for item in items:
        if isinstance(item, str):
            log.warning("%s", printable(item))
        else:
            picked.append(item)
    return picked


def batches(
    samples: Iterable[list[Picked]], resolution: int, device: torch.device, number: int | None = None
) -> Iterator[CaptionBatch]:
    """Yield batches. For a CPU, a thread resizes photographs while the previous batch is in use; a GPU resizes them
    itself, in the caller's thread.

    samples: the samples of each batch.
    number: the largest number of batches; None: no limit.
    """

    def begun(items: list[Picked]) -> CaptionBatch:
        batch = _batch(items)
        return finished(batch) if device.type == "cpu" else batch

    def finished(batch: CaptionBatch) -> CaptionBatch:
        groups: Any = batch.images
        return batch if isinstance(groups, Tensor) else batch._replace(images=squares(groups, resolution, device))

    yield from map(finished, in_threads(begun, islice(samples, number), ahead=1, threads=1))


def _batch(items: Sequence[Picked]) -> CaptionBatch:
    """Return photographs with the longest caption come first. They are not resized yet."""
    items = sorted(items, key=lambda item: -len(item.words[0]))
    longest = len(items[0].words[0])
    words = [[row + [PAD] * (longest - len(row)) for row in item.words] for item in items]
    groups: Any = grouped([item.pixels for item in items])
    return CaptionBatch(
        images=groups,
        words=torch.tensor(words),
        ids=tuple(item.name for item in items),
        references=tuple(item.captions for item in items),
        files=(None,) * len(items),
        boxes=(None,) * len(items),
    )

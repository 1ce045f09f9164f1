"""Ensembles: several trained captioners that write captions together.

An ensemble is a `Captioning` like any other. Its encoder runs those of all runs in parallel
(`encoders/concatenated.py`), and its captioner averages their probabilities (`models/ensemble.py`), so decoding,
metrics and pictures are those of a single run. Its data is that of the first run, with the cached annotation vectors of
each encoder.
"""

from collections.abc import Iterable, Iterator, Sequence, Sized
from copy import copy
from dataclasses import asdict
from itertools import accumulate
from math import prod
from typing import Any

import torch

from vision_attn.contracts import Encoder
from vision_attn.data.counted_batches import Counted
from vision_attn.encoders.concatenated import Concatenated
from vision_attn.models.ensemble import Ensemble, Share
from vision_attn.system.errors import UserError
from vision_attn.task import Batch, Source, Task
from vision_attn.tasks.caption import Captioning


def ensemble(tasks: Sequence[Captioning], source: Source) -> tuple[Captioning, Source]:
    """Build an ensemble of trained captioners. Return the ensemble and its data.

    Captions are decoded with the settings of the first task, whose data is `source`. Tasks with equal encoders share
    one. Raises UserError if the vocabularies differ, or for runs that read lines.
    """
    first = tasks[0]
    if any(-1 in task.encoder.grid and not task.encoder.pads for task in tasks):
        raise UserError(
            "an ensemble is of captioners: runs that read lines are not averaged; vision-attn transcribe reads with one"
        )
    for number, task in enumerate(tasks[1:], start=2):
        if task.vocabulary.words != first.vocabulary.words:
            raise UserError(
                f"run {number} of the ensemble has another vocabulary ({len(task.vocabulary):,} words) than the first "
                f"({len(first.vocabulary):,} words), so their probabilities cannot be averaged: train the runs of an "
                "ensemble on the same captions, or with the same data.vocabulary"
            )
    groups = _distinct(tasks)
    encoders = [alike[0].encoder for alike in groups]
    if len(groups) > 1 and any(encoder.pads for encoder in encoders):
        raise UserError(
            "an ensemble over annotation vectors whose number differs from image to image is one of runs on the same "
            "vectors"
        )
    joined = None if len(encoders) == 1 else Concatenated(encoders)
    shares = {task: share for alike, share in zip(groups, _shares(encoders), strict=True) for task in alike}
    model = Ensemble(
        [task.model for task in tasks],
        [shares[task] for task in tasks],
        same_regions=len({task.encoder.layout for task in tasks}) == 1,
    )
    whole = Captioning(
        source,
        encoder=encoders[0] if joined is None else joined,
        model=lambda *_: model,
        criteria={},
        evaluators=first.evaluators,
        validate_with=first.validate_with,
        **asdict(first.decoding),
    )
    whole.unit = first.unit
    return whole.eval(), source if joined is None else Together(source, [alike[0] for alike in groups], joined)


class Together(Source):
    """The data of one source for several encoders, each with its own cache of annotation vectors."""

    tasks: Sequence[Captioning]
    encoder: Concatenated

    def __init__(self, source: Source, tasks: Sequence[Captioning], encoder: Concatenated):
        self.vocabulary, self.content_words, self.cache = source.vocabulary, source.content_words, source.cache
        self.tasks, self.encoder = tasks, encoder
        self.sources = [copy(source) for _ in tasks]

    def only(self, split: str) -> None:
        for source in self.sources:
            source.only(split)

    def prepare(self, task: Task) -> None:
        for source, captioner in zip(self.sources, self.tasks, strict=True):
            source.prepare(captioner)

    @property
    def caption_language(self) -> Any:
        return self.sources[0].caption_language

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        parts = [source.split(name, rank=rank, world=world) for source in self.sources]
        batches = self._joined(parts)
        return Counted(batches, len(parts[0])) if isinstance(parts[0], Sized) else batches

    def _joined(self, parts: Sequence[Iterable[Batch]]) -> Iterator[Batch]:
        """Join the batches of all encoders: their annotation vectors side by side, or pixels if all encoders take the
        same ones."""
        for batches in zip(*parts, strict=True):
            batch = batches[0]
            if any(other.ids != batch.ids for other in batches):
                raise UserError(
                    "the caches of annotation vectors hold different photographs: some could not be read when one of "
                    "them was made; make them again with --data.verify=true"
                )
            images = [own.images for own in batches]
            if any(own.dtype != torch.uint8 or own.shape != images[0].shape for own in images):
                device = next(self.encoder.parameters()).device
                regions = [task.regions(own.to(device)) for task, own in zip(self.tasks, images, strict=True)]
                batch = batch._replace(images=self.encoder.joined(regions))
            yield batch


def _distinct(tasks: Sequence[Captioning]) -> list[list[Captioning]]:
    """Return the tasks in groups whose encoders are equal."""
    groups: list[tuple[dict[str, str | int], list[Captioning]]] = []
    for task in tasks:
        identity = task.encoder.identity()
        same = next((members for known, members in groups if known == identity), None)
        if same is None:
            groups.append((identity, [task]))
        else:
            same.append(task)
    return [members for _, members in groups]


def _shares(encoders: Sequence[Encoder]) -> list[Share]:
    """Return the part of the joined annotation vectors that comes from each encoder."""
    ends = list(accumulate((encoder.region_size for encoder in encoders), initial=0))
    return [
        Share(None if encoder.pads else prod(encoder.layout), slice(first, last))
        for encoder, first, last in zip(encoders, ends[:-1], ends[1:], strict=True)
    ]

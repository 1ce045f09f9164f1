"""Ensembles: several trained captioners that write captions together.

An ensemble is a `Captioning` like any other. Its encoder is that of all runs in parallel (`encoders/concatenated.py`),
and its captioner averages the probabilities of theirs (`models/ensemble.py`), so decoding, metrics and pictures are
those of a single run. Its data is that of the first run, with the cached annotation vectors of each encoder.
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
    """An ensemble of trained captioners, and its data.

    Captions are decoded as the first of `tasks` does; `source` is its data. Runs with equal encoders share one. Raises
    UserError if the vocabularies differ, or for runs that read lines.
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
    kinds = _distinct(tasks)
    encoders = [kind[0].encoder for kind in kinds]
    if len(kinds) > 1 and any(encoder.pads for encoder in encoders):
        raise UserError(
            "an ensemble over annotation vectors whose number differs from image to image is one of runs on the same "
            "vectors"
        )
    joined = None if len(encoders) == 1 else Concatenated(encoders)
    shares = {task: share for kind, share in zip(kinds, _shares(encoders), strict=True) for task in kind}
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
    return whole.eval(), source if joined is None else Together(source, [kind[0] for kind in kinds], joined)


class Together(Source):
    """The data of one source as several encoders see it. Each encoder has its own cache of annotation vectors."""

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
        for source, each in zip(self.sources, self.tasks, strict=True):
            source.prepare(each)

    @property
    def caption_language(self) -> Any:
        return self.sources[0].caption_language

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        parts = [source.split(name, rank=rank, world=world) for source in self.sources]
        batches = self._joined(parts)
        return Counted(batches, len(parts[0])) if isinstance(parts[0], Sized) else batches

    def _joined(self, parts: Sequence[Iterable[Batch]]) -> Iterator[Batch]:
        """Batches of annotation vectors, or of pixels if all encoders take the same."""
        for batches in zip(*parts, strict=True):
            batch = batches[0]
            if any(other.ids != batch.ids for other in batches):
                raise UserError(
                    "the caches of annotation vectors hold different photographs: some could not be read when one of "
                    "them was made; make them again with --data.verify=true"
                )
            images = [each.images for each in batches]
            if any(part.dtype != torch.uint8 or part.shape != images[0].shape for part in images):
                device = next(self.encoder.parameters()).device
                regions = [task.regions(part.to(device)) for task, part in zip(self.tasks, images, strict=True)]
                batch = batch._replace(images=self.encoder.joined(regions))
            yield batch


def _distinct(tasks: Sequence[Captioning]) -> list[list[Captioning]]:
    """The tasks, grouped by what their encoders compute."""
    kinds: list[tuple[dict[str, str | int], list[Captioning]]] = []
    for task in tasks:
        identity = task.encoder.identity()
        same = next((members for known, members in kinds if known == identity), None)
        if same is None:
            kinds.append((identity, [task]))
        else:
            same.append(task)
    return [members for _, members in kinds]


def _shares(encoders: Sequence[Encoder]) -> list[Share]:
    """What belongs to each encoder of the annotation vectors of all."""
    ends = list(accumulate((encoder.region_size for encoder in encoders), initial=0))
    return [
        Share(None if encoder.pads else prod(encoder.layout), slice(first, last))
        for encoder, first, last in zip(encoders, ends[:-1], ends[1:], strict=True)
    ]

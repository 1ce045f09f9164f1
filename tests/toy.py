"""A task and a source so small that the engine can be killed, resumed and split a hundred times in a test."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from vision_attn.engine.loop import fit
from vision_attn.engine.run import Run
from vision_attn.task import Source, Task


class PointBatch(NamedTuple):
    points: Tensor  # (B, 4)
    answers: Tensor  # (B,)
    ids: tuple
    notes: tuple


class Points(Source):
    """Points on a noisy plane. The order of an epoch follows from seed and epoch alone."""

    def __init__(self, *, items: int = 48, batch: int = 8, bad: int | None = None) -> None:
        self.items, self.batch, self.bad = items, batch, bad

    def _take(self, indices: Tensor) -> PointBatch:
        generator = torch.Generator().manual_seed(7)
        points = torch.randn(self.items, 4, generator=generator)
        answers = points @ torch.tensor([1.0, -2.0, 0.5, 3.0]) + 0.1 * torch.randn(self.items, generator=generator)
        if self.bad is not None:
            answers[self.bad] = torch.nan
        ids = tuple(f"point{index}" for index in indices.tolist())
        return PointBatch(points[indices], answers[indices], ids, ("some text",) * len(ids))

    def __len__(self) -> int:
        return self.items // self.batch

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[PointBatch]:
        torch.rand(1)  # A careless source: it draws from the default generator when an epoch starts.
        generator = torch.Generator().manual_seed(1000 * seed + epoch)
        for indices in torch.randperm(self.items, generator=generator).split(self.batch)[skip : len(self)]:
            yield self._take(indices[rank::world])

    def split(self, name: str) -> Iterable[PointBatch]:
        return [self._take(indices) for indices in torch.arange(16).split(self.batch)]

    def export(self, folder: Path) -> None:
        (folder / "points.json").write_text(json.dumps({"items": self.items}))


class Plane(Task):
    """A small network with dropout, a tied weight, a frozen layer and a moving average in a buffer."""

    def __init__(self, source: Source, *, dropout: float = 0.3, hidden: int = 16) -> None:
        super().__init__()
        self.source = source
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.first = nn.Linear(4, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.second.weight = nn.Parameter(torch.randn(hidden, hidden) / hidden**0.5)
        self.third = nn.Linear(hidden, hidden)
        self.third.weight = self.second.weight
        self.last = nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mean", torch.zeros(()))
        self.evaluations = 0

    def initialise(self) -> None:
        nn.init.eye_(self.frozen.weight)
        nn.init.zeros_(self.frozen.bias)

    def _guess(self, points: Tensor) -> Tensor:
        hidden = torch.relu(self.first(self.frozen(points)))
        hidden = self.dropout(torch.relu(self.second(hidden))) + self.third(hidden)
        return self.last(hidden).squeeze(-1)

    def forward(self, points: Tensor, answers: Tensor, *_: tuple) -> dict[str, Tensor]:
        error = (self._guess(points) - answers).square().mean()
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * answers.mean())
        return {"loss": error, "guess": self.mean.detach().clone()}

    def evaluate(self, batches: Iterable[PointBatch], folder: Path | None = None) -> dict[str, float]:
        torch.rand(3)  # Validation draws too, and must leave no trace.
        errors = [(self._guess(batch.points) - batch.answers).square() for batch in batches]
        return {"error": torch.cat(errors).float().mean().item(), "images": float(sum(map(len, errors)))}

    def show(self, batch: PointBatch, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.png" for name in batch.ids]
        for path in paths:
            path.touch()
        return paths


def cosine(optimizer: Optimizer, steps: int) -> CosineAnnealingLR:
    return CosineAnnealingLR(optimizer, steps)


def adam(parameters: Iterable[nn.Parameter]) -> AdamW:
    return AdamW(parameters, lr=1e-2)


def momentum(parameters: Iterable[nn.Parameter]) -> SGD:
    return SGD(parameters, lr=1e-2, momentum=0.9)


def toy_run(folder: Path, **settings: object) -> Run:
    """A run of the toy on the CPU: three epochs, judged by its error."""
    return Run(**{"folder": str(folder), "epochs": 3, "metric": "error", "mode": "min", "device": "cpu", **settings})


def train_toy(
    folder: Path, *, bad: int | None = None, dropout: float = 0.3, batch: int = 8, **settings: object
) -> dict:
    """Train the toy with all on that a checkpoint must hold: dropout, Adam, schedule, average, accumulation."""
    torch.set_num_threads(1)
    everything = {"average": 0.9, "accumulate": 2, "warmup": 2, "clip": 5.0, "log_every": 4, **settings}
    return fit(
        task=lambda source: Plane(source, dropout=dropout),
        data=Points(bad=bad, batch=batch),
        optimizer=adam,
        schedule=cosine,
        run=toy_run(folder, **everything),
    )


if __name__ == "__main__":  # torchrun tests/toy.py '{"folder": ..., ...}' in a process of its own
    train_toy(**json.loads(os.environ["TOY"]))

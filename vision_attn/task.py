"""The two contracts on which every floor above stands.

A `Source` says what is looked at, a `Task` by which measure a model is trained and judged. The engine knows nothing
but these two.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

SPLITS = ("train", "val", "test")
"""The parts of a data set."""

Batch = Any
"""A NamedTuple of tensors and plain values. A field `ids`, where there is one, names the images in error messages."""


class Source:
    """What is looked at. Constructors only store their arguments: files are touched in `prepare` and later."""

    content_words: frozenset[str] = frozenset()
    """Words that name objects, where the source knows the boxes of objects."""

    def prepare(self, task: "Task") -> None:
        """Read, check and cache whatever `task` needs; calling it twice does the work once."""

    def __len__(self) -> int:
        """Optimiser-sized batches in one epoch (the same number in every process)."""
        raise NotImplementedError

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """The training batches of one epoch, in an order that depends on `seed` and `epoch` alone.

        The first `skip` batches are left out cheaply, for exact resume. Of each batch, process `rank` of `world` gets
        its equal part: the parts of all processes together are the batch that one process alone would get.
        """
        raise NotImplementedError

    def split(self, name: str) -> Iterable[Batch]:
        """The batches of split `name` ("train", "val" or "test") for evaluation, each item once, in a fixed order."""
        raise NotImplementedError

    def export(self, folder: Path) -> None:
        """Write what a task needs of this source to be used without the data, such as a vocabulary."""

    def restore(self, folder: Path) -> None:
        """Take what `export` wrote, in place of reading it from the data."""


class Task(nn.Module):
    """A model with its measure. Constructed on its source, `Task(source, *, ...)`; construction reads no file."""

    renamed: Mapping[str, str] = MappingProxyType({})
    """Beginnings of weights' names that were others in earlier versions: old -> new."""
    own: tuple[str, ...] = ()
    """Beginnings of the names of weights that belong to the training of one run and not to its model, such as those of
    a learned baseline or a schedule. A run that starts from the weights of another keeps its own."""

    def initialise(self) -> None:
        """Fetch pretrained parts. Called when a run starts from nothing, never when weights come from a run."""

    def restart(self) -> None:
        """Forget how far schedules of its own have come. Called when a run starts from the weights of another."""

    def forward(self, *batch: Any) -> dict[str, Tensor]:
        """Scalars on the device for one training batch; `loss` is the one to minimise.

        The loss is a mean over the items of the batch, so that equal parts of a batch average to the whole.
        """
        raise NotImplementedError

    def evaluate(self, batches: Iterable[Batch], folder: Path | None = None) -> dict[str, float]:
        """Metrics over `batches`; with a folder, also writes there what lies behind them (captions, say)."""
        raise NotImplementedError

    def show(self, batch: Batch, folder: Path) -> list[Path]:
        """Pictures of what the model does with `batch`, written into `folder`; returns their paths."""
        raise NotImplementedError

"""The two contracts that the engine knows: `Source`, a data set, and `Task`, a model and its loss."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vision_attn.system.errors import UserError
from vision_attn.system.locks import forked
from vision_attn.system.splits import PURPOSES, SPLITS


def counted(sizes: Mapping[str, int]) -> str:
    """Describe in words how many images each split has."""
    return ", ".join(f"{sizes[split]:,} for {purpose}" for split, purpose in PURPOSES.items() if sizes.get(split))


def known_split(name: str) -> str:
    """Return `name`. Raises UserError if no split has this name."""
    if name not in SPLITS:
        raise UserError(f"unknown split {name!r}; choose one of {', '.join(SPLITS)}")
    return name


def equal_part(size: int, rank: int, world: int) -> slice:
    """Return which items of a training batch of `size` process `rank` of `world` gets. Raises UserError if the parts
    would not be equal."""
    if size % world:
        raise UserError(f"a batch of {size} cannot be split evenly among {world} processes: set batch_size")
    return slice(rank, None, world)


class Static(tuple):
    """Plain numbers in a batch, such as the lengths of rows, on which the work of a step depends like on shapes.
    Batches with different numbers are captured in different graphs."""


Batch = Any
"""A NamedTuple of tensors and plain values. Its field `ids`, if it has one, names the images in error messages."""


class Source:
    """A data set. Constructors only store their arguments: files are opened in `prepare` and later."""

    content_words: frozenset[str] = frozenset()
    """Words that name objects, if the source knows the boxes of objects; empty otherwise."""
    vocabulary: Any = None
    """The `Vocabulary` of its captions; None where it has none."""
    class_names: Sequence[str] = ()
    """The names of classes, in order; empty where classes are numbers, or where there are none."""
    caption_language: Any = None
    """The `metrics.function_words.Language` of all its captions, of every split. It decides whether metrics for English
    are computed; None: the references of an evaluation decide."""
    cache: str | None = None
    """The folder in which annotation vectors are kept; None where they are not."""
    image_shape: tuple[int, int, int] | None = None
    """(C, Y, X) of images that come as numbers from 0 to 1, with Y = X = 0 if they differ in size; None where they come
    as annotation vectors, or as pixels for an encoder."""
    num_classes: int = 0
    """The number of classes; 0 where images have no labels."""
    films = False
    """Whether its items are films instead of images. A source of photographs knows this after `prepare`."""
    num_sources: int = 1
    """The number of data sets with separate metrics. The first batches of a split are one of each."""
    batch_size: int | None = None
    """The number of images of a training batch, over all processes; None where it cannot be chosen."""
    automatic_batch: bool = False
    """Whether training chooses `batch_size` when a run begins: `data.batch_size=auto`."""
    features: str | None = None
    """The folder of annotation vectors that another program computed; None where the encoder computes them."""

    @property
    def summary(self) -> str:
        """One line about the data, printed when a run starts unless it is empty. Valid after `prepare`."""
        return ""

    @property
    def remarks(self) -> Iterable[str]:
        """Lines on what may be wrong with the training data, printed when a run starts and by `prepare`. Valid after
        `prepare`."""
        return ()

    def only(self, split: str) -> None:
        """Tell the source, before `prepare`, that only this split will be read, so that it can prepare less."""

    def prepare(self, task: "Task") -> None:
        """Read, check and cache the data that `task` needs. Idempotent."""

    def resized(self, batch_size: int) -> "Source":
        """Return a source of the same data, which it shares, with training batches of another size."""
        other = copy(self)
        other.batch_size, other.automatic_batch = batch_size, False
        return other

    def __bool__(self) -> bool:
        """True: that a source is given must not depend on its length, which may have to be read from files."""
        return True

    def __len__(self) -> int:
        """Return the number of batches in one epoch, each of the size of an optimiser step. The same in every
        process."""
        raise NotImplementedError

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Yield the training batches of one epoch, in an order that depends on `seed` and `epoch` alone.

        The first `skip` batches are skipped at little cost, so that a run can resume exactly. Process `rank` of `world`
        gets an equal part of each batch; the parts of all processes together are the batch of a single process.
        """
        raise NotImplementedError

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> Iterable[Batch]:
        """Return the batches of split `name` ("train", "val" or "test") for evaluation: each item once, in a fixed
        order.

        Process `rank` of `world` gets every `world`-th batch, beginning with number `rank`, and should read or draw
        only these.
        """
        raise NotImplementedError

    def identity(self, split: str) -> str | None:
        """Return a checksum of everything in the data on which metrics of a split depend, such as its images and their
        captions. Valid after `prepare`. None if it is unknown; metrics are then always computed."""
        return None

    def references(self) -> Iterable[Sequence[str]]:
        """Yield all captions of each training image, without its pixels. May be called before `prepare`."""
        raise NotImplementedError

    def check_labels(self) -> None:
        """Called after `prepare` by tasks that learn from labels. Raises UserError if nothing can be learned from
        them."""

    def export(self, folder: Path) -> None:
        """Write into `folder` what a task needs to be used without the data, such as a vocabulary."""

    def restore(self, folder: Path) -> None:
        """Read what `export` wrote, instead of computing it from the data."""

    def extend(self, folder: Path) -> tuple[int, int] | None:
        """Read what the source of another run exported to `folder`, and append what is new in this data, such as words.

        Called before the task is built, if a run starts from the weights of that other run. Returns the sizes before
        and after: weights that have the first size in `folder` and the second one here keep their leading part. None
        for a source without anything to extend.
        """
        return None


class Task(nn.Module):
    """A model with its loss and its metrics. Constructed as `Task(source, *, ...)`; construction reads no file."""

    kind = "model"
    """The noun for the task in messages."""
    unit = "image"
    """The noun for an item of its data in messages: "image", "film", "line" or "question"."""
    verb = ""
    """The method of `vision_attn.load(...)` that uses it, such as "caption"; empty if there is none."""
    chosen_by: str | None = None
    """The config key that chooses the metrics of validation, such as task.validate_with; None if they are always the
    same."""
    own: tuple[str, ...] = ()
    """Prefixes of the names of weights that belong to the training and not to the model, such as those of a learned
    baseline or a schedule. A run that starts from the weights of another run does not load these."""

    fine_tunes: bool = False
    """Whether the loss can only improve weights that are trained already: the run must have `run.start_from`."""
    highest_rate: float | None = None
    """The highest learning rate that is known not to harm trained weights; None: no such limit is known."""

    uncapturable: str = "it does not say that they can be"
    """Why steps of this task cannot be captured in CUDA graphs; empty if they can. They can if `forward` reads nothing
    of a training batch that `captured_batch` returned but its tensors and `Static` numbers, and neither waits for the
    device nor keeps state outside tensors. A part of the task, such as a model or a criterion, may have this too."""

    @property
    def resolution(self) -> int | None:
        """Height and width of the images that the task takes, in pixels; None if any will do."""
        return None

    frames: int = 1
    """The number of frames of the films that the task takes; 1: it takes images."""

    fit: Literal["centre", "whole"] = "centre"
    """The part of a photograph that is resized to `resolution`: its centre square, or the whole of it."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that metrics depend on. `vision-attn eval` records them with the metrics."""
        return {}

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Context manager: seed torch's generators of the CPU and the task's device, and restore them afterwards. Other
        threads that sample wait."""
        with forked(seed, next(self.parameters()).device):
            yield

    def rates(self) -> list[tuple[nn.Module, float]]:
        """Parts with their own learning rate, each with its factor on the rate of the other parts. Absolute values of a
        schedule, such as `eta_min`, apply to all parts."""
        return []

    def initialise(self) -> None:
        """Load pretrained parts. Called when a run starts from scratch, never when weights come from a run."""

    def prepare(self, source: Source) -> None:
        """Compute what the loss needs from the training data, such as counts. Called before training starts or is
        resumed, after `source.prepare`. The results must be kept in buffers, which checkpoints contain; in a resumed
        run, only check that they belong to the data, or raise UserError."""

    def prepare_evaluation(self, source: Source) -> None:
        """Take what metrics need to know of the whole data set. Called before an evaluation, after `source.prepare`."""

    def restart(self, before: Mapping[str, Any]) -> None:
        """Restart the schedules of the task itself. Called when a run starts from the weights of another.

        before: the task in the config of the other run, as class_path and init_args; empty if there is no config.
        """

    def validated(self, metrics: Mapping[str, float]) -> bool:
        """Update schedules that depend on validation. Return whether a buffer changed. Called in every process after
        each validation of training, with its metrics."""
        return False

    def captured_batch(self, batch: Batch) -> Batch:
        """Return the form of a training batch for captured steps, in one of a few shapes. Work that cannot be captured
        is done here, without a gradient. Called before each step, only if steps are captured."""
        return batch

    def forward(self, *batch: Any) -> dict[str, Tensor]:
        """Compute scalars, on the device, for one training batch; the optimiser minimises `loss`.

        The loss is a mean over the items of the batch, so that the losses of equal parts average to that of the whole.
        """
        raise NotImplementedError

    def predict(self, batch: Batch, *, full: bool = False) -> Any:
        """Compute what `judge` needs of one batch of a split: the output of the model, and the references.

        full: whether to compute everything that `judge` with a folder needs.

        Returns a NamedTuple of tensors and plain values, without the images: processes of a run predict different
        batches, and send the results to the first process.
        """
        raise NotImplementedError(f"{type(self).__name__} must define predict and judge, which evaluate calls")

    def judge(self, predictions: Iterable[Any], folder: Path | None = None) -> dict[str, float]:
        """Compute metrics over the predictions of all batches, in order.

        folder: the folder into which to write the inputs of the metrics, such as captions; None: nothing is written.
        """
        raise NotImplementedError

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch], folder: Path | None = None) -> dict[str, float]:
        """Predict and judge `batches`."""
        return self.judge((self.predict(batch, full=folder is not None) for batch in batches), folder)

    def wrong(self, batch: Batch) -> Tensor | None:
        """Return which items of a batch (B,) the model answers wrongly, so that pictures can show some of them: see
        `engine.batches.examples`. None: pictures show the first items of a split."""
        return None

    def show(self, batch: Batch, folder: Path) -> list[Path]:
        """Write pictures of what the model does with `batch` into `folder`; return their paths."""
        raise NotImplementedError

    def figure(self, batch: Batch, paper: Any) -> Any:
        """Draw a figure of what the model does with `batch` on a `viz.figures.paper.Paper`; returns it. Raises
        UserError for a task that has none."""
        raise UserError(f"there is no figure of a {self.kind} yet: leave --figure out, and see the pages of --show")

"""Predict batches in all processes of a run, and gather the predictions in the first process."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from vision_attn.engine.batch_size import DoesNotFit, parts, release
from vision_attn.engine.batches import few, on_device, size
from vision_attn.engine.distributed import World, seed_all
from vision_attn.fast.linear import constant_weights
from vision_attn.system.console import progress
from vision_attn.system.memory import is_short_of_memory, shortage
from vision_attn.task import Batch, Task

NOTHING = nullcontext()


def predictions(
    task: Task,
    batches: Iterable[Batch],
    world: World,
    *,
    seed: int,
    what: str,
    full: bool = False,
    sizes: list[int] | None = None,
    asked: Callable[[], bool] = lambda: False,
    within: AbstractContextManager = NOTHING,
) -> Iterator[Any]:
    """Predict the batches of this process. The first process yields the predictions of all processes, in the order of
    the split; the others must iterate too, and get none.

    The samples of a prediction depend only on `seed` and on the number of its batch, so that any number of processes
    gives the same predictions. Leaves the random state of the last prediction. Raises `DoesNotFit` if memory is short
    for a batch.

    what: the name of the progress bar.
    full: see `Task.predict`.
    sizes: a list to which the number of images of each batch of this process is appended.
    asked: returns whether this process was asked to stop. Then all processes raise `Stopped` before their next batch.
    within: a reusable context manager, entered for each batch.
    """
    number, arranged = world.rank, dict[Any, Any]()  # weights that all batches share
    batches = iter(progress(batches, what=what, unit="batch") if world.is_main else batches)
    while True:
        batch = next(batches, None)
        going, stop = world.all_reduce_max(batch is not None, asked())
        if stop:
            raise Stopped
        if not going:
            return
        prediction = None
        if batch is not None:
            seed_all(seed + number)
            if sizes is not None:
                sizes.append(size(batch))
            short = ""
            try:
                with within, constant_weights(task, arranged):
                    prediction = task.predict(on_device(batch, world.device), full=full)
            except Exception as error:
                if not is_short_of_memory(error):
                    raise
                short = shortage(error)
            if short:  # nothing refers to the tensors of the prediction any more
                arranged.clear()
                smaller = reversed(parts(size(batch)))
                fits = next(filter(partial(_can_predict, task, batch, world.device, full), smaller), 0)
                raise DoesNotFit(size(batch), fits, short)
            number += world.size
            if world.size > 1:
                prediction = on_device(prediction, torch.device("cpu"))
        yield from (other for other in world.gather_to_main(prediction) if other is not None)


def _can_predict(task: Task, batch: Batch, device: torch.device, full: bool, number: int) -> bool:
    """Return whether there is enough memory to predict the first `number` images of a batch."""
    release(device)
    try:
        task.predict(on_device(few(batch, number), device), full=full)
    except Exception as error:
        if not is_short_of_memory(error):
            raise
        return False
    return True


class Stopped(Exception):
    """Raised when a process was asked to stop."""

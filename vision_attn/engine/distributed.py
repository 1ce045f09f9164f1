"""The processes of a run started by torchrun: communication, averages, and the state of random number generators."""

import os
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vision_attn.system.errors import UserError
from vision_attn.system.machine import best_device, torch_device

PATIENCE = timedelta(hours=2)
"""How long processes wait for one that does not answer. The first process may need this long to judge predictions."""
GONE = ("gloo", "Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""Parts of gloo's error messages when another process has ended, or does not answer."""
WORLD = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0}
"""The environment variables of torchrun, and their values without it."""


class World(NamedTuple):
    """This process among all processes of the run. `hosts` is a gloo group, for communication between CPUs."""

    rank: int
    size: int
    device: torch.device
    hosts: Any = None

    @property
    def is_main(self) -> bool:
        """True in rank 0, the only process that judges predictions, writes and logs."""
        return self.rank == 0

    def all_reduce_max(self, *values: int | float) -> list[float]:
        """Return the maximum of each value over all processes."""
        if self.size == 1:
            return [float(value) for value in values]
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.hosts)
        return tensor.tolist()

    def gather(self, item: Any) -> list:
        """Return the items of all processes, ordered by rank."""
        items = [item] * self.size
        if self.size > 1:
            dist.all_gather_object(items, item, group=self.hosts)
        return items

    def gather_to_main(self, item: Any) -> list:
        """Return the items of all processes, ordered by rank, in the first process; an empty list in the others."""
        if self.size == 1:
            return [item]
        items = [None] * self.size if self.is_main else None
        dist.gather_object(item, items, dst=0, group=self.hosts)
        return items or []

    def broadcast(self, item: Any) -> Any:
        """Return the item of the first process. The others wait for it."""
        items = [item]
        if self.size > 1:
            dist.broadcast_object_list(items, src=0, group=self.hosts)
        return items[0]

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Context manager: run the body in the first process (which may download, for example), then in the others."""
        if not self.is_main:
            self.broadcast(None)
        yield
        if self.is_main:
            self.broadcast(None)


@contextmanager
def join(device: str) -> Iterator[World]:
    """Context manager: join the process group of torchrun; without torchrun, return a world of size 1."""
    size, rank, _ = launched()
    target = own_device(device)
    if size == 1:
        yield World(0, 1, target)
        return
    dist.init_process_group("nccl" if target.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield World(rank, size, target, dist.new_group(backend="gloo", timeout=PATIENCE))
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not any(sign in str(error) for sign in GONE):
            raise
        raise UserError(
            f"another process of this run has ended, or its machine does not answer, so process {rank} ends too: see "
            "the error of that process; run the same command again, which resumes training from the last checkpoint"
        ) from error
    finally:
        dist.destroy_process_group()


def launched() -> tuple[int, int, int]:
    """Return the number of processes, the rank of this process, and its rank on this machine, from torchrun's
    environment; (1, 0, 0) without torchrun."""
    world, rank, here = (int(os.environ.get(name, default)) for name, default in WORLD.items())
    return world, rank, here


def own_device(name: str) -> torch.device:
    """Return the torch device `name`, or the one that "auto" stands for; a GPU becomes the current one.

    Each process of torchrun gets its own GPU. Raises UserError if there is no such device.
    """
    size, _, local = launched()
    wanted = best_device() if name == "auto" else name
    device = torch_device(f"cuda:{local}" if size > 1 and wanted.startswith("cuda") else wanted)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def distribute(task: nn.Module) -> nn.Module:
    """Wrap a task so that gradients are averaged over processes. Its buffers are averaged by `average_changes`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.11 does not know the argument's new name.
        return DistributedDataParallel(task, broadcast_buffers=False)


def moving_averages(task: nn.Module, world: World) -> list[Tensor]:
    """Return copies of the buffers that may diverge between processes; none if there is one process."""
    return [buffer.clone() for buffer in task.buffers() if buffer.is_floating_point() and world.size > 1]


def average_changes(task: nn.Module, world: World, before: Sequence[Tensor]) -> None:
    """Set moving averages to their previous values plus the mean change over processes, as for the whole batch.

    before: their values before the step.
    """
    if not before:
        return
    buffers = [buffer for buffer in task.buffers() if buffer.is_floating_point()]
    moved = torch.cat([(new - old).flatten().float() for new, old in zip(buffers, before, strict=True)])
    dist.all_reduce(moved)
    changes = (moved / world.size).split([buffer.numel() for buffer in buffers])
    for buffer, old, change in zip(buffers, before, changes, strict=True):
        buffer.copy_(old + change.view_as(old).to(old.dtype))


def seed_all(seed: int) -> None:
    """Seed the default random generators of torch, numpy and Python."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of the default generators, in types that torch.load reads with weights_only."""
    state: Any = numpy.random.get_state()
    algorithm, keys, *rest = state
    return {
        "python": random.getstate(),
        "numpy": (algorithm, keys.tolist(), *(float(item) if isinstance(item, float) else int(item) for item in rest)),
        "cpu": torch.get_rng_state(),
        "device": None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device),
    }


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore the state that `random_state` returned."""
    random.setstate(state["python"])
    algorithm, keys, *rest = state["numpy"]
    numpy.random.set_state((algorithm, numpy.array(keys, dtype=numpy.uint32), *rest))
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and state["device"] is not None:
        torch.get_device_module(device).set_rng_state(state["device"], device)


@contextmanager
def forked_random(seed: int, device: torch.device) -> Iterator[None]:
    """Context manager: seed the default generators, and restore their state afterwards."""
    state = random_state(device)
    seed_all(seed)
    try:
        yield
    finally:
        set_random_state(state, device)

"""Find the largest batch that fits into memory, by trying batches with the model and the data of the run."""

import gc
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import takewhile

import torch

from vision_attn.engine.batches import on_device
from vision_attn.engine.distributed import World, forked_random
from vision_attn.system import free_memory
from vision_attn.system.console import bytes_of, say
from vision_attn.system.errors import UserError
from vision_attn.system.memory import is_short_of_memory, return_freed_memory
from vision_attn.task import Source, Task

SHARE = 0.8
"""The share of the free memory that a batch may use. The rest is for batches with longer captions, and for
validation."""
MOST = 512
"""The largest batch that is tried. Larger batches change how a model learns, so they are left to the user."""
FEWEST = 8
"""The smallest number of batches in an epoch: with few images, a large batch would leave few steps."""
MOMENTS = 2
"""The number of numbers that an optimizer such as AdamW keeps for each weight."""


class DoesNotFit(MemoryError):
    """Raised if memory is short for a batch of `size` images. `fits` is the largest batch that was tried and fits; 0:
    none did."""

    def __init__(self, size: int, fits: int, reason: str) -> None:
        super().__init__(f"{reason}; of {size} images in a batch, {fits} would fit")
        self.size, self.fits, self.reason = size, fits, reason


def found_size(task: Task, data: Source, world: World, trial: "Trial") -> int:
    """Return the size of training batches, over all processes, and print it with the reason for its limit. Sizes are
    doubled from 1 while a batch fits into the memory of each process. Raises UserError if the size cannot be chosen for
    this data, or if not even one image fits."""
    if data.batch_size is None:
        raise UserError(f"data.batch_size is auto, but {type(data).__name__} has none that can be chosen: leave it out")
    images = len(data.resized(1))
    most = max(1, min(MOST, images // FEWEST) // world.size)
    size = largest(trial.fits, powers(most))
    size = round(-world.all_reduce_max(-size)[0])
    if not size:
        raise UserError(f"not even a batch of one image fits into memory: {trial.told}")
    if world.is_main:
        if size * 2 <= most:
            why = f"a batch of {2 * size * world.size} would take too much of it"
        elif images // FEWEST < MOST:
            why = f"larger ones, which are yours to choose, would leave fewer than {FEWEST} batches in an epoch"
        else:
            why = f"larger ones than {MOST} are yours to choose"
        say(f"data.batch_size is {size * world.size}: {trial.told}; {why}")
    return size * world.size


def powers(most: int) -> list[int]:
    """Return the powers of two up to `most`."""
    return [2**exponent for exponent in range(most.bit_length())]


def parts(size: int) -> list[int]:
    """Return divisors of `size` up to half of it, in ascending order, each at least twice as large as the previous
    one."""
    divisors: list[int] = []
    for divisor in range(size // 2, 0, -1):
        if size % divisor == 0 and (not divisors or divisor <= divisors[0] // 2):
            divisors.insert(0, divisor)
    return divisors


def largest(fits: Callable[[int], bool], sizes: Sequence[int]) -> int:
    """Return the last of these sizes that fits, as do those before it; 0 if the first does not."""
    return max(takewhile(fits, sizes), default=0)


class Trial:
    """Tries forward and backward passes of training batches of any size, without a step. Random state, buffers and
    weights are unchanged."""

    def __init__(
        self,
        task: Task,
        data: Source,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager],
        *,
        seed: int,
        states: int = 0,
        processes: int = 1,
    ) -> None:
        """
        states: how many further numbers training will keep for each weight.
        processes: how many processes share the memory of a CPU.
        """
        self.task, self.data, self.device, self.autocast, self.seed = task, data, device, autocast, seed
        weights = [weight for weight in task.parameters() if weight.requires_grad]
        self.states = states * sum(weight.numel() * weight.element_size() for weight in weights)
        release(device)
        free = free_bytes(device)
        self.free = math.inf if free is None else free // (processes if device.type == "cpu" else 1)
        self.tried: list[tuple[int, int | float]] = []
        """The sizes tried so far, and the bytes that they needed, including those that training keeps."""

    @property
    def told(self) -> str:
        """How much memory the largest batch that fits takes, in words."""
        fitting = [used for size, used in self.tried if size and used <= SHARE * self.free]
        if not fitting or math.isinf(self.free):
            return f"{bytes_of(self.free)} are free" if self.free < math.inf else "the device does not tell its memory"
        return f"a step takes {bytes_of(max(fitting))} of the {bytes_of(self.free)} of memory that are free"

    def fits(self, size: int) -> bool:
        """Try a batch of `size` images.

        On a CPU, a process that uses too much memory is killed. So the memory for a larger batch than the latest one is
        estimated first.
        """
        (less, low), (last, high) = [(0, 0), (0, 0), *self.tried][-2:]
        if self.device.type == "cpu" and size > last > less:
            slope = max(0.0, high - low) / (last - less)
            if high + slope * (size - last) > SHARE * self.free:
                return False
        try:
            used: int | float = self._memory_of_step(size)
        except Exception as error:
            if not is_short_of_memory(error):
                raise
            used = math.inf
        self.task.zero_grad(set_to_none=True)
        release(self.device)
        self.tried.append((size, used))
        return used <= SHARE * self.free

    def _memory_of_step(self, size: int) -> int:
        began = taken(self.device)
        kept = [(buffer, buffer.clone()) for buffer in self.task.buffers()]
        self.task.train()
        try:
            with forked_random(self.seed, self.device):
                batch = next(iter(self.data.resized(size).train(0, seed=self.seed)))
                with self.autocast():
                    loss = self.task(*on_device(batch, self.device))["loss"]
                loss.backward()
        finally:
            with torch.no_grad():
                for buffer, before in kept:
                    buffer.copy_(before)
        return most_taken(self.device) - began + self.states


def release(device: torch.device) -> None:
    """Return all memory that is not in use, and count the peak of `most_taken` from here on."""
    gc.collect()
    return_freed_memory()
    free_memory.restart_peak()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that are free on a device; None if it does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_memory.available() if device.type == "cpu" else None


def taken(device: torch.device) -> int:
    """Return the bytes that this process has on a device now."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else free_memory.resident()


def most_taken(device: torch.device) -> int:
    """Return the largest number of bytes that this process has had on a device since `release`."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else free_memory.peak()

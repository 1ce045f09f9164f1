"""Decide the precision, graph capture and threads of a run on its device."""

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vision_attn.configuration.run_settings import Run
from vision_attn.engine import capture
from vision_attn.engine.distributed import World
from vision_attn.engine.optimizers import can_be_captured, changes_momentum
from vision_attn.system.machine import multiplies_bf16
from vision_attn.system.thread_trial import MOST, ThreadTrial, named, numbers_to_try
from vision_attn.task import Task


def precision_for(device: torch.device) -> str:
    """Return the precision of a new run with `precision: auto`: bf16 on a CUDA device that has it, otherwise fp32.

    Always fp32 on a CPU, even with bfloat16 instructions, so that a run gives the same weights on every processor of a
    kind, and published results, which were reached in fp32, can be compared.
    """
    native = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" if native else "fp32"


def computed(precision: str, device: torch.device) -> str:
    """Return the precision in which a run computes: `precision`, but fp32 in place of bf16 on a processor that
    multiplies bfloat16 many times more slowly."""
    slow = precision == "bf16" and device.type == "cpu" and not multiplies_bf16()
    return "fp32" if slow else precision


def uncaptured(run: Run, task: Task, world: World, optimizer: Optimizer, schedule: LRScheduler | None = None) -> str:
    """Return why the steps of a run are not captured in graphs; empty if they can be."""
    if not capture.CUDAGraph.available(world.device):
        return f"graphs need a CUDA device, and this one is {world.device}"
    if world.size > 1:
        return "steps of several processes cannot be captured"
    if run.precision == "fp16":
        return "with fp16, the gradient scaler decides on the CPU whether to update the weights"
    if not can_be_captured(optimizer):
        return f"{type(optimizer).__name__} computes on the CPU in each step"
    if changes_momentum(schedule):
        return "schedule.cycle_momentum changes the momentum from step to step, and a graph keeps it; false leaves it"
    reasons = ((type(module).__name__, getattr(module, "uncapturable", "")) for module in task.modules())
    first = next(((name, reason) for name, reason in reasons if reason), None)
    if run.capture == "auto" and first:
        return f"steps of {first[0]} cannot be captured: {first[1]}"
    return ""


def thread_trial(run: Run, world: World, before: object) -> ThreadTrial:
    """Return the choice of the number of threads in a run: `run.threads`, the number that was chosen before the run was
    resumed, or a trial of several.

    There is no trial with `run.compile`, since compiled code depends on the number, or with several processes, which
    share the cores: they keep torch's number. If the machine or the environment permits fewer threads than were chosen
    before, the run continues with fewer.

    before: the number that was chosen before the run was resumed; None if there is none.
    """
    if run.threads != "auto":
        return ThreadTrial((run.threads,))
    if run.compile or world.size > 1:
        return ThreadTrial((torch.get_num_threads(),))
    numbers = numbers_to_try(world.device)
    if isinstance(before, int) and len(numbers) > 1 and 1 <= before <= max(numbers):
        return ThreadTrial((before,))
    return ThreadTrial(numbers)


def described(device: torch.device, asked: str, chosen: dict[str, str | bool], threads: ThreadTrial) -> str:
    """Return one line on where and how a run trains, such as "training on cpu in fp32, eagerly, in 2 threads".

    asked: the precision of the run, which `computed` may have replaced.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    how = [word for setting, word in (("capture", "captured"), ("compile", "compiled")) if chosen[setting]]
    line = f"training on {name} in {chosen['precision']}, {' and '.join(how) or 'eagerly'}"
    if threads.chosen is None:
        line += f"; up to {MOST} steps try {threads.one} and {named(threads.all)}"
    elif device.type == "cpu":
        line += f", in {named(threads.chosen)}"
    if chosen["precision"] == asked:
        return line
    return f"{line}; not in {asked}, which is many times slower on this processor"

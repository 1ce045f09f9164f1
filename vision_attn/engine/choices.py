"""Resolve the settings of a run for its device: precision, compiling, capturing."""

import torch
from torch.optim import Optimizer

from vision_attn.configuration.run import Run
from vision_attn.engine import capture
from vision_attn.engine.distributed import World
from vision_attn.engine.optimizers import can_be_captured
from vision_attn.system.machine import multiplies_bf16
from vision_attn.task import Task

LONG = 2000
"""Optimiser steps from which compiling, which takes up to two minutes, pays."""


def precision_for(device: torch.device) -> str:
    """Return the precision of a new run with `precision: auto`: bf16 on a CUDA device that has it, otherwise fp32.

    Always fp32 on a CPU, also on one with bfloat16 instructions: there a run without further settings gives the same
    weights on every processor of a kind, and results that users compare were reached in fp32.
    """
    native = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" if native else "fp32"


def computed(precision: str, device: torch.device) -> str:
    """Return the precision in which a run of `precision` computes: fp32 instead of bf16 on a processor that multiplies
    bfloat16 many times more slowly."""
    slow = precision == "bf16" and device.type == "cpu" and not multiplies_bf16()
    return "fp32" if slow else precision


def compiles(run: Run, device: torch.device, total: int) -> bool:
    """Return whether to compile a run of `total` steps. `auto` compiles long runs on CUDA, if a compiler works."""
    if run.compile != "auto":
        return run.compile
    return device.type == "cuda" and total >= LONG and compiler_works(device)


def compiler_works(device: torch.device) -> bool:
    """Compile a small function as a trial: it needs triton, a C compiler and a supported device."""
    try:
        torch.compile(torch.square)(torch.ones(2, device=device))
    except Exception:  # Each of the parts has its own kinds of errors.
        return False
    return True


def uncaptured(run: Run, task: Task, world: World, optimizer: Optimizer) -> str:
    """Return why the steps of a run are not captured in graphs; empty if they can be."""
    if not capture.CUDAGraph.available(world.device):
        return f"graphs need a CUDA device, and this one is {world.device}"
    if world.size > 1:
        return "steps of several processes cannot be captured"
    if run.precision == "fp16":
        return "with fp16, the gradient scaler decides on the CPU whether to update the weights"
    if not can_be_captured(optimizer):
        return f"{type(optimizer).__name__} computes on the CPU in each step"
    if run.capture == "auto" and not task.static_shapes:
        return f"the batches of this {task.kind} differ in shape"
    return ""


def described(device: torch.device, asked: str, chosen: dict[str, str | bool]) -> str:
    """Return one line on where and how a run trains, such as "training on cpu in fp32, eagerly". `asked`: the precision
    of the run, which `computed` may have replaced."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    how = [word for setting, word in (("compile", "compiled"), ("capture", "captured")) if chosen[setting]]
    line = f"training on {name} in {chosen['precision']}, {' and '.join(how) or 'eagerly'}"
    if chosen["precision"] == asked:
        return line
    return f"{line}; not in {asked}, which is many times slower on this processor"

"""Prepare optimizers and schedules for training: fused kernels, warmup, learning rates by part, and capture in a
graph."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LinearLR, LRScheduler, SequentialLR

from vision_attn.configuration.schedules import scheduled
from vision_attn.system.errors import UserError


def with_rates(
    optimizer: Callable[[Iterable], Optimizer],
    parameters: Sequence[nn.Parameter],
    rates: Sequence[tuple[nn.Module, float]],
) -> Optimizer:
    """Build an optimizer with learning rates by module.

    rates: modules, each with the factor on the learning rate of its parameters.
    """
    factors = {parameter: factor for module, factor in rates if factor != 1 for parameter in module.parameters()}
    if not any(parameter in factors for parameter in parameters):
        return optimizer(list(parameters))
    groups: dict[float, list[nn.Parameter]] = {1.0: []}
    for parameter in parameters:
        groups.setdefault(factors.get(parameter, 1.0), []).append(parameter)
    groups = {factor: members for factor, members in groups.items() if members}
    built = optimizer([{"params": members} for members in groups.values()])
    for group, factor in zip(built.param_groups, groups, strict=True):
        group["lr"] *= factor
    return built


def with_fused_kernels(optimizer: Optimizer) -> Optimizer:
    """Use torch's fused kernels for Adam, AdamW and SGD unless the user has chosen otherwise. Same result, faster."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    able = all(parameter.device.type in ("cpu", "cuda") and parameter.is_floating_point() for parameter in parameters)
    chosen = any(optimizer.defaults.get(name) for name in ("foreach", "capturable", "differentiable"))
    if type(optimizer) in (Adam, AdamW, SGD) and able and not chosen and optimizer.defaults["fused"] is None:
        for group in optimizer.param_groups:
            group["fused"] = True
    return optimizer


LONGER = 10
"""A run should be at least this many times as long as its warmup."""


def warm(
    optimizer: Optimizer,
    schedule: Callable[[Optimizer, int], LRScheduler] | None,
    *,
    warmup: int,
    total: int,
    epochs: int = 1,
) -> LRScheduler | None:
    """Schedule the learning rate over `total` steps: `warmup` steps of linear warmup, then `schedule` for the rest.

    Raises UserError if there are too few steps, or for a schedule that does not follow steps.

    epochs: the number of epochs of these steps, for messages.
    """
    if warmup >= total:
        enough = -(-LONGER * warmup * epochs // total)
        raise UserError(
            f"run.warmup is {warmup} steps, but the whole run has {total}, which is too short to learn much: raise the "
            f"number of epochs, --run.epochs={enough} for {enough * total // epochs:,} steps (it is {epochs}), or "
            "only try it with --run.warmup=0"
        )
    if not warmup:
        return schedule and scheduled(schedule, optimizer, total)
    rise = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
    if schedule is None:
        return rise
    rest = scheduled(schedule, optimizer, total - warmup)
    if isinstance(rest, SequentialLR | ChainedScheduler):  # torch cannot start one of these again
        name = type(rest).__name__
        raise UserError(f"run.warmup cannot be put before a {name}: set it to 0, and warm up in the {name}")
    return SequentialLR(optimizer, [rise, rest], milestones=[warmup])


def can_be_captured(optimizer: Optimizer) -> bool:
    """Return whether all numbers of the optimizer that change from step to step can be tensors on the device."""
    fused_descent = type(optimizer) is SGD and all(group["fused"] for group in optimizer.param_groups)
    return fused_descent or "capturable" in optimizer.defaults


def changes_momentum(schedule: LRScheduler | None) -> bool:
    """Return whether a schedule, or one of a sequence, also changes the momentum, as OneCycleLR does by default."""

    def changes(state: dict[str, Any]) -> bool:
        lists = (value for value in state.values() if isinstance(value, list))
        members = [member for value in lists for member in value if isinstance(member, dict)]  # of a sequence
        return bool(state.get("cycle_momentum")) or any(map(changes, members))

    return schedule is not None and changes(schedule.state_dict())


def make_capturable(optimizer: Optimizer, *, captured: bool) -> None:
    """Keep the optimizer's step counts on the device if `captured`. Loading a state restores the choice of the saved
    run, so call this again after loading."""
    for group in optimizer.param_groups:
        if "capturable" in optimizer.defaults:
            group["capturable"] = bool(captured and group["params"][0].is_cuda) or optimizer.defaults["capturable"]
        for parameter in group["params"] if group.get("capturable") else ():
            state = optimizer.state.get(parameter, {})
            state.update({"step": state["step"].to(parameter.device)} if "step" in state else {})


class Rates:
    """The learning rates of an optimizer as tensors on the device, which a captured step reads at each replay.

    Schedules, logs and checkpoints still use the plain numbers in the optimizer's groups.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        # CUDA's fused kernels read float32, and MPS has no float64. A CPU reads any type, and float64 holds a plain
        # number exactly.
        dtype = torch.float64 if device.type == "cpu" else torch.float32
        self.tensors = [torch.zeros((), device=device, dtype=dtype) for _ in optimizer.param_groups]
        self.optimizer = optimizer

    def fill(self) -> None:
        """Copy the current rates to the device. Does not wait for it."""
        for tensor, group in zip(self.tensors, self.optimizer.param_groups, strict=True):
            tensor.fill_(group["lr"])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context manager: put the tensors into the optimizer's groups."""
        groups = self.optimizer.param_groups
        plain = [group["lr"] for group in groups]
        for tensor, group in zip(self.tensors, groups, strict=True):
            group["lr"] = tensor
        try:
            yield
        finally:
            for rate, group in zip(plain, groups, strict=True):
                group["lr"] = rate

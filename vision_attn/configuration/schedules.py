"""Build the schedule of the learning rate in a config, with the number of training steps."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from vision_attn.system.errors import UserError

LENGTHS = ("T_max", "T_0", "total_iters", "total_steps", "num_training_steps")
"""The names of parameters for the number of steps, in torch's schedules and in the functions of transformers."""


def takes_steps_by_name(schedule: Callable) -> bool:
    """Return whether a schedule takes the number of steps as one of the parameters `LENGTHS`, or is a schedule of torch
    without such a parameter. Other schedules, such as your own functions, get it as their second argument."""
    initialiser = schedule.__init__ if inspect.isclass(schedule) else schedule
    theirs = str(getattr(initialiser, "__module__", "")).startswith("torch.")
    return theirs or _length_of(schedule) is not None


def scheduled(schedule: Callable[..., LRScheduler], optimizer: Optimizer, steps: int) -> LRScheduler:
    """Build a schedule over `steps` steps, unless the config sets its length. Raises UserError for a schedule that does
    not follow steps."""
    made, given = (schedule.func, schedule.keywords) if isinstance(schedule, partial) else (schedule, {})
    if not takes_steps_by_name(made):
        return schedule(optimizer, steps)
    if inspect.isclass(made) and issubclass(made, ReduceLROnPlateau):
        raise UserError(
            "schedule: ReduceLROnPlateau follows a metric, and schedules follow training steps here: choose another, "
            "such as CosineAnnealingLR or StepLR"
        )
    length: str | None = _length_of(made)
    filled: dict[str, Any] = {} if length is None or length in given else {length: steps}
    return schedule(optimizer, **filled)


def _length_of(schedule: Callable) -> str | None:
    try:
        parameters = inspect.signature(schedule).parameters
    except (TypeError, ValueError):
        return None
    return next((name for name in LENGTHS if name in parameters), None)

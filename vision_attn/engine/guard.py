"""The guards against resuming a run under other settings, and against fine-tuning that can only do harm."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from vision_attn.system.bounded_yaml import flat
from vision_attn.system.console import say
from vision_attn.task import Task


def keep_to(folder: Path, old: dict[str, Any], new: dict[str, Any], *, free: Collection[str] = ()) -> None:
    """Raise ValueError where `new` changes a setting under which the run in `folder` was started.

    Nested settings are compared by their dotted keys. Those in `free` may change.
    """
    before, after = flat(old), flat(new)
    changed = [
        f"{key} was {before.get(key)}, is {after.get(key)}"
        for key in {**before, **after}
        if before.get(key) != after.get(key) and key not in free
    ]
    if changed:
        shown = ", ".join(changed[:6]) + (f" and {len(changed) - 6} more" if len(changed) > 6 else "")
        raise ValueError(
            f"{folder} holds a run with other settings ({shown}): set them back, give another --run.folder "
            f"(--run.start_from={folder} begins with its weights), or delete that folder"
        )


def check_untrained(task: Task) -> None:
    """Check a run that starts from random weights. Raises ValueError if its loss only improves trained weights;
    prints a line if only one term of it does."""
    if task.fine_tunes:
        raise ValueError(
            "the loss of this config only improves a model that is trained already: name its run with "
            "--run.start_from=FOLDER"
        )
    if task.highest_rate is not None:
        say("a part of the loss only improves a model that is trained already: better start from one (run.start_from)")


def check_rate(task: Task, optimizer: Optimizer) -> None:
    """Print a line if the learning rate is one at which the loss is known to harm trained weights."""
    if task.highest_rate is None:
        return
    rate = max(float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups)
    if rate > task.highest_rate:
        say(
            f"the learning rate is {rate:g}, and above {task.highest_rate:g} this loss is known to harm trained "
            "weights: lower it with --optimizer.lr (5e-5 to 5e-4 is usual)"
        )

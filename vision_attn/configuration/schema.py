"""The keys of a config, which are the arguments of training."""

from collections.abc import Callable, Iterable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vision_attn.configuration.run_settings import Run
from vision_attn.task import Source, Task


def experiment(
    *,
    task: Callable[[Source], Task],
    data: Source,
    optimizer: Callable[[Iterable], Optimizer],
    schedule: Callable[[Optimizer, int], LRScheduler] | None = None,
    run: Run,
) -> None:
    """What a config describes: its signature is the schema of configs, and the same as that of `engine.fit.fit`.

    It stands apart from training, so that opening a run does not import the engine.
    """

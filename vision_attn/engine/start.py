"""The start of a run, from the weights of another run if it names one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vision_attn.configuration.moves import moved
from vision_attn.configuration.run_settings import Run
from vision_attn.configuration.weights import Sizes, load_weights
from vision_attn.engine.distributed import World
from vision_attn.engine.folders import replacing_folder
from vision_attn.system.bounded_yaml import read_yaml
from vision_attn.system.console import say
from vision_attn.system.files import shipped
from vision_attn.task import Source, Task


def keep_start(data: Source, run: Run) -> None:
    """Write what `data` exports, such as a vocabulary, into the folder `start` of a run, which can then be resumed
    though its data has changed."""
    kept = Path(run.folder) / "start"
    with replacing_folder(kept) as folder:
        data.export(folder)
    if not any(kept.iterdir()):
        kept.rmdir()


def restore_start(data: Source, run: Run) -> None:
    """Read what `keep_start` wrote, if the source exports anything."""
    if (kept := Path(run.folder) / "start").is_dir():
        data.restore(kept)


def started(task: Callable[[Source], Task], data: Source, world: World, start_from: str) -> Task:
    """Build the task of a run with the weights of the run `start_from`, as `started_from` does, and say how its words
    or classes differ."""
    model, sizes = started_from(start_from, task, data)
    model.restart(_task_of(_best(start_from)))
    if world.is_main and sizes is not None:
        what = "classes" if data.vocabulary is None else "words"
        say(f"keeps {sizes[0]:,} {what} of {start_from} and adds {sizes[1] - sizes[0]:,}")
    return model


def started_from(start_from: str, task: Callable[[Source], Task], data: Source) -> tuple[Task, Sizes | None]:
    """Build a task with the weights in the folder of another run, and with its words followed by those of `data`.

    Returns it, with the number of words before and after where there are words. Raises ValueError if the weights do not
    fit.
    """
    best = _best(start_from)
    sizes = data.extend(best)
    model = task(data)
    load_weights(model, best, another=True, sizes=sizes)
    return model, sizes


def _best(start_from: str) -> Path:
    """The folder of the weights of a run, or of packed weights. Raises ValueError if there is no such folder."""
    folder = shipped(start_from)
    if not folder.is_dir():
        raise ValueError(f"run.start_from: there is no folder {start_from}: train the run that it names first")
    return folder / "best" if (folder / "best").is_dir() else folder


def _task_of(best: Path) -> dict[str, Any]:
    """The task in the config of a run, in today's words; empty where there is no config."""
    config = best / "config.yaml"
    return moved(read_yaml(config))["task"] if config.is_file() else {}

"""Start a run from the weights of another run, or from random weights if its loss permits that."""

from collections.abc import Callable
from pathlib import Path

from torch.optim import Optimizer

from vision_attn.configuration.moves import moved
from vision_attn.configuration.run_settings import Run
from vision_attn.configuration.weights import Sizes, load_weights
from vision_attn.engine.distributed import World
from vision_attn.engine.run_folder.folders import replacing_folder
from vision_attn.system.bounded_yaml import read_yaml
from vision_attn.system.console import say
from vision_attn.system.errors import UserError
from vision_attn.system.files import shipped
from vision_attn.task import Source, Task


def keep_start(data: Source, run: Run) -> None:
    """Write the exports of `data`, such as a vocabulary, into the folder `start` of a run, so that it can be resumed
    when its data has changed."""
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
    """Build the task of a run with the weights of the run `start_from`, as `started_from` does, and log how its words
    or classes differ."""
    model, sizes = started_from(start_from, task, data)
    config = _best(start_from) / "config.yaml"
    model.restart(moved(read_yaml(config))["task"] if config.is_file() else {})
    if world.is_main and sizes is not None:
        what = "classes" if data.vocabulary is None else "words"
        say(f"keeps {sizes[0]:,} {what} of {start_from} and adds {sizes[1] - sizes[0]:,}")
    return model


def started_from(start_from: str, task: Callable[[Source], Task], data: Source) -> tuple[Task, Sizes | None]:
    """Build a task with the weights in the folder of another run, and with its words followed by those of `data`.

    Returns the task and, if there are words, their number before and after. Raises UserError if the weights do not fit.
    """
    best = _best(start_from)
    sizes = data.extend(best)
    model = task(data)
    load_weights(model, best, another=True, sizes=sizes)
    return model, sizes


def _best(start_from: str) -> Path:
    """Return the folder of the weights of a run, or of packed weights. Raises UserError if there is no such folder."""
    folder = shipped(start_from)
    if not folder.is_dir():
        raise UserError(f"run.start_from: there is no folder {start_from}: train the run that it names first")
    return folder / "best" if (folder / "best").is_dir() else folder


def check_untrained(task: Task) -> None:
    """Check a run that starts from random weights. Raises UserError if its loss can only improve trained weights;
    prints a line if one term of the loss can only do so."""
    if task.fine_tunes:
        raise UserError(
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

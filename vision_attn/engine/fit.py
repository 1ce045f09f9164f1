"""`fit`: train a task on a source until it is done, from scratch or from the last checkpoint of a run folder.

All decisions before the first step are made here; the loop is in `training`.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vision_attn.configuration.run_settings import Run
from vision_attn.configuration.weights import load_weights
from vision_attn.engine.batch_size import MOMENTS, DoesNotFit, Trial, found_size
from vision_attn.engine.device_settings import computed, described, precision_for, thread_trial
from vision_attn.engine.distributed import World, join, seed_all
from vision_attn.engine.interrupt import Interrupt
from vision_attn.engine.log import Log
from vision_attn.engine.run_folder import checkpoint
from vision_attn.engine.run_folder.best import best_metrics
from vision_attn.engine.run_folder.checkpoint import Position
from vision_attn.engine.run_folder.claim import keep_to, write_batch_size
from vision_attn.engine.run_folder.folders import lock_folder
from vision_attn.engine.run_folder.regroup import as_begun, regroup, same_steps
from vision_attn.engine.run_folder.start import check_rate, check_untrained, keep_start, restore_start, started
from vision_attn.engine.short_of_memory import in_training
from vision_attn.engine.step import Step, autocast
from vision_attn.engine.timing.start import START
from vision_attn.engine.training import Training, trained
from vision_attn.engine.watching import check_watchers
from vision_attn.fast import accelerate
from vision_attn.fast.graphs import without_graphs
from vision_attn.system.console import complain, say
from vision_attn.system.errors import UserError
from vision_attn.system.inputs import check_replaced
from vision_attn.system.memory import is_short_of_memory, keep_freed_memory, shortage
from vision_attn.system.thread_trial import threads_kept
from vision_attn.task import Source, Task


def fit(
    *,
    task: Callable[[Source], Task],
    data: Source,
    optimizer: Callable[[Iterable], Optimizer],
    schedule: Callable[[Optimizer, int], LRScheduler] | None = None,
    run: Run,
) -> dict[str, float]:
    """Train, and return the metrics of the best weights, which are then in `run.folder`/best.

    Called again with the same arguments, a stopped or killed run continues exactly from its last checkpoint. A finished
    run returns at once, or continues if `run.epochs` has grown. With `data.automatic_batch`, a new run finds the size
    of its batches. While it trains, the process has the number of threads of the run.

    Raises UserError for problems that the user can solve: settings that changed since the checkpoint, a folder in use,
    an unknown metric, a loss that is not finite, too little memory for a batch (the message names a size that fits), a
    full disk. Ctrl-C and SIGTERM save a checkpoint and then raise KeyboardInterrupt and SystemExit(143); while torch
    compiles (`run.compile`), they raise at once, without saving.

    schedule: called with the optimizer and the number of steps of all epochs (see `configuration.schedules`); stepped
        once per optimiser step.
    """
    check_watchers(run)
    keep_freed_memory()
    START.done("import and config")
    folder = Path(run.folder)
    with (
        without_graphs(run.capture is False),
        join(run.device) as world,
        threads_kept(),
        lock_folder(folder) if world.is_main else nullcontext(),
    ):
        if world.broadcast(world.is_main and nothing_left(folder, data, run)):
            return world.broadcast(best_metrics(folder) if world.is_main else None)
        position = world.broadcast(checkpoint.find(folder) if world.is_main else None)
        fresh = position is None
        position = position or Position(settings(run) | {"epochs": run.epochs if schedule else None})
        data = as_begun(data, position)
        check_settings(folder, data, position, run)
        position.done = False
        threads = thread_trial(run, world, position.chosen.get("threads"))
        if threads.chosen is not None:  # before weights are drawn and data is prepared, whose numbers depend on it
            torch.set_num_threads(threads.chosen)
        seed_all(run.seed)
        model = build(task, data, world, run, fresh=fresh)
        precision = world.broadcast(precision_for(world.device))
        position.plan = {"precision": precision} | position.plan
        asked = position.plan["precision"]
        run = replace(run, precision=world.broadcast(computed(asked, world.device)))
        if data.automatic_batch:
            data = data.resized(batch_size(model, data, world, run))
            START.done("batch size")
        batches = len(data)
        if batches < 1:
            raise UserError("the data source has no training batch: is its training split empty?")
        position.plan = {"batches": batches, "batch_size": data.batch_size} | position.plan
        regrouped = regroup(folder, data, position, run)
        total = run.epochs * -(-batches // run.accumulate)
        step = Step(model, optimizer=optimizer, schedule=schedule, run=run, world=world, total=total)
        if fresh and world.is_main:
            check_rate(model, step.optimizer)
        position.chosen = {
            "precision": run.precision,
            "compile": run.compile,
            "capture": step.captured,
        }
        if world.device.type == "cpu" and world.size == 1 and threads.chosen is not None:
            position.chosen["threads"] = threads.chosen
        log = Log(folder, world, run, position.logged, step=position.step)
        try:
            with Interrupt() as interrupt, step.told(interrupt):
                training = Training(
                    run, folder, world, data, model, batches, step, log, position, interrupt, threads, regrouped
                )
                try:
                    training.start()
                    if world.is_main and not trained(position, run):
                        how = described(world.device, asked, position.chosen, threads)
                        for line in filter(None, (data.summary, how)):
                            say(line)
                        for line in data.remarks:
                            complain(line)
                    training.epochs()
                    return training.finish()
                except Exception as error:
                    if isinstance(error, UserError) or not is_short_of_memory(error):
                        raise
                    short = error.with_traceback(None) if isinstance(error, DoesNotFit) else shortage(error)
                raise in_training(training, short)  # when nothing refers to the tensors of the step any more
        finally:
            log.close()


def batch_size(model: Task, data: Source, world: World, run: Run) -> int:
    """Find the size of batches of a new run, and write it into its config."""
    states = MOMENTS + (run.average is not None) + bool(run.start_share)
    cast = partial(autocast, world.device, run.precision)
    options = {"seed": run.seed, "states": states, "processes": world.size}
    size = found_size(model, data, world, Trial(model, data, world.device, cast, **options))
    if world.is_main:
        write_batch_size(Path(run.folder), size)
    return size


def nothing_left(folder: Path, data: Source, run: Run) -> bool:
    """Return whether training is finished and all outputs of the run are written."""
    position = checkpoint.peek(folder)
    if position is None:
        return False
    check_settings(folder, as_begun(data, position), position, run)
    shown = not run.show or any((folder / "pictures").glob("*"))
    written = position.done and shown and (folder / "best" / "model.safetensors").is_file()
    if written and trained(position, run):
        say(f"{folder} is finished after epoch {position.epoch}: nothing is left to train")
        return True
    return False


def build(task: Callable[[Source], Task], data: Source, world: World, run: Run, *, fresh: bool) -> Task:
    """Build the task on its device and prepare its data. Weights come from the checkpoint, from `run.start_from`, or
    from `Task.initialise`. A resumed run keeps the words or classes with which it began."""
    if not fresh:
        restore_start(data, run)
    if fresh and run.start_from is not None:
        model = started(task, data, world, run.start_from)
    else:
        model = task(data)
        if fresh:
            check_untrained(model)
            with world.main_first():
                model.initialise()
    if not fresh:
        load_weights(model, Path(run.folder) / "last")
    elif world.is_main:
        keep_start(data, run)
    model.to(world.device)
    if run.fast:
        accelerate(model)
    START.done("model")
    data.prepare(model)
    model.prepare(data)
    START.done("data")
    for name in ("start", "last", "previous", "best", "pictures"):
        check_replaced(Path(run.folder) / name, "--run.folder")
    return model


def check_settings(folder: Path, data: Source, position: Position, run: Run) -> None:
    """Raise UserError if settings have changed since the run in `folder` was started."""
    free = ("accumulate",) if same_steps(data, position, run) else ()
    keep_to(folder, position.plan, position.plan | settings(run), free=free)


def settings(run: Run) -> dict:
    """Return the settings that may not change when a run is resumed.

    With `precision: auto`, a run keeps the precision that was chosen when it began, also on another device (where
    `computed` may replace bf16).
    """
    precision = {} if run.precision == "auto" else {"precision": run.precision}
    return dict(seed=run.seed, accumulate=run.accumulate, **precision, warmup=run.warmup)

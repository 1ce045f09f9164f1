"""`fit`: train a task on a source until it is done, from scratch or from wherever a run folder stands.

What is decided before the first step stands here; the loop itself is in `training`.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vision_attn.configuration.run_settings import Run
from vision_attn.configuration.weights import load_weights
from vision_attn.engine.device_settings import computed, described, precision_for, thread_trial
from vision_attn.engine.distributed import World, join, seed_all
from vision_attn.engine.interrupt import Interrupt
from vision_attn.engine.log import Log
from vision_attn.engine.run_folder import checkpoint
from vision_attn.engine.run_folder.best import best_metrics
from vision_attn.engine.run_folder.checkpoint import Position
from vision_attn.engine.run_folder.claim import keep_to
from vision_attn.engine.run_folder.folders import lock_folder
from vision_attn.engine.run_folder.start import check_rate, check_untrained, keep_start, restore_start, started
from vision_attn.engine.step import Step
from vision_attn.engine.training import Training, trained
from vision_attn.engine.watching import check_watchers
from vision_attn.fast import accelerate
from vision_attn.fast.graphs import without_graphs
from vision_attn.system.console import complain, say
from vision_attn.system.errors import UserError
from vision_attn.system.inputs import check_replaced
from vision_attn.system.memory import keep_freed_memory
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
    """Train, and return the metrics of the best weights, which then lie in `run.folder`/best.

    Started again with the same arguments, a run that was stopped or killed goes on exactly where its last checkpoint
    stands, and a finished run returns at once; with more epochs, it goes on. `schedule` is
    called with the optimizer, and gets the number of steps of all epochs as `configuration.schedules` says; it is
    stepped once per optimiser step. Raises UserError for what the user can mend: settings that changed since the
    checkpoint, a folder in use, an unknown metric, a loss that is not finite, a full disk. Ctrl-C and SIGTERM save and
    then raise KeyboardInterrupt and SystemExit(143); while torch compiles (`run.compile`), at once and without saving.
    While it trains, the process has the number of threads of the run.
    """
    check_watchers(run)
    keep_freed_memory()
    folder = Path(run.folder)
    with (
        without_graphs(run.capture is False),
        join(run.device) as world,
        threads_kept(),
        lock_folder(folder) if world.is_main else nullcontext(),
    ):
        if world.broadcast(world.is_main and nothing_left(folder, run, settings(run))):
            return world.broadcast(best_metrics(folder) if world.is_main else None)
        position = world.broadcast(checkpoint.find(folder) if world.is_main else None)
        fresh = position is None
        position = position or Position(settings(run) | {"epochs": run.epochs if schedule else None})
        keep_to(folder, position.plan, position.plan | settings(run))
        position.done = False
        threads = thread_trial(run, world, position.chosen.get("threads"))
        if threads.chosen is not None:  # before weights are drawn and data is prepared, whose numbers depend on it
            torch.set_num_threads(threads.chosen)
        seed_all(run.seed)
        model = build(task, data, world, run, fresh=fresh)
        batches = len(data)
        if batches < 1:
            raise UserError("the data source has no training batch: is its training split empty?")
        precision = world.broadcast(precision_for(world.device))
        position.plan = {"batches": batches, "precision": precision} | position.plan
        if batches != (before := position.plan["batches"]):
            raise UserError(
                f"{folder}: the data had {before:,} training batches when this run began, and now {batches:,}: bring"
                f" back the data, or give another --run.folder (--run.start_from={folder} begins with its weights)"
            )
        total = run.epochs * -(-batches // run.accumulate)
        asked = position.plan["precision"]
        precision = world.broadcast(computed(asked, world.device))
        run = replace(run, precision=precision)
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
                training = Training(run, folder, world, data, model, batches, step, log, position, interrupt, threads)
                training.start()
                if world.is_main and not trained(position, run):
                    for line in filter(None, (data.summary, described(world.device, asked, position.chosen, threads))):
                        say(line)
                    for line in data.remarks:
                        complain(line)
                training.epochs()
                return training.finish()
        finally:
            log.close()


def nothing_left(folder: Path, run: Run, plan: dict) -> bool:
    """Whether training is finished and all outputs of the run are written."""
    position = checkpoint.peek(folder)
    if position is None:
        return False
    keep_to(folder, position.plan, position.plan | plan)
    shown = not run.show or any((folder / "pictures").glob("*"))
    written = position.done and shown and (folder / "best" / "model.safetensors").is_file()
    if written and trained(position, run):
        say(f"{folder} is finished after epoch {position.epoch}: nothing is left to train")
        return True
    return False


def build(task: Callable[[Source], Task], data: Source, world: World, run: Run, *, fresh: bool) -> Task:
    """Build the task on its device and prepare its data. Weights come from the checkpoint, from `run.start_from`, or
    from `Task.initialise`; words or classes of a run that goes on are those with which it began."""
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
    data.prepare(model)
    model.prepare(data)
    for name in ("start", "last", "previous", "best", "pictures"):
        check_replaced(Path(run.folder) / name, "--run.folder")
    return model


def settings(run: Run) -> dict:
    """The settings that may not change when a run is resumed.

    With `precision: auto`, a run keeps what was chosen when it began, also on another device (where
    `computed` may replace bf16).
    """
    precision = {} if run.precision == "auto" else {"precision": run.precision}
    return dict(seed=run.seed, accumulate=run.accumulate, **precision, warmup=run.warmup)

"""`fit`: train a task on a source until it is done, from nothing or from wherever a run folder stands.

A plain PyTorch loop that knows no model. Read from `fit` downwards.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vision_attn.console import progress, say
from vision_attn.engine import checkpoint
from vision_attn.engine.batches import Watched, few
from vision_attn.engine.checkpoint import Position
from vision_attn.engine.distributed import World, forked_random, join, random_state, seed_all, set_random_state
from vision_attn.engine.interrupt import Interrupt
from vision_attn.engine.log import Log
from vision_attn.engine.memory import keep_freed_memory
from vision_attn.engine.run import Run
from vision_attn.engine.step import Step
from vision_attn.engine.weights import load_weights, save_weights
from vision_attn.task import Batch, Source, Task


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
    stands, and a finished run returns at once. `schedule` is called with the optimizer and the number of steps, and is
    stepped once per optimiser step. Raises ValueError for what the user can mend: settings that changed since the
    checkpoint, a folder in use, an unknown metric, a loss that is not finite, a full disk. Ctrl-C and SIGTERM save and
    then raise KeyboardInterrupt and SystemExit(143).
    """
    keep_freed_memory()
    folder = Path(run.folder)
    with join(run.device) as world, checkpoint.claim(folder) if world.first else nullcontext():
        position = world.share(checkpoint.find_position(folder) if world.first else None)
        fresh = position is None
        position = position or Position(settings(run, schedule))
        keep_to(position.plan, settings(run, schedule), folder)
        if finished(position, run):
            if world.first:
                say(f"{folder} is finished after epoch {position.epoch}: nothing is left to train")
            return best_metrics(folder)
        seed_all(run.seed)
        model = build(task, data, world, folder, fresh=fresh, start_from=run.start_from)
        batches = len(data)
        if batches < 1:
            raise ValueError("the data source has no training batch: is its training split empty?")
        keep_to({"batches": batches} | position.plan, {"batches": batches}, folder)
        position.plan["batches"] = batches
        total = run.epochs * -(-batches // run.accumulate)
        step = Step(model, optimizer=optimizer, schedule=schedule, run=run, world=world, total=total)
        log = Log(folder, world, run, position.logged)
        try:
            with Interrupt() as interrupt:
                training = Training(run, folder, world, data, model, batches, step, log, position, interrupt)
                training.start()
                training.epochs()
                return training.finish()
        finally:
            log.close()


def build(
    task: Callable[[Source], Task], data: Source, world: World, folder: Path, *, fresh: bool, start_from: str | None
) -> Task:
    """The task on its device, with its data at hand; with the weights of the checkpoint, or of where it starts from, or
    pretrained ones."""
    model = task(data)
    if fresh and start_from is None:
        with world.first_alone():
            model.initialise()
    elif fresh:
        best = Path(start_from) / "best"
        load_weights(model, best if best.is_dir() else Path(start_from))
        model.restart()
    else:
        load_weights(model, folder / "last")
    model.to(world.device)
    data.prepare(model)
    return model


def settings(run: Run, schedule: Callable | None) -> dict:
    """What a run must keep to go on exactly. A schedule is drawn over all epochs; without one, more may be added."""
    epochs = run.epochs if schedule else None
    return dict(seed=run.seed, accumulate=run.accumulate, precision=run.precision, warmup=run.warmup, epochs=epochs)


def keep_to(old: dict, new: dict, folder: Path) -> None:
    """Refuse settings under which a run could not go on exactly."""
    changed = [f"{name} (was {old.get(name)}, is {value})" for name, value in new.items() if old.get(name) != value]
    if changed:
        raise ValueError(
            f"{folder} was started with other settings: {', '.join(changed)}; set them back, or choose a new run.folder"
        )


def finished(position: Position, run: Run) -> bool:
    """All epochs done, or no better metric for too long."""
    return position.epoch >= run.epochs or (run.patience is not None and position.since_best >= run.patience)


def best_metrics(folder: Path) -> dict[str, float]:
    """The validation metrics of best/."""
    path = folder / "best" / "metrics_val.json"
    metrics = json.loads(path.read_text()) if path.exists() else {}
    return {name: float(value) for name, value in metrics.items() if name not in ("step", "epoch")}


@dataclass
class Training:
    """All the parts of a run under way. Every process has one; the first alone writes, validates and logs."""

    run: Run
    folder: Path
    world: World
    data: Source
    task: Task
    batches: int
    step: Step
    log: Log
    position: Position
    interrupt: Interrupt
    saved: float = 0.0

    def start(self) -> None:
        """Go on where the checkpoint stands, or rehearse validation before the first step."""
        run, position = self.run, self.position
        seed_all(run.seed + self.world.rank)  # From here on each process makes its own draws.
        if position.step:
            trainer = checkpoint.load_trainer(self.folder)
            self.step.load_state_dict(trainer["step"])
            self.log.load_state_dict(trainer["log"])
            states = trainer["random"]
            if len(states) == self.world.size:
                set_random_state(states[self.world.rank], self.world.device)
            elif self.world.first:
                say(f"the checkpoint is of {len(states)} processes, now there are {self.world.size}: draws will differ")
            if self.world.first:
                say(f"{self.folder} goes on at epoch {position.epoch + 1}, step {position.step}")
        elif run.rehearse and run.validate_every and self.world.first:
            self.evaluate(islice(self.data.split("val"), 1))
        self.saved = self.log.since = time.monotonic()

    def epochs(self) -> None:
        """Train and validate until the run is finished."""
        run, position = self.run, self.position
        while not finished(position, run):
            if position.batch < self.batches:
                self.epoch()
            number = position.epoch + 1
            if run.validate_every and (number % run.validate_every == 0 or number == run.epochs):
                self.validate()
            position.epoch, position.batch, position.logged = number, 0, self.log.position
            if self.world.first:
                checkpoint.move(self.folder, position)

    def epoch(self) -> None:
        """The steps of one epoch that are still to do, with a checkpoint now and then and one at the end."""
        run, world, position = self.run, self.world, self.position
        self.task.train()
        batches = self.stream()
        name = f"epoch {position.epoch + 1}/{run.epochs}"
        with progress(what=name, unit="batch", total=self.batches, initial=position.batch) as bar:
            while position.batch < self.batches:
                number = min(run.accumulate, self.batches - position.batch)
                rate = self.step.optimizer.param_groups[0]["lr"]
                self.log.add(*self.step(batches, number, position.step))
                position.step += 1
                position.batch += number
                bar.update(number)
                last = position.batch == self.batches
                if last or position.step % run.log_every == 0:
                    self.step.check()
                    line = self.log.train(step=position.step, epoch=position.epoch + 1, learning_rate=float(rate))
                    bar.set_postfix(loss=f"{line['loss']:.4g}")
                late = time.monotonic() - self.saved >= run.save_every
                stop, save = world.most(self.interrupt.asked, late)
                if last or stop or save:
                    self.save()
                if stop:
                    self.interrupt.leave(f"stopped after step {position.step}, saved in {self.folder}/last")
        if world.first:
            say(f"{name}: step {position.step}, loss {line['loss']:.4g}, {line['items_per_second']:.4g} items/s")

    def stream(self) -> Iterator[Batch]:
        """The batches left of this epoch. Whatever a source draws on starting follows from seed and epoch alone."""
        run, world, position = self.run, self.world, self.position
        with forked_random(run.seed + position.epoch, world.device):
            batches = iter(
                self.data.train(position.epoch, seed=run.seed, skip=position.batch, rank=world.rank, world=world.size)
            )
            first = list(islice(batches, 1))
        return chain(first, batches)

    def save(self) -> None:
        """Write last/, unless a step since the last one was not finite."""
        self.step.check()
        random, log = self.world.gather(random_state(self.world.device)), self.log.state_dict()
        self.position.logged = self.log.position
        if self.world.first:
            trainer = {"step": self.step.state_dict(), "log": log, "random": random}
            checkpoint.save(self.folder, self.task, trainer, self.position)
        self.saved = time.monotonic()

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """The metrics of the task as it stands, with draws that leave no trace. Raises for an unknown metric."""
        self.task.eval()
        with torch.no_grad(), self.step.autocast(), forked_random(self.run.seed, self.world.device):
            metrics = self.task.evaluate(Watched(batches, self.world.device, self.interrupt))
        self.task.train()
        if self.run.metric not in metrics:
            raise ValueError(f"run.metric is {self.run.metric!r}, but validation gives: {', '.join(metrics)}")
        return metrics

    def validate(self) -> None:
        """Validate in the first process, and keep the weights in best/ when they are the best so far."""
        position, world = self.position, self.world
        averaged = self.step.average.in_place() if self.step.average else nullcontext()
        with averaged:
            if world.first:
                metrics = self.evaluate(self.data.split("val"))
                value = float(metrics[self.run.metric])
                better = position.best is None or (
                    value > position.best if self.run.mode == "max" else value < position.best
                )
                if better:
                    self.keep(metrics)
                    position.best = None if math.isnan(value) else value
                position.since_best = 0 if better else position.since_best + 1
                self.log.validation(metrics, step=position.step, epoch=position.epoch + 1)
                shown = ", ".join(f"{name} {number:.4g}" for name, number in metrics.items())
                say(f"validation after epoch {position.epoch + 1}: {shown}{' (best so far)' if better else ''}")
        position.best, position.since_best = world.share((position.best, position.since_best))

    def keep(self, metrics: dict[str, float]) -> None:
        """Write best/: everything needed to use the task as it stands."""
        position = self.position
        with checkpoint.replacing_folder(self.folder / "best") as best:
            save_weights(self.task, best / "model.safetensors")
            self.data.export(best)
            if (self.folder / "config.yaml").exists():
                shutil.copyfile(self.folder / "config.yaml", best / "config.yaml")
            text = json.dumps({"step": position.step, "epoch": position.epoch + 1, **metrics}, indent=2)
            (best / "metrics_val.json").write_text(text + "\n")

    def finish(self) -> dict[str, float]:
        """Draw what was asked for with the best weights, and return their metrics."""
        run, world = self.run, self.world
        if world.first:
            if not run.validate_every:
                with self.step.average.in_place() if self.step.average else nullcontext():
                    self.keep({})
            if run.show:
                load_weights(self.task, self.folder / "best")
                self.task.eval()
                batch = next(iter(Watched(islice(self.data.split("val"), 1), world.device, self.interrupt)))
                with torch.no_grad(), forked_random(run.seed, world.device):
                    paths = self.task.show(few(batch, run.show), self.folder / "pictures")
                say(f"{len(paths)} pictures in {self.folder / 'pictures'}")
        return world.share(best_metrics(self.folder) if world.first else None)

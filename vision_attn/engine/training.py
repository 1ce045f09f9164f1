"""The training loop: epochs of optimiser steps, validation, checkpoints and final outputs.

A plain PyTorch loop, independent of the model.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vision_attn.configuration.run_settings import Run
from vision_attn.configuration.weights import load_weights
from vision_attn.engine.batches import examples
from vision_attn.engine.distributed import World, forked_random, random_state, seed_all, set_random_state
from vision_attn.engine.interrupt import Interrupt
from vision_attn.engine.log import Log
from vision_attn.engine.predictions import Stopped, predictions
from vision_attn.engine.run_folder import checkpoint
from vision_attn.engine.run_folder.best import best_metrics, better, save_best, without_best
from vision_attn.engine.run_folder.checkpoint import Position
from vision_attn.engine.run_folder.known_metrics import known_metrics, validation_key
from vision_attn.engine.step import Step
from vision_attn.engine.timing.start import START
from vision_attn.system.console import leave_out, progress, reason_of, say, unit_of
from vision_attn.system.errors import UserError
from vision_attn.system.memory import return_freed_memory
from vision_attn.system.thread_trial import ThreadTrial
from vision_attn.task import Batch, Source, Task


def trained(position: Position, run: Run) -> bool:
    """Return whether all epochs are done, or `run.patience` is exhausted."""
    return position.epoch >= run.epochs or (run.patience is not None and position.since_best >= run.patience)


@dataclass
class Training:
    """The state and the loop of a run in progress. Every process has one; only the first judges predictions, writes and
    logs."""

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
    threads: ThreadTrial
    regrouped: bool = False
    """Whether the size of batches has changed since the run began."""
    saved: float = 0.0

    def start(self) -> None:
        """Resume from the checkpoint, or validate before the first step: on one batch, or, if the run starts from the
        weights of another run, on all batches, so that best/ holds these weights until training has improved them."""
        run, position, world = self.run, self.position, self.world
        seed_all(run.seed + world.rank)  # From here on each process samples independently.
        if position.step:
            self.resume()
        elif run.start_from and run.validate_every and not position.logged:
            self.save()  # best/ without a checkpoint would be refused
            known = world.broadcast(known_metrics(run, self.task, self.data))
            if known and run.sanity_check:
                self.evaluate(islice(self.validation(), self.data.num_sources), world)
            self.validate(0, known)
            position.logged = self.log.flushed()
            if world.is_main:
                checkpoint.update_position(self.folder, position)
        elif run.sanity_check and run.validate_every:
            self.evaluate(islice(self.validation(), self.data.num_sources), world)
        START.done("checkpoint" if position.step else "validation" if run.start_from else "sanity check")
        self.saved = self.log.since = time.monotonic()

    def resume(self) -> None:
        """Restore everything but the weights from last/. Raises UserError naming the file if it does not fit."""
        position, world = self.position, self.world
        trainer = checkpoint.load_trainer(self.folder / "last")
        try:
            self.step.load_state_dict(trainer["step"])
            self.stretch()
            self.log.load_state_dict(trainer["log"])
            states = trainer["random"]
            if len(states) == world.size:
                set_random_state(states[world.rank], world.device)
        except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            path = self.folder / "last" / checkpoint.TRAINER
            raise UserError(f"{path} does not fit this run: {reason_of(error)}") from error
        if world.is_main:
            if len(states) != world.size:
                say(f"the checkpoint has {len(states)} processes, this run {world.size}: random numbers will differ")
            going = f"at epoch {position.epoch + 1}, step {position.step}"
            say(f"resuming {self.folder} {'to write the final outputs' if trained(position, self.run) else going}")
            if (position.best, position.best_nll) != (None, None) and (lost := without_best(self.task, self.folder)):
                say(f"{lost}: the next validation sets the best weights")
                position.best = position.best_nll = None
                position.since_best = 0
        position.since_best = world.broadcast(position.since_best)

    def stretch(self) -> None:
        """Stretch the schedule of a resumed run over `run.epochs`, if the number of epochs has changed, or the size of
        batches, which may add a step to an epoch."""
        before, run = self.position.plan.get("epochs"), self.run
        same = before == run.epochs
        if before is None or (same and not self.regrouped) or trained(self.position, run):
            return
        old, new = self.step.restart_schedule(self.position.step)
        self.position.plan["epochs"] = run.epochs
        if self.world.is_main and not same:
            say(
                f"the schedule spans {run.epochs} epochs now, and {before} before: the learning rate changes from"
                f" {old:.3g} to {new:.3g}"
            )

    def epochs(self) -> None:
        """Train and validate until `trained`."""
        run, position = self.run, self.position
        while not trained(position, run):
            if position.batch < self.batches:
                self.epoch()
            number = position.epoch + 1
            changed = False
            if run.validate_every and (number % run.validate_every == 0 or number == run.epochs):
                changed = self.task.validated(self.validate(number))
            position.epoch, position.batch, position.logged = number, 0, self.log.flushed()
            if changed:
                self.save()  # the weights and the position at once: a run that is killed here is resumed exactly
            elif self.world.is_main:
                checkpoint.update_position(self.folder, position)

    def epoch(self) -> None:
        """Do the remaining steps of one epoch, with checkpoints every `run.save_every` seconds and at the end."""
        run, world, position = self.run, self.world, self.position
        self.task.train()
        batches = self.stream()
        name = f"epoch {position.epoch + 1}/{run.epochs}"
        with progress(what=name, unit="batch", total=self.batches, initial=position.batch) as bar:
            while position.batch < self.batches:
                number = min(run.accumulate, self.batches - position.batch)
                rate = self.step.optimizer.param_groups[0]["lr"]
                self.log.add(*self.one_step(batches, number, bar), self.step.profile.lately())
                if START.parts and world.is_main:
                    START.done("step")
                    say(START.end())
                position.step += 1
                position.batch += number
                bar.update(number)
                last = position.batch == self.batches
                if last or position.step % run.log_every == 0:
                    self.step.check()
                    at: dict[str, Any] = {
                        "step": position.step,
                        "epoch": position.epoch + 1,
                        "learning_rate": float(rate),
                    }
                    line = self.log.train(**at, threads=self.threads.chosen if world.device.type == "cpu" else None)
                    bar.set_postfix(loss=f"{line['loss']:.4g}")
                late = time.monotonic() - self.saved >= run.save_every
                stop, save = world.all_reduce_max(self.interrupt.asked, late)
                if last or stop or save:
                    self.save()
                if stop:
                    self.interrupt.leave(f"stopped after step {position.step}, saved in {self.folder}/last")
        if world.is_main:
            rate = f"{line['items_per_second']:.4g} items/s, waits {line['waits']:.0%}"
            nll = f", nll {line['nll']:.4g}" if "nll" in line else ""  # a constant penalty may be most of the loss
            say(f"{name}: step {position.step}, loss {line['loss']:.4g}{nll}, {rate}")

    def one_step(self, batches: Iterator[Batch], number: int, bar: Any) -> tuple[dict[str, Tensor], int]:
        """Do one step. While the number of threads is not chosen, its time, including the wait for its batches, counts
        in the trial. The estimate of the progress bar ignores the extra time of steps that compile or capture."""
        began, trial = time.monotonic(), self.threads
        if trial.chosen is not None:
            self.step.profile.begin(self.position.step)
            done = self.step(batches, number, self.position.step)
            if self.step.prepared:
                leave_out(bar, time.monotonic() - began)
            return done
        with trial:
            done = self.step(batches, number, self.position.step)
            trial.kind = self.step.shapes
        leave_out(bar, trial.excess)
        if trial.chosen is not None:
            torch.set_num_threads(trial.chosen)
            self.position.chosen["threads"] = trial.chosen
            say(f"training in {trial.described('step')}")
        return done

    def stream(self) -> Iterator[Batch]:
        """Return the remaining batches of this epoch. The samples of a source depend on seed and epoch alone."""
        run, world, position = self.run, self.world, self.position
        with forked_random(run.seed + position.epoch, world.device):
            batches = iter(
                self.data.train(position.epoch, seed=run.seed, skip=position.batch, rank=world.rank, world=world.size)
            )
            first = list(self.step.profile.waiting(islice(batches, 1)))
        return chain(first, batches)

    def save(self) -> None:
        """Write last/, and return the memory that steps have freed. Raises UserError if the loss or gradient of a step
        since the last checkpoint was not finite."""
        self.step.check()
        random, log = (self.world.gather(state) for state in (random_state(self.world.device), self.log.state_dict()))
        self.position.logged = self.log.flushed()
        if self.world.is_main:
            trainer = {"step": self.step.state_dict(), "log": log, "random": random}
            checkpoint.save(self.folder, self.task, trainer, self.position)
        return_freed_memory()
        self.saved = time.monotonic()

    def validation(self) -> Iterable[Batch]:
        """Return the batches that this process predicts."""
        return self.data.split("val", rank=self.world.rank, world=self.world.size)

    def evaluate(self, batches: Iterable[Batch], world: World) -> dict[str, float]:
        """Compute validation metrics in the first process of `world`; each process predicts its own `batches`. The
        random state is unchanged. Raises UserError if the metrics lack `run.metric`."""
        self.task.eval()
        began = time.monotonic()
        metrics: dict[str, float] = {}
        undecided = None if self.threads.chosen else ThreadTrial((self.threads.one, self.threads.all))
        with torch.no_grad(), self.step.autocast(), forked_random(self.run.seed, world.device):
            predicted = predictions(
                self.task, batches, world, seed=self.run.seed, what="validation",
                asked=lambda: self.interrupt.asked, within=undecided or nullcontext(),
            )  # fmt: skip
            try:
                if world.is_main:
                    metrics = self.task.judge(predicted)
                deque(predicted, maxlen=0)
            except Stopped:
                self.interrupt.leave("stopped during validation")
        self.task.train()
        self.step.profile.validated(time.monotonic() - began)
        if world.is_main and self.run.metric not in metrics:
            more = f"; {self.task.chosen_by} names others" if self.task.chosen_by else ""
            raise UserError(f"run.metric is {self.run.metric!r}, but validation computes: {', '.join(metrics)}{more}")
        return metrics

    def validate(self, epoch: int, known: dict[str, float] | None = None) -> dict[str, float]:
        """Validate after this epoch, unless the metrics are known. The first process writes the weights to best/ if
        they are the best so far. Returns the metrics in every process."""
        run, position, world = self.run, self.position, self.world
        with self.kept_weights():
            metrics = known or self.evaluate(self.validation(), world)
            best = world.is_main and better(metrics, position, metric=run.metric, mode=run.mode)
            if best:
                key = validation_key(self.folder, self.task, self.data)
                save_best(self.folder, self.task, self.data, position, metrics, key)
        if world.is_main:
            self.log.validation(metrics, step=position.step, epoch=epoch)
            shown = ", ".join(f"{name} {number:.4g}{unit_of(name)}" for name, number in metrics.items())
            when = f"after epoch {epoch}" if epoch else f"of the weights of {run.start_from}"
            when += ", which is stored there" if known else ""
            say(f"validation {when}: {shown}{' (best so far)' if best else ''}")
        position.since_best, metrics = world.broadcast((position.since_best, metrics))
        return metrics

    @contextmanager
    def kept_weights(self) -> Iterator[None]:
        """Context manager: put the weights to validate and keep into the task: averaged if `run.average`, and
        interpolated with the weights of the start if `run.start_share`."""
        with ExitStack() as held:
            for weights in filter(None, (self.step.average, self.step.between)):
                held.enter_context(weights.in_place())
            yield

    def finish(self) -> dict[str, float]:
        """Write the final outputs: best/, if validation has not, and the pictures. Returns the best metrics."""
        run, world = self.run, self.world
        self.step.profile.end()
        if world.is_main:
            lost = without_best(self.task, self.folder) if run.validate_every else ""
            if lost:
                say(f"{lost}: using the weights of the last step as the best")
            if lost or not run.validate_every:
                with self.kept_weights():
                    alone = World(0, 1, world.device)
                    metrics = self.evaluate(self.data.split("val"), alone) if lost else {}
                    save_best(self.folder, self.task, self.data, self.position, metrics)
            if run.show:
                self.show()
            self.position.done = True
            checkpoint.update_position(self.folder, self.position)
        return world.broadcast(best_metrics(self.folder) if world.is_main else None)

    def show(self) -> None:
        """Draw items of the validation split with the best weights."""
        run, device = self.run, self.world.device
        load_weights(self.task, self.folder / "best")
        self.task.eval()
        with torch.no_grad(), forked_random(run.seed, device):
            batch = examples(self.task, self.data.split("val"), run.show, device)
            paths = self.task.show(batch, self.folder / "pictures")
        self.log.pictures(paths, step=self.position.step)
        say(f"{len(paths)} pictures in {self.folder / 'pictures'}")

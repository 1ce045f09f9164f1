"""One optimiser step of any task, eager, compiled or captured: forward, backward, clip, update."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vision_attn.configuration.run_settings import Run
from vision_attn.engine.average import Average, Between
from vision_attn.engine.batches import on_device, shapes, size
from vision_attn.engine.capture import Captured, Work
from vision_attn.engine.compiling import Compiling, clear_of_compiler_errors, quiet_compiler
from vision_attn.engine.device_settings import uncaptured
from vision_attn.engine.distributed import World, average_changes, distribute, moving_averages
from vision_attn.engine.interrupt import Interrupt
from vision_attn.engine.optimizers import Rates, make_capturable, warm, with_fused_kernels, with_rates
from vision_attn.engine.timing.profile import Profile
from vision_attn.system.console import few, printable, say
from vision_attn.system.errors import UserError
from vision_attn.task import Batch, Task

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SMALLEST_SCALE = 2.0**-16
"""The smallest scale of the loss with fp16. After a step whose gradients are not finite, which is skipped, the scale is
halved."""


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the autocast context of a run of this precision."""
    dtype = DTYPES[precision]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


class Step:
    """Performs one optimiser step. Holds all training state except the weights."""

    task: Task
    run: Run
    world: World

    def __init__(
        self,
        task: Task,
        *,
        optimizer: Callable[[Iterable], Optimizer],
        schedule: Callable[[Optimizer, int], LRScheduler] | None,
        run: Run,
        world: World,
        total: int,
    ) -> None:
        self.task, self.run, self.world = task, run, world
        self.parameters = [parameter for parameter in task.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise UserError("the task has no weights to train: every one of its parameters is frozen")
        self.optimizer = with_fused_kernels(with_rates(optimizer, self.parameters, task.rates()))
        self.start_schedule = partial(warm, schedule=schedule, warmup=run.warmup, total=total, epochs=run.epochs)
        self.schedule = self.start_schedule(self.optimizer)
        if run.precision == "fp16":  # The scaler skips the first steps while it searches for its scale.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=run.precision == "fp16")
        self.average = Average(self.parameters, run.average) if run.average else None
        self.between = Between(self.parameters, run.start_share) if run.start_share else None
        self.number = torch.zeros((), dtype=torch.long, device=world.device)
        """The number of the current step, on the device."""
        self.trouble = torch.full((2,), -1, device=world.device)
        """The first step whose loss, and the first whose gradient, was not finite; -1 if there is none."""
        self.captured = self._capture()
        """Whether steps are captured in graphs, as far as the task permits it."""
        self.profile = Profile(
            Path(run.folder) / "profile", world.device, run.profile if world.is_main else 0, captured=self.captured
        )
        self.rates = Rates(self.optimizer, world.device)
        self.work: Work = Captured(self.compute, world.device) if self.captured else self.compute
        if run.compile:
            quiet_compiler()
            task.compile()
        self.compiling: Compiling | None = None
        self.model: nn.Module = distribute(task) if world.size > 1 else task
        self.ids: dict[int, list] = {}
        """The image ids of each step since the last `check`."""
        self.items = 0
        """The number of items in the current step."""
        self.shapes: tuple = ()
        """The shapes of the batches of the current step."""
        self.terms: dict[str, Tensor] = {}
        """The scalars of the task in the latest step, for messages about values that are not finite."""

    def __call__(self, batches: Iterator[Batch], number: int, step: int) -> tuple[dict[str, Tensor], int]:
        """Do step `step` over the next `number` batches. Returns the mean scalars, on the device, and the number of
        items.

        The next step may overwrite the scalars.
        """
        self.number.fill_(step)
        self.ids[step], self.items, self.shapes = [], 0, ()
        if self.captured:
            self.rates.fill()
        with self.profile.step(step):
            totals = self.work(self._next_batches(batches, number, step), number)
        if self.schedule is not None:
            self.schedule.step()
        return totals, self.items

    @property
    def prepared(self) -> bool:
        """Whether the latest step took longer than later ones, because it compiled or captured."""
        compiled = self.compiling is not None and self.compiling.lately()
        return compiled or (isinstance(self.work, Captured) and self.work.prepared)

    @contextmanager
    def told(self, interrupt: Interrupt) -> Iterator[None]:
        """Context manager: log when torch compiles, and let a signal meanwhile end the run at once."""
        if not self.run.compile:
            yield
            return
        with Compiling(interrupt, is_main=self.world.is_main) as self.compiling:
            yield

    def _next_batches(self, batches: Iterator[Batch], number: int, step: int) -> Iterator[Batch]:
        """Yield the next `number` batches, noting their image ids and counting their items."""
        taken = 0
        for batch in self.profile.waiting(islice(batches, number)):
            taken += 1
            self.ids[step] += getattr(batch, "ids", None) or ()
            self.items += size(batch)
            self.shapes += (shapes(batch),)
            if isinstance(self.work, Captured) and not self.work.refused:
                with self.autocast():
                    batch = self.task.captured_batch(batch)
            yield batch
        if taken < number:
            raise UserError("the data source yielded fewer training batches than its length")

    def compute(self, batches: Iterable[Batch], number: int) -> dict[str, Tensor]:
        """Do all device work of a step. Numbers that change from step to step are read from tensors."""
        totals: dict[str, Tensor] = {}
        before = moving_averages(self.task, self.world)
        try:
            for index, batch in enumerate(batches, start=1):
                scalars = self._backward(on_device(batch, self.world.device), number, last=index == number)
                for name, value in scalars.items():
                    totals[name] = totals.get(name, 0) + value.detach() / number
            if self.world.size > 1:
                self._check_gradients()
            self.scaler.unscale_(self.optimizer)
            self.terms = dict(totals)
            totals["gradient"] = get_total_norm([p.grad for p in self.parameters if p.grad is not None])
            self._watch(totals)
            with self.profile.part("update"):
                self._update(totals)
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        average_changes(self.task, self.world, before)
        return totals

    def _backward(self, batch: Batch, number: int, *, last: bool) -> dict[str, Tensor]:
        model: Any = self.model
        quiet = nullcontext() if last or self.world.size == 1 else model.no_sync()
        with quiet:
            with self.profile.part("forward"), self.autocast(), clear_of_compiler_errors():
                scalars = self.model(*batch)
            with self.profile.part("backward"):
                self.scaler.scale(scalars["loss"] / number).backward()
        return scalars

    def _check_gradients(self) -> None:
        """Raise UserError if a weight has no gradient: other processes would wait for it forever."""
        if any(weight.grad is None for weight in self.parameters):
            weights = self.task.named_parameters()
            idle = [name for name, weight in weights if weight.requires_grad and weight.grad is None]
            more = f", as {len(idle) - 1} more" * (len(idle) > 1)
            raise UserError(
                f"with several processes every weight needs a gradient in each step, and {idle[0]} has none{more}: "
                "freeze what is not trained (requires_grad_(False)), or train with one process"
            )

    def _update(self, totals: dict[str, Tensor]) -> None:
        if self.run.clip is not None:
            clip_grads_with_norm_(self.parameters, self.run.clip, totals["gradient"])
        with self.rates.in_place() if self.captured else nullcontext():
            self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update()

    def _capture(self) -> bool:
        """Decide whether steps are captured, and prepare the optimizer for it."""
        reason = uncaptured(self.run, self.task, self.world, self.optimizer, self.schedule)
        captured = not reason and self.run.capture is not False
        asked = self.run.capture is True or (self.run.capture == "auto" and self.world.device.type == "cuda")
        if reason and asked and self.world.is_main:
            say(f"run.capture: {reason}; steps run eagerly")
        if captured:  # Warm-up steps run without a graph, and torch would say so.
            warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")
        make_capturable(self.optimizer, captured=captured)
        return captured

    def autocast(self) -> torch.autocast:
        """Return the autocast context of the run, for training and validation."""
        return autocast(self.world.device, self.run.precision)

    def _watch(self, totals: dict[str, Tensor]) -> None:
        """Record, on the device, the first step that is not finite. With fp16 the scaler handles the gradients."""
        gradient = totals["loss"] if self.scaler.is_enabled() else totals["gradient"]
        finite = torch.stack([totals["loss"].float(), gradient.float()]).isfinite()
        self.trouble.copy_(torch.where((self.trouble < 0) & ~finite, self.number, self.trouble))
        if self.world.device.type == "cpu" and not self.captured:  # The check is free: a bad step is never applied.
            self.check()

    def check(self) -> None:
        """Raise UserError if any step since the last check had a loss or gradient that was not finite.

        All processes must call it together. It synchronises with the device, so call it where synchronisation is needed
        anyway.
        """
        if self.scaler.is_enabled() and self.scaler.get_scale() < SMALLEST_SCALE:
            raise UserError(
                f"the gradients are not finite in fp16, however small the loss is scaled (now by "
                f"{self.scaler.get_scale():.0e}): look for a division by zero or a logarithm of zero, or train with "
                "--run.precision=bf16 or fp32"
            )
        first_steps = self.trouble.tolist()
        if max(self.world.all_reduce_max(*first_steps)) >= 0:
            self._refuse(first_steps)
        self.ids.clear()

    def _refuse(self, first_steps: list[int]) -> None:
        """Raise UserError, which names the first step of any process whose loss or gradient was not finite.

        first_steps: the number of this step in this process, for the loss and for the gradient; -1: none.
        """
        steps = zip(first_steps, ("loss", "gradient"), strict=True)
        mine = [(step, what, self.ids.get(step, [])) for step, what in steps if step >= 0]
        troubles = [trouble for process in self.world.gather(mine) for trouble in process]
        step, what, ids = min(
            troubles, key=lambda trouble: (trouble[0], trouble[1] != "loss")
        )  # The loss is the cause.
        images = few([printable(str(image)) for image in ids], 8)
        terms = [name for name, value in self.terms.items() if name != "loss" and not value.isfinite().all()]
        batch = f"; ids of its batch: {images}" if images else ""
        batch += f"; in the latest step also: {', '.join(terms)}" if terms else ""
        last = Path(self.run.folder) / "last"
        saved = f"The last good checkpoint is in {last}" if last.exists() else "There is no checkpoint before it"
        first = "check these images, " if images else ""
        raise UserError(
            f"step {step + 1}: the {what} is not finite{batch}. {saved}; {first}lower the learning rate, or set "
            "run.clip"
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule and self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": self.average and self.average.state_dict(),
            "between": self.between and self.between.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, before the first step."""
        self.optimizer.load_state_dict(state["optimizer"])
        make_capturable(self.optimizer, captured=self.captured)
        self.scaler.load_state_dict(state["scaler"])
        for name in ("schedule", "average", "between"):
            if getattr(self, name) is not None and state.get(name) is not None:
                getattr(self, name).load_state_dict(state[name])

    def restart_schedule(self, done: int) -> tuple[float, float]:
        """Replace the loaded state of the schedule by a new schedule over the steps of this run, at step `done`. Return
        the learning rate of the first group before and after."""
        groups = self.optimizer.param_groups
        old = groups[0]["lr"]
        for group in groups:
            group["lr"] = group.pop("initial_lr", group["lr"])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.schedule = self.start_schedule(self.optimizer)
            assert self.schedule is not None  # of another length
            for _ in range(done):
                self.schedule.step()
        return float(old), float(groups[0]["lr"])

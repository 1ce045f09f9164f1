"""With `run.fast=false` every config trains, resumes and is evaluated by plain torch."""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from tests import tiny
from tests.engine.test_resume import lines
from tests.whole_runs import steps, train
from vision_attn.commands import main
from vision_attn.configuration.run_settings import Run
from vision_attn.data.stories.question import QuestionBatch
from vision_attn.engine.fit import fit
from vision_attn.fast import FAST
from vision_attn.results.opening import open_model
from vision_attn.task import Batch, Source, Task


class Same(Source):
    """The batch of a case, twice in each epoch, and for validation."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return 2

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        yield from [self.batch] * (2 - skip)

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> list[Batch]:
        return [self.batch]


def classes(task: Task) -> set[str]:
    return {
        f"{type(part).__module__}.{type(part).__qualname__}".removeprefix("vision_attn.") for part in task.modules()
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in tiny.CASES if case not in tiny.VARIANTS])
def test_every_config_trains_resumes_and_is_evaluated(case: str, tmp_path: Path, monkeypatch) -> None:
    """Each way: an epoch by fast versions, and the next one, resumed, by plain torch."""
    batch, tasks = tiny.made(case).batch, []
    if isinstance(batch, QuestionBatch):  # an answer follows from any fact
        encoder = tiny.made(case).task.encoder
        number = math.prod(encoder.grid) if encoder else batch.facts.shape[1]
        batch = batch._replace(support=torch.ones(len(batch.words), 1, number, dtype=torch.bool))

    def task(source: Source) -> Task:
        tasks.append(tiny.made(case).task)
        tasks[-1].prepare = lambda source: None  # the source has no training data
        tasks[-1].initialise = lambda: None  # nor are there weights of encoders
        monkeypatch.setattr(type(tasks[-1]), "fine_tunes", False)  # and no run to start from
        return tasks[-1]

    judged = tiny.resolved(case).run
    run = partial(Run, folder=str(tmp_path), device="cpu", precision="fp32", warmup=0, log_every=1, show=0,
                  sanity_check=False, metric=judged.metric, mode=judged.mode)  # fmt: skip
    for epochs, fast in ((1, True), (2, False)):
        sgd = partial(torch.optim.SGD, lr=1e-5)
        fit(task=task, data=Same(batch), optimizer=sgd, run=run(epochs=epochs, fast=fast))
    losses = [step["loss"] for step in steps(tmp_path)]
    assert len(losses) == 4 and all(map(math.isfinite, losses))
    validated = [line for line in lines(tmp_path) if any(name.startswith("val/") for name in line)]
    assert len(validated) == 2
    accelerated, plain = map(classes, tasks)
    assert not accelerated & set(FAST) and not plain & {f"fast.{name}" for name in FAST.values()}


def test_a_run_goes_on_by_plain_torch_and_is_then_opened_so(tmp_path: Path) -> None:
    """`run.fast` may change when a run is resumed: to rule out a fast version as the cause of what happened."""
    sizes = {
        "data.batch_size": 4, "data.epoch_images": 8, "data.val_images": 4, "task.encoder.region_size": 8,
        "task.encoder.width": 16, "task.model.hidden_size": 8, "task.model.word_size": 8, "run.warmup": 0,
        "run.device": "cpu", "run.log_every": 1, "run.validate_every": 0, "run.show": 0, "run.folder": tmp_path / "run",
    }  # fmt: skip
    for epochs, fast in ((1, True), (2, False)):
        assert main(train("sat_soft_scenes", **sizes | {"run.epochs": epochs, "run.fast": str(fast).lower()})) == 0
        task = open_model(tmp_path / "run", device="cpu").task
        assert ("fast.models.recurrent.FastShowAttendTell" in classes(task)) == task.model.accelerated == fast
    assert len(steps(tmp_path / "run")) == 4

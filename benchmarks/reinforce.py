"""Measure variance and cost of each REINFORCE estimator of the gradient of hard attention, on one batch of a trained
captioner.

`python -m benchmarks variance` trains a captioner on drawn scenes first; `python -m benchmarks.reinforce RUN` uses the
run in folder RUN.
"""

import statistics
import sys
import tempfile
import time
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.measure import accelerated, table
from benchmarks.shapes import Shapes
from vision_attn.attention.reinforce import Learned, LeaveOneOut, MovingAverage, Reinforce
from vision_attn.commands import main as vision_attn
from vision_attn.configuration.run_folder import open_run
from vision_attn.engine.batches import few
from vision_attn.system.console import progress

CONFIG = Path(__file__).parent.parent / "configs" / "sat_hard_scenes.yaml"


class NoBaseline(nn.Module):
    """The estimator without a baseline: b = 0."""

    num_runs = 1

    def __init__(self, state_size: int):
        super().__init__()

    def forward(self, returns: Tensor, terms: Tensor, choice: object) -> Tensor:
        return torch.zeros_like(returns)


BASELINES = {
    "none": NoBaseline,
    "moving average": MovingAverage,
    "learned": Learned,
    "leave-one-out, 2 runs": partial(LeaveOneOut, num_runs=2),
    "leave-one-out, 4 runs": LeaveOneOut,
}


def variance(shapes: Shapes, repeats: int, run: str | None = None) -> str:
    """The table of variances. Without a trained `run` of hard attention, trains one briefly on drawn scenes."""
    samples, fitting = (2, 2) if shapes.quick else (40, 150)
    with tempfile.TemporaryDirectory() as folder:
        if run is None:
            run = train(Path(folder) / "run", quick=shapes.quick)
        task, source, _ = open_run(run)
        source.prepare(accelerated(task))
    for parameter in task.parameters():
        parameter.requires_grad_(False)
    task.train()
    task.model.attention.expectation_probability = task.model.attention.soft_start = 0
    weights = [weight.requires_grad_() for weight in task.model.score.parameters()]
    batches = [few(batch, 16) for batch in islice(source.train(0, seed=1), 8)]
    rows, reference = [], None
    for credit in ("all", "to go"):
        for name, baseline in BASELINES.items():
            torch.manual_seed(0)
            estimator = Reinforce(task.model.state_size, baseline=baseline, credit=credit, entropy_weight=0.0)
            fit(task, estimator, batches, fitting)
            spread, seconds = measure(task, estimator, batches[0], weights, samples, f"{name}, {credit}")
            reference = reference or (spread, seconds)
            relative, cost = spread / reference[0], seconds / reference[1]
            rows.append((f"{name}, {credit}", f"{relative:.2g}", f"{cost:.2f}", f"{relative * cost:.2g}"))
    title = (
        f"Variance of the gradient of the score's weights over {samples} samples, {len(batches[0].words)} images, of "
        f"{run_name(run)}, with its dropout of {task.model.drop.p} as in training (the runs of a caption share a mask)"
    )
    return table(title, ("baseline, credit", "variance", "time", "variance x time"), rows)


def run_name(run: str | Path) -> str:
    return "a captioner of scenes" if Path(run).name == "run" else str(run)


def train(folder: Path, *, quick: bool) -> Path:
    """Train a captioner of scenes with hard attention for a short time; return its run folder."""
    batches, images = (2, 2) if quick else (900, 32)
    settings = {
        "run.folder": folder,
        "data.batch_size": images,
        "data.epoch_images": images * batches,
        "data.val_images": images,
        "task.model.attention.soft_start": batches // 2,
        "run.epochs": 1,
        "run.warmup": batches // 10,
    }
    if quick:
        settings |= {"task.validate_with": "[]", "run.metric": "nll", "run.mode": "min", "run.show": 0}
    if vision_attn(["train", str(CONFIG), *(f"--{name}={value}" for name, value in settings.items())]):
        raise RuntimeError("the captioner of scenes could not be trained")
    return folder


def loss(task: nn.Module, estimator: Reinforce, batch) -> Tensor:
    """The loss of REINFORCE for one sample of regions."""
    caption = task.model(task.regions(batch.images), batch.words, estimator.num_runs)
    return estimator(caption.choice, caption.log_prob).loss.mean()


def fit(task: nn.Module, estimator: Reinforce, batches: list, steps: int) -> None:
    """Fit a baseline that has a state or parameters to the returns of the captioner, whose weights do not change."""
    weights = list(estimator.parameters())
    if not weights and not list(estimator.buffers()):
        return
    optimizer = torch.optim.Adam(weights, 3e-3) if weights else None
    for step in range(steps if weights else min(steps, 20)):
        value = loss(task, estimator, batches[1 + step % (len(batches) - 1)])
        if optimizer:
            optimizer.zero_grad()
            value.backward()
            optimizer.step()


def measure(
    task: nn.Module, estimator: Reinforce, batch, weights: list[Tensor], samples: int, what: str
) -> tuple[float, float]:
    """The trace of the covariance of the gradient with respect to `weights`, and the seconds of one gradient."""
    gradients, seconds = [], []
    for _ in progress(range(1 + samples), what=what, unit="sample"):
        start = time.perf_counter()
        gradient = torch.autograd.grad(loss(task, estimator, batch), weights)
        seconds.append(time.perf_counter() - start)
        gradients.append(torch.cat([tensor.flatten() for tensor in gradient]))
    return torch.stack(gradients).var(dim=0).sum().item(), statistics.median(seconds[1:])


if __name__ == "__main__":
    print(variance(Shapes(), 3, sys.argv[1]))

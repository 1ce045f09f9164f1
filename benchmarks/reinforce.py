"""How much noise each estimator of the look's gradient carries, and what it costs, on one batch of a real captioner.

`python -m benchmarks variance` trains one on drawn scenes for it; `python -m benchmarks.reinforce RUN` takes a run.
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

from benchmarks.measure import table
from benchmarks.shapes import Shapes
from vision_attn.attention.reinforce import Learned, LeaveOneOut, MovingAverage, Reinforce
from vision_attn.commands import main as vision_attn
from vision_attn.config import open_run
from vision_attn.console import progress
from vision_attn.engine.batches import few

CONFIG = Path(__file__).parent.parent / "configs" / "sat_hard_scenes.yaml"


class Nothing(nn.Module):
    """No baseline."""

    num_runs = 1

    def __init__(self, state_size: int):
        super().__init__()

    def forward(self, returns: Tensor, terms: Tensor, choice: object) -> Tensor:
        return torch.zeros_like(returns)


BASELINES = {
    "none": Nothing,
    "moving average": MovingAverage,
    "learned": Learned,
    "leave one of 2 out": partial(LeaveOneOut, num_runs=2),
    "leave one of 4 out": LeaveOneOut,
}


def variance(shapes: Shapes, repeats: int, run: str | None = None) -> str:
    """The table of variances. Without a trained `run` of hard attention, one on drawn scenes is trained for a while."""
    draws, fitting = (2, 2) if shapes.quick else (40, 150)
    with tempfile.TemporaryDirectory() as folder:
        if run is None:
            run = train(Path(folder) / "run", quick=shapes.quick)
        task, source, _ = open_run(run)
        source.prepare(task)
    for parameter in task.parameters():
        parameter.requires_grad_(False)
    task.train()
    task.model.attention.expected = task.model.attention.soft_start = 0
    weights = [weight.requires_grad_() for weight in task.model.score.parameters()]
    batches = [few(batch, 16) for batch in islice(source.train(0, seed=1), 8)]
    rows, whole = [], None
    for credit in ("all", "to go"):
        for name, baseline in BASELINES.items():
            torch.manual_seed(0)
            estimator = Reinforce(task.model.state_size, baseline=baseline, credit=credit, entropy_weight=0.0)
            fit(task, estimator, batches, fitting)
            spread, seconds = measure(task, estimator, batches[0], weights, draws, f"{name}, {credit}")
            whole = whole or (spread, seconds)
            relative, cost = spread / whole[0], seconds / whole[1]
            rows.append((f"{name}, {credit}", f"{relative:.3f}", f"{cost:.2f}", f"{relative * cost:.3f}"))
    title = (
        f"Variance of the look's gradient over {draws} draws, {len(batches[0].words)} images, of {run_name(run)}, "
        f"with its dropout of {task.model.dropout} as in training (the runs of a caption share a mask)"
    )
    return table(title, ("baseline, rewards that count", "variance", "time", "variance x time"), rows)


def run_name(run: str | Path) -> str:
    return "a captioner of scenes" if Path(run).name == "run" else str(run)


def train(folder: Path, *, quick: bool) -> Path:
    """A captioner of scenes with hard attention, some way into its training."""
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
    """REINFORCE's loss on one set of draws."""
    caption = task.model(task.regions(batch.images), batch.words, estimator.num_runs)
    return estimator(caption.choice, caption.log_prob).loss.mean()


def fit(task: nn.Module, estimator: Reinforce, batches: list, steps: int) -> None:
    """Let a baseline that remembers or learns get to know the returns of the captioner as it stands."""
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
    task: nn.Module, estimator: Reinforce, batch, weights: list[Tensor], draws: int, what: str
) -> tuple[float, float]:
    """The trace of the covariance of the gradient with regard to `weights`, and the seconds of one gradient."""
    gradients, seconds = [], []
    for _ in progress(range(1 + draws), what=what, unit="draw"):
        began = time.perf_counter()
        found = torch.autograd.grad(loss(task, estimator, batch), weights)
        seconds.append(time.perf_counter() - began)
        gradients.append(torch.cat([part.flatten() for part in found]))
    return torch.stack(gradients).var(dim=0).sum().item(), statistics.median(seconds[1:])


if __name__ == "__main__":
    print(variance(Shapes(), 3, sys.argv[1]))

"""Measure training of Show, Attend and Tell: captions per second and peak memory of a step (forward, backward, Adam),
as runs have it and by plain torch."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.measure import MiB, accelerated, peak_memory, precisions, seconds, table
from benchmarks.shapes import Shapes, random_batch
from vision_attn.attention.hard import Hard
from vision_attn.attention.reinforce import MovingAverage, Reinforce
from vision_attn.attention.scores import Additive
from vision_attn.attention.soft import Soft, doubly_stochastic
from vision_attn.models.show_attend_tell import ShowAttendTell

Step = Callable[[], torch.Tensor]
"""One optimiser step, always on the same batch; returns the loss."""


class Side(NamedTuple):
    """One side of a comparison, ready to train. `loss()` computes the loss of the batch that it was built with."""

    model: nn.Module
    loss: Callable[[], torch.Tensor]


def ours(shapes: Shapes, device: str = "cpu", attention: type[nn.Module] = Soft, *, fast: bool = True) -> Side:
    """Our captioner with the loss of its task: negative log-likelihood, doubly stochastic penalty and REINFORCE.
    fast: as `run.fast`."""
    torch.manual_seed(0)
    regions, words = random_batch(shapes).to(device)
    score = partial(Additive, attention_size=shapes.attention)
    sizes = {"hidden_size": shapes.hidden, "word_size": shapes.word, "score": score, "attention": attention}
    model = ShowAttendTell(shapes.vocabulary, shapes.region_size, **sizes).to(device)
    model = accelerated(model) if fast else model
    reinforce = Reinforce(shapes.hidden, baseline=MovingAverage).to(device)
    return Side(model, captioning_loss(model, reinforce, regions, words))


def captioning_loss(
    model: nn.Module, reinforce: Reinforce, regions: torch.Tensor, words: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """The loss of a captioner's task on a batch."""
    captions = words[..., 0].numel()

    def loss() -> torch.Tensor:
        caption = model(regions, words)
        total = doubly_stochastic(caption.alpha).sum() - caption.log_prob.sum()
        if caption.choice is not None:
            total = total + reinforce(caption.choice, caption.log_prob).loss.sum()
        return total / captions

    return loss


def hard(shapes: Shapes, device: str = "cpu") -> Side:
    """`ours` with hard attention, which samples one region for each word of half of the images."""
    return ours(shapes, device, Hard)


def plain(shapes: Shapes, device: str = "cpu") -> Side:
    """`ours` by plain torch, as the paper has it and `run.fast=false` runs it."""
    return ours(shapes, device, fast=False)


SIDES = {"ours": ours, "hard": hard, "plain": plain}


def training_step(side: Side, bf16: bool = False, **adam: bool) -> Step:
    optimizer = torch.optim.Adam(side.model.parameters(), lr=4e-4, **adam)
    device = next(side.model.parameters()).device.type

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = side.loss()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def train(shapes: Shapes, side: str, bf16: bool) -> None:
    """Two steps, because Adam's moments exist from the second on. Run to measure memory."""
    step = training_step(SIDES[side](shapes), bf16)
    for _ in range(2):
        step()


def training(shapes: Shapes, repeats: int) -> str:
    """The table of training speed and memory, on the CPU."""
    coco = shapes._replace(lengths="COCO's lengths")
    rows = [
        _speed("captions/s", shapes, "plain", False, repeats),
        _speed("captions/s, COCO's lengths", coco, "plain", False, repeats),
        _memory("peak memory, MiB", shapes, "plain", False),
    ]
    if "bf16" in precisions():
        rows.append(_speed("captions/s, bf16 autocast", shapes, "plain", True, repeats))
        rows.append(_memory("peak memory, MiB, bf16 autocast", shapes, "plain", True))
    title = f"Training step, {shapes.images} images x {shapes.rows} captions of {shapes.lengths}"
    return table(title, ("", "ours", "plain", "ratio"), rows)


def hard_training(shapes: Shapes, repeats: int) -> str:
    """The table of the training speed of hard and of soft attention."""
    rows = []
    for precision in precisions():
        what = f"captions/s, {precision}"
        steps = {name: training_step(SIDES[name](shapes), precision == "bf16") for name in ("hard", "ours")}
        rate = {name: shapes.captions / taken for name, taken in seconds(steps, repeats, what).items()}
        rows.append((what, f"{rate['hard']:.1f}", f"{rate['ours']:.1f}", f"{rate['ours'] / rate['hard']:.3f}"))
    title = f"Training step, {shapes.images} images x {shapes.rows} captions of {shapes.lengths}"
    return table(title, ("", "hard", "soft", "time, hard to soft"), rows)


def _speed(what: str, shapes: Shapes, other: str, bf16: bool, repeats: int) -> tuple[str, ...]:
    steps = {name: training_step(SIDES[name](shapes), bf16) for name in ("ours", other)}
    rate = {name: shapes.captions / taken for name, taken in seconds(steps, repeats, what).items()}
    return what, f"{rate['ours']:.1f}", f"{rate[other]:.1f}", f"{rate['ours'] / rate[other]:.1f}x"


def _memory(what: str, shapes: Shapes, other: str, bf16: bool) -> tuple[str, ...]:
    target = "benchmarks.show_attend_tell:train"
    our_peak, other_peak = (peak_memory(target, shapes, side, bf16) / MiB for side in ("ours", other))
    return what, f"{our_peak:.0f}", f"{other_peak:.0f}", f"1/{other_peak / our_peak:.1f}"

"""Measure training of RAM: images per second of a step (forward, backward, Adam), as runs have it and by plain
torch."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.glimpse import GLIMPSES, SETTINGS, Setting
from benchmarks.measure import seconds, several, table
from benchmarks.products import products
from benchmarks.shapes import Shapes
from vision_attn.attention.glimpse import Retina
from vision_attn.attention.reinforce import Learned, Reinforce
from vision_attn.engine.optimizers import with_fused_kernels
from vision_attn.fast import accelerate
from vision_attn.models.policies import Gaussian
from vision_attn.models.ram import RAM
from vision_attn.task import Source
from vision_attn.tasks.classify import Classification


class Images(Source):
    """A source with only the attributes that a classifier is constructed from: image shape and number of classes."""

    num_classes = 10

    def __init__(self, canvas: int):
        self.image_shape = (1, canvas, canvas)


def ours(setting: Setting, *, compile: bool = False, fast: bool = True) -> Callable[[Tensor, Tensor], Tensor]:
    """Our task, without the refinements of the configs. fast: as `run.fast`."""
    task = Classification(
        Images(setting.canvas),
        model=partial(
            RAM,
            num_glimpses=GLIMPSES,
            retina=partial(Retina, size=setting.size, num_scales=setting.num_scales),
            policy=partial(Gaussian, hidden_size=None),
        ),
        reinforce=partial(Reinforce, baseline=partial(Learned, hidden_size=None)),
    )
    if fast:
        accelerate(task)
    if compile:
        task.compile()
    optimizer = with_fused_kernels(torch.optim.Adam(task.parameters()))

    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        value = task(images, labels)["loss"]
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def ram(shapes: Shapes, repeats: int, *, compile: bool = False) -> str:
    """The table of images per second. A batch has twice `shapes.images` images, 128 by default. The last column is what
    the ratio would be if our step were its matrix products and nothing else."""
    batch, times, rows = 2 * shapes.images, shapes.times(10), []
    for setting in shapes.some(SETTINGS):
        torch.manual_seed(0)
        images, labels = torch.rand(batch, 1, setting.canvas, setting.canvas), torch.randint(10, (batch,))
        steps = {"ours": ours(setting, compile=compile), "plain": ours(setting, fast=False)}
        runs: dict[str, Callable[[], object]] = {name: partial(step, images, labels) for name, step in steps.items()}
        runs["products"] = products(partial(ours(setting), images, labels))
        taken = seconds({name: several(run, times) for name, run in runs.items()}, repeats, str(setting))
        rate = (f"{times * batch / taken[name]:.0f}" for name in steps)
        ratios = (f"{taken['plain'] / taken[name]:.1f}x" for name in ("ours", "products"))
        rows.append((str(setting), *rate, *ratios))
    title = f"Training RAM, {GLIMPSES} glimpses, batches of {batch}, images/s" + ", ours compiled" * compile
    return table(title, ("", "ours", "plain", "ratio", "its products alone"), rows)

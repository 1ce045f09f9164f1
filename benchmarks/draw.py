"""Measure training steps of DRAW and of DRAW's classifier, as runs have them and by plain torch, and the share of the
filterbank."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import accelerated, seconds, table
from benchmarks.products import products
from benchmarks.shapes import Shapes
from vision_attn.engine.optimizers import with_fused_kernels
from vision_attn.fast import accelerate
from vision_attn.models.draw import DRAW, DRAWReader, ReadPatch, WritePatch

SIDE, NUM_STEPS, LATENT = 28, 10, 100
SIZES = ((5, 5), (2, 5))
"""Widths of the read and write patches: typical of replications, and the paper's."""
CANVASES, GLIMPSES, SIZE = (60, 100), 8, 12
"""Sizes of the classifier: widths of images, number of glimpses, width of a glimpse."""
TIMES = 5
"""The number of optimiser steps in one measurement."""


def draw(shapes: Shapes, repeats: int, *, compile: bool = False) -> str:
    """The table of milliseconds per training step. A batch has twice `shapes.images` images, 128 by default. "Products
    alone" is the ratio if our step were its matrix products and nothing else."""
    batch = 2 * shapes.images
    rows = [compare(read, write, shapes, repeats, compile) for read, write in shapes.some(SIZES)]
    note = ", ours compiled" * compile
    sizes = f"{batch} images of {SIDE}x{SIDE}, {NUM_STEPS} time steps, LSTMs of 256"
    title = f"A training step of DRAW, {sizes}, Adam included, ms{note}"
    drawing = table(title, ("reads, writes", "ours", "plain", "to plain", "products alone", "bounds differ by"), rows)
    sizes = f"{batch} images, {GLIMPSES} glimpses of {SIZE}x{SIZE}"
    title = f"A training step of DRAW's classifier, {sizes}, Adam included{note}"
    columns = ("", "step, ms", "images/s", "filterbank alone, eager, ms", "its share")
    return (
        drawing
        + "\n"
        + table(title, columns, [reader(canvas, shapes, repeats, compile) for canvas in shapes.some(CANVASES)])
    )


def compare(read: int, write: int, shapes: Shapes, repeats: int, compile: bool) -> tuple[str, ...]:
    """A row of the table. Both models have the same weights when their bounds are compared."""
    batch, times = 2 * shapes.images, shapes.times(TIMES)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 1, SIDE, SIDE, generator=generator).round()
    noise = torch.randn(NUM_STEPS, batch, 1, LATENT, generator=generator)
    patches = {"read": partial(ReadPatch, size=read), "write": partial(WritePatch, size=write)}
    ours, plain = (DRAW((1, SIDE, SIDE), num_steps=NUM_STEPS, latent_size=LATENT, **patches) for _ in range(2))
    plain.load_state_dict(ours.state_dict())
    accelerate(ours)

    def bound(model: DRAW, noise: Tensor | None = None) -> Tensor:
        drawing = model(images, noise)
        return (drawing.kl.sum(dim=1) - drawing.log_prob).mean()

    with torch.no_grad():
        error = (bound(ours, noise) - bound(plain, noise)).abs().item()
    alone = products(step(adam(ours), partial(bound, ours), times))
    if compile:
        ours.compile()
    models = {"ours": ours, "plain": plain}
    steps = {
        name: step(with_fused_kernels(adam(model)), partial(bound, model), times) for name, model in models.items()
    }
    taken = seconds({**steps, "products": alone}, repeats, f"reads {read}x{read}, writes {write}x{write}")
    ms = (f"{1000 * taken[name] / times:.1f}" for name in steps)
    ratios = (f"{taken['plain'] / taken[name]:.2f}x" for name in ("ours", "products"))
    return f"{read}x{read}, {write}x{write}", *ms, *ratios, f"{error:.0e}"


def reader(canvas: int, shapes: Shapes, repeats: int, compile: bool) -> tuple[str, ...]:
    """A row of the classifier's table. The filterbank alone computes the same number of windows and reads, forward and
    backward."""
    batch, times = 2 * shapes.images, shapes.times(TIMES)
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(batch, 1, canvas, canvas, generator=generator), torch.randint(10, (batch,))
    model = accelerated(DRAWReader((1, canvas, canvas), 10, num_glimpses=GLIMPSES, size=SIZE))
    if compile:
        model.compile()
    states = torch.randn(GLIMPSES, batch, 1, model.hidden_size, generator=generator).requires_grad_()

    def loss() -> Tensor:
        return functional.nll_loss(model(images).log_prob[:, 0, -1], labels)

    def read() -> None:
        for _ in range(times):
            bank = model.filterbank
            sum(bank.read(images, bank.window(state)).square().sum() for state in states).backward()

    taken = seconds(
        {"step": step(with_fused_kernels(adam(model)), loss, times), "read": read},
        repeats,
        f"reads of {canvas}x{canvas}",
    )
    whole, bank = (1000 * taken[name] / times for name in ("step", "read"))
    rate, share = f"{1000 * batch / whole:.0f}", f"{bank / whole:.0%}"
    return f"{canvas}x{canvas}", f"{whole:.1f}", rate, f"{bank:.1f}", share


def adam(model: torch.nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=1e-4)


def step(optimizer: torch.optim.Optimizer, bound: Callable[[], Tensor], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            optimizer.zero_grad()
            bound().backward()
            optimizer.step()

    return run

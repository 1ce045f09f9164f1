"""DRAW's training step: ours, and a plain reference that builds its constants anew in every turn."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import seconds, table
from benchmarks.plain_draw import PlainDRAW
from benchmarks.shapes import Shapes
from vision_attn.engine.step import fused
from vision_attn.models.draw import DRAW, ReadPatch, WritePatch

SIDE, TURNS, LATENT = 28, 10, 100
SIZES = ((5, 5), (2, 5))
"""Of what is read and written: the middle of what replications use, and the paper's."""
TIMES = 5
"""Steps in one measurement."""


def draw(shapes: Shapes, repeats: int) -> str:
    """The table of milliseconds per step. A batch is two of `shapes.images`: 128 where nothing else is asked for."""
    batch = 2 * shapes.images
    rows = [compare(read, write, batch, repeats) for read, write in SIZES]
    title = f"A step of DRAW at {batch} images of {SIDE}x{SIDE}, {TURNS} turns, LSTMs of 256, Adam included, ms"
    return table(title, ("reads, writes", "ours", "plain", "to plain", "bounds differ by"), rows)


def compare(read: int, write: int, batch: int, repeats: int) -> tuple[str, ...]:
    """A row of the table. Both have the same weights when their bounds are compared."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 1, SIDE, SIDE, generator=generator).round()
    noise = torch.randn(TURNS, batch, 1, LATENT, generator=generator)
    plain = PlainDRAW(SIDE, TURNS, latent=LATENT, read=read, write=write)
    parts = {"read": partial(ReadPatch, size=read), "write": partial(WritePatch, size=write)}
    ours = DRAW((1, SIDE, SIDE), num_turns=TURNS, latent_size=LATENT, **parts)
    copy(ours, plain)

    def bound(noise: Tensor | None = None) -> Tensor:
        drawing = ours(images, noise)
        return (drawing.kl.sum(dim=1) - drawing.log_prob).mean()

    with torch.no_grad():
        apart = (bound(noise) - plain(images.flatten(1), noise.squeeze(2))).abs().item()
    steps = {"ours": step(fused(adam(ours)), bound), "plain": step(adam(plain), partial(plain, images.flatten(1)))}
    taken = seconds(steps, repeats, f"reads {read}x{read}, writes {write}x{write}")
    ms = {name: 1000 * spent / TIMES for name, spent in taken.items()}
    ratio = f"{ms['plain'] / ms['ours']:.2f}x"
    return f"{read}x{read}, {write}x{write}", f"{ms['ours']:.1f}", f"{ms['plain']:.1f}", ratio, f"{apart:.0e}"


def adam(model: torch.nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=1e-4)


def step(optimizer: torch.optim.Optimizer, bound: Callable[[], Tensor]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(TIMES):
            optimizer.zero_grad()
            bound().backward()
            optimizer.step()

    return run


@torch.no_grad()
def copy(ours: DRAW, plain: PlainDRAW) -> None:
    """Give `plain` our weights. Its LSTMs order their gates as enter, forget, candidate, leave."""
    for gates, cell in ((ours.encoder, plain.encoder), (ours.decoder, plain.decoder)):
        enter, forget, leave, candidate = torch.cat([gates.weight, gates.bias[:, None]], dim=1).chunk(4)
        rows = torch.cat([enter, forget, candidate, leave])
        cell.weight_ih.copy_(rows[:, : cell.input_size])
        cell.weight_hh.copy_(rows[:, cell.input_size : -1])
        cell.bias_ih.copy_(rows[:, -1])
        cell.bias_hh.zero_()
    for layer, start in ((plain.mean, 0), (plain.log_sigma, LATENT)):
        layer.weight.copy_(ours.latent.weight[start : start + LATENT])
        layer.bias.copy_(ours.latent.bias[start : start + LATENT])
    plain.read_parameters.load_state_dict(ours.read.filterbank.numbers.state_dict())
    plain.write_parameters.load_state_dict(ours.write.filterbank.numbers.state_dict())
    plain.patch.load_state_dict(ours.write.patch.state_dict())

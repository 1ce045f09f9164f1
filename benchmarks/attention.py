"""The additive score alone: fast, by plain torch (autograd stores every tanh), and by plain torch checkpointed."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.measure import MiB, accelerated, peak_memory, seconds, table
from benchmarks.shapes import Shapes
from vision_attn.attention.location import ContentLocation, Location
from vision_attn.attention.scores import Additive, Cosine, Dot, General, ScaledDot
from vision_attn.fast.additive import FastAdditive

NUM_WORDS = 16
"""The number of words whose memory is measured together."""


class Checkpointed(Additive):
    """The plain score, recomputed in the backward pass instead of stored."""

    def forward(self, query: Tensor, keys: Tensor) -> tuple[Tensor, None]:
        return checkpoint(super().forward, query, keys, use_reentrant=False)


WAYS = {"ours": FastAdditive, "direct": Additive, "checkpointed": Checkpointed}


def build(way: str, shapes: Shapes) -> tuple[nn.Module, Tensor, Tensor]:
    """A score, with the same weights in every `way`, and random regions and queries."""
    torch.manual_seed(0)
    regions = torch.randn(shapes.images, shapes.regions, shapes.region_size)
    query = torch.randn(shapes.images, shapes.rows, shapes.hidden).tanh_().requires_grad_()
    weights = Additive(shapes.region_size, shapes.hidden, attention_size=shapes.attention).state_dict()
    score = WAYS[way](shapes.region_size, shapes.hidden, attention_size=shapes.attention)
    score.load_state_dict(weights)
    return score, regions, query


def train_words(shapes: Shapes, way: str, number: int = NUM_WORDS) -> None:
    """Score `number` words, then run one backward pass. Run to measure memory."""
    score, regions, query = build(way, shapes)
    keys = score.project(regions)
    sum(score(query, keys)[0].square().sum() for _ in range(number)).backward()


def attention(shapes: Shapes, repeats: int) -> str:
    """The table of time and memory of the score, and of the largest difference between the results."""
    built = {way: build(way, shapes) for way in WAYS}
    keys = {way: score.project(regions).detach().requires_grad_() for way, (score, regions, _) in built.items()}

    def forward(way: str) -> Callable[[], Tensor]:
        score, _, query = built[way]
        return torch.no_grad()(lambda: score(query, keys[way])[0])

    def both(way: str) -> Callable[[], None]:
        score, _, query = built[way]
        return lambda: score(query, keys[way])[0].square().sum().backward()

    rows = []
    for what, run in (("forward, ms", forward), ("forward and backward, ms", both)):
        taken = seconds({way: run(way) for way in WAYS}, repeats, what)
        rows.append((what, *(f"{1000 * taken[way]:.1f}" for way in WAYS), f"{taken['direct'] / taken['ours']:.1f}x"))
    peaks = {way: peak_memory("benchmarks.attention:train_words", shapes, way) / MiB for way in WAYS}
    ratio = f"1/{peaks['direct'] / peaks['ours']:.1f}"
    rows.append((f"peak memory of {NUM_WORDS} words, MiB", *(f"{peaks[way]:.0f}" for way in WAYS), ratio))
    error = (forward("ours")() - forward("direct")()).abs().max().item()
    title = f"Additive score of one word, {shapes.images} images x {shapes.rows} rows (results differ by {error:.0e})"
    return table(title, ("", *WAYS, "ours to direct"), rows)


def scores(shapes: Shapes, repeats: int) -> str:
    """The table of the time of one word with each score: microseconds of forward and backward, softmax included."""
    torch.manual_seed(0)
    regions = torch.randn(shapes.images, shapes.regions, shapes.region_size)
    query = torch.randn(shapes.images, shapes.rows, shapes.hidden).tanh_().requires_grad_()
    previous = torch.rand(shapes.images, shapes.rows, shapes.regions).softmax(dim=-1)
    side = int(shapes.regions**0.5)
    scores = {
        "additive": partial(Additive, attention_size=shapes.attention),
        "general": General,
        "dot": Dot,
        "scaled dot": ScaledDot,
        "cosine": Cosine,
        "location": partial(Location, num_regions=shapes.regions),
        "content and location": partial(ContentLocation, attention_size=shapes.attention, grid=(side, side)),
    }

    def word(make: Callable[[int, int], nn.Module]) -> Callable[[], None]:
        score = accelerated(make(shapes.region_size, shapes.hidden))
        keys = score.project(regions).detach().requires_grad_()
        return lambda: score(query, keys, previous)[0].softmax(dim=-1).square().sum().backward()

    taken = seconds({name: word(make) for name, make in scores.items()}, repeats, "one word, forward and backward")
    rows = [(name, f"{1e6 * time:.0f}", f"{time / taken['additive']:.2f}") for name, time in taken.items()]
    return table(f"Scores of one word, {shapes.images} images x {shapes.rows} rows", ("", "us", "to additive"), rows)

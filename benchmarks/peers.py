"""Compare training and decoding of Show, Attend and Tell with the designs of the captioning code that is used most.

All sides have the same sizes, images and words, and run in one process in which freed memory is kept, as our engine
does (`system/memory.py`); Adam runs in one kernel on our side, as in our engine. The sides are:

- "attention into the input": `benchmarks/input_attention.py`, which says what it lacks.
- "tutorial": `benchmarks/tutorial.py`, which is the most used tutorial's design: captions sorted by length, a batch
  that shrinks, the projection of regions and the vocabulary layer inside the loop over words, a gate per channel, a
  packed loss with the doubly stochastic term. It lacks the deep output (eq. 7) and the MLPs of the initial state.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.decoding import BEAMS, Ending, random_ends
from benchmarks.input_attention import InputAttention, best_of_sorted, input_attention_loss, repeated_beam_search
from benchmarks.measure import PRECISIONS, MiB, peak_memory, precisions, seconds, table
from benchmarks.shapes import Batch, Shapes, random_batch
from benchmarks.show_attend_tell import Side, Step, ours, training_step
from benchmarks.tutorial import TutorialCaptioner, tutorial_batch, tutorial_loss
from vision_attn.decode import beam_search, greedy
from vision_attn.fast.linear import FastLinear, constant_weights

PRODUCTS = 4
"""The number of matrix products that are timed together."""


def attention_into_the_input(shapes: Shapes, device: str = "cpu") -> Side:
    torch.manual_seed(0)
    batch = Batch(*random_batch(shapes).to(device))
    model = InputAttention(shapes).to(device)
    return Side(model, lambda: input_attention_loss(model, batch))


def tutorial(shapes: Shapes, device: str = "cpu") -> Side:
    torch.manual_seed(0)
    batch = tutorial_batch(Batch(*random_batch(shapes).to(device)))
    model = TutorialCaptioner(shapes).to(device)
    return Side(model, lambda: tutorial_loss(model, *batch))


SIDES: dict[str, Callable[[Shapes], Side]] = {
    "ours": ours,
    "attention into the input": attention_into_the_input,
    "tutorial": tutorial,
}


def peer_step(shapes: Shapes, side: str, bf16: bool) -> Step:
    return training_step(SIDES[side](shapes), bf16, **{"fused": True} if side == "ours" else {})


def train(shapes: Shapes, side: str, bf16: bool) -> None:
    """Two steps, because Adam's moments exist from the second on. Run to measure memory."""
    step = peer_step(shapes, side, bf16)
    for _ in range(2):
        step()


def peers(shapes: Shapes, repeats: int) -> str:
    """The tables of training and of decoding."""
    return training(shapes, repeats) + "\n" + decoding(shapes, repeats)


def training(shapes: Shapes, repeats: int) -> str:
    """The table of speed and memory. The share is that of our step's nominal operations in what this machine could
    multiply in the same time."""
    words = int((random_batch(shapes).words > 0).sum())
    nominal = operations(shapes, words)
    rows, rates = [], []
    for name in precisions():
        taken, rate = timed(shapes, words, name, repeats)
        fastest = min(spent for side, spent in taken.items() if side != "ours")
        speed = (f"{shapes.captions / spent:.1f}" for spent in taken.values())
        share = f"{nominal / taken['ours'] / rate:.1%}"
        rows.append((f"captions/s, {name}", *speed, f"{fastest / taken['ours']:.1f}x", share))
        rates.append(f"{rate / 1e9:.0f} GFLOP/s in {name}")
    for name, dtype in precisions().items():
        bf16 = dtype == torch.bfloat16
        peak = {side: peak_memory("benchmarks.peers:train", shapes, side, bf16) / MiB for side in SIDES}
        least = min(size for side, size in peak.items() if side != "ours")
        sizes = (f"{size:.0f}" for size in peak.values())
        rows.append((f"peak memory, MiB, {name}", *sizes, f"1/{least / peak['ours']:.1f}", "-"))
    title = (
        f"Training step, {shapes.images} images x {shapes.rows} captions of {shapes.lengths}; our step has "
        f"{nominal / 1e9:.3g} GFLOP of matrix products, and this machine multiplies matrices at {' and '.join(rates)}"
    )
    return table(title, ("", *SIDES, "ours to the best peer", "share of the matrix rate"), rows)


def timed(shapes: Shapes, words: int, precision: str, repeats: int) -> tuple[dict[str, float], float]:
    """Seconds of a step of each side, and the operations per second of matrix products, measured between the steps."""
    dtype = PRECISIONS[precision]
    steps = {side: peer_step(shapes, side, dtype == torch.bfloat16) for side in SIDES}
    ways = products(shapes, words, dtype)
    taken = seconds({**steps, **ways}, repeats, f"captions/s, {precision}")
    fastest = min(taken[way] for way in ways)
    nominal = 2 * PRODUCTS * words * shapes.word * shapes.vocabulary
    return {side: taken[side] for side in SIDES}, nominal / fastest


def products(shapes: Shapes, words: int, dtype: torch.dtype) -> dict[str, Callable[[], None]]:
    """Ways to compute a few matrix products of the vocabulary layer's size: `F.linear`, a product into a given buffer,
    and our linear layer, which may call another library."""
    x = torch.randn(words, shapes.word).to(dtype)
    layer = FastLinear(shapes.word, shapes.vocabulary, bias=False).to(dtype)
    weight, buffer = layer.weight.detach(), torch.empty(words, shapes.vocabulary, dtype=dtype)

    def several(product: Callable[[], Tensor]) -> None:
        with torch.no_grad():
            for _ in range(PRODUCTS):
                product()

    ways = {
        "linear": lambda: functional.linear(x, weight),
        "matrix product": lambda: torch.mm(x, weight.T, out=buffer),
        "our linear layer": lambda: layer(x),
    }
    return {name: partial(several, way) for name, way in ways.items()}


def operations(shapes: Shapes, words: int) -> float:
    """Nominal operations of the matrix products in our training step, forward and backward: no padding, and no
    products that are computed again. The additive score counts nothing: it is computed without products.

    A layer has three products: its output, the gradient of its weights, and the gradient of its input. Annotation
    vectors need no gradient, so the layers and the mixture that read them have two.
    """
    D, H, A, E, V = shapes.region_size, shapes.hidden, shapes.attention, shapes.word, shapes.vocabulary
    lstm, deep = 4 * H * (E + H + D), E * (H + D)
    word = 3 * (lstm + deep + A * H + H + E * V) + 2 * shapes.regions * D  # A * H: query; H: gate
    image = 2 * shapes.regions * D * A + 2 * (2 * D * H + 3 * H * H)  # keys; h_0 and c_0
    return 2.0 * (words * word + shapes.images * image)


def decoding(shapes: Shapes, repeats: int) -> str:
    """The table of decoding speed. Ends of captions are forced, and weights constant, as in `benchmarks.decoding`."""
    regions, ends = random_batch(shapes).regions, random_ends(shapes)
    most = ends.shape[1]
    mine = Ending(ours(shapes).model.eval(), ends)
    search = partial(repeated_beam_search, InputAttention(shapes).eval(), regions, max_words=most, ends=ends)
    runs = {
        "our beam": partial(beam_search, mine, regions, beams=BEAMS, max_words=most),
        "beam": partial(search, beams=BEAMS),
        "sorting beam": partial(search, beams=BEAMS, best_of=best_of_sorted),
        "our greedy": partial(greedy, mine, regions, max_words=most),
        "greedy": partial(search, beams=1),
    }
    compared = {
        f"beam {BEAMS}": ("our beam", "beam"),
        f"beam {BEAMS}, theirs sorts all candidates": ("our beam", "sorting beam"),
        "greedy": ("our greedy", "greedy"),
    }
    rows = []
    for name, dtype in precisions().items():
        with constant_weights(mine), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            taken = seconds(runs, repeats, f"decoding, {name}")
        for what, (us, them) in compared.items():
            speed = (f"{shapes.images / taken[side]:.1f}" for side in (us, them))
            rows.append((f"{what}, {name}", *speed, f"{taken[them] / taken[us]:.1f}x"))
    title = f"Decoding {shapes.images} images, {shapes.lengths}, images/s"
    return table(title, ("", "ours", "repeats annotation vectors", "ratio"), rows)

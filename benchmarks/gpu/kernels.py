"""Count the kernels that a training step and a search launch on a GPU, without a GPU (`fake_gpu`).

`python -m benchmarks kernels`. In a captured step, launches cost nothing, and the step takes as long as its
kernels. On an H200, most kernels take one to five microseconds, whatever they compute.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.decoding import BEAMS, Ending, random_ends
from benchmarks.fake_gpu import fake_gpu, launches, like, moved
from benchmarks.gpu.cases import CONFIGS, tiny_task, transformer
from benchmarks.measure import accelerated, table
from benchmarks.shapes import Shapes, random_batch
from benchmarks.show_attend_tell import captioning_loss, hard, ours
from vision_attn.attention.reinforce import MovingAverage, Reinforce
from vision_attn.configuration.config import build, read
from vision_attn.decode.beams import Beam
from vision_attn.decode.captured_search import Search
from vision_attn.decode.one_by_one import LikeliestWord
from vision_attn.decode.rules import Rules
from vision_attn.fast.cast import HeldCasts

DIGITS = {
    "RAM 28": ("ram_mnist28", 256),
    "RAM 60": ("ram_cluttered60", 256),
    "reader 100": ("draw_reader_cluttered100", 128),
    "DRAW 10": ("draw_mnist_small", 128),
}
CAPTIONERS = {"SAT soft": ours, "SAT hard": hard, "Transformer": transformer}


def kernels(shapes: Shapes, repeats: int = 1) -> str:
    """The table of kernels of a captured step."""
    rows = [(name, f"{sum(counted.values())}", _most(counted)) for name, counted in cases(shapes)]
    return table("Kernels of a captured step in bf16, not compiled", ("", "kernels", "most of them"), rows)


def cases(shapes: Shapes) -> Iterator[tuple[str, Counter[str]]]:
    """The name and the kernels of each case, by operation."""
    for name, make in shapes.some(list(CAPTIONERS.items())):
        yield name, _captioner(shapes, make)
    for name, (config, batch) in shapes.some(list(DIGITS.items())):
        yield name, _digits(config, 4 if shapes.quick else batch, shapes.quick)
    sizes = shapes if shapes.quick else shapes._replace(images=8 * shapes.images)
    for name, beams in shapes.some(((f"beam {BEAMS}", BEAMS), ("greedy", 1))):
        yield f"{name}, {sizes.images} images", _decoding(sizes, beams)


def _captioner(shapes: Shapes, make: Callable) -> Counter[str]:
    model, batch = make(shapes, "cpu").model, random_batch(shapes)
    with fake_gpu():
        regions, words = (like(tensor) for tensor in batch)
        reinforce = moved(Reinforce(shapes.hidden, baseline=MovingAverage))
        loss = captioning_loss(moved(model), reinforce, regions, words)
        return _step(model, loss, shapes.quick)


def _digits(config: str, batch: int, quick: bool) -> Counter[str]:
    built = build(read(CONFIGS / f"{config}.yaml", tiny_task(config) if quick else []))
    task = accelerated(built["task"](built["data"]))
    with fake_gpu():
        images = torch.empty(batch, *built["data"].image_shape, device="cuda")
        labels = torch.empty(batch, dtype=torch.long, device="cuda")
        moved(task)
        return _step(task, lambda: task(images, labels)["loss"], quick)


def _step(model: nn.Module, loss: Callable[[], Tensor], quick: bool) -> Counter[str]:
    """Count the second step, since Adam's moments exist from then on."""
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4, fused=True, capturable=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            value = loss()
        value.backward()
        optimizer.step()

    first = launches(step)
    return first if quick else launches(step)


def _decoding(shapes: Shapes, beams: int) -> Counter[str]:
    model, ends, regions = ours(shapes).model.eval(), random_ends(shapes), random_batch(shapes).regions
    with fake_gpu():
        ending, regions, words = Ending(moved(model), like(ends)), like(regions), ends.shape[1]

        casts = HeldCasts(ending, torch.bfloat16)
        rules = Rules(ending, regions.device, max_words=words, never=(), min_words=0, no_repeat=0)
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            selector = LikeliestWord() if beams == 1 else Beam(beams, diversity=0.0, groups=1)
            search = Search(ending, *ending.start(regions, beams), rules, selector)

        def replayed() -> object:
            """Record a search as `decode.replay` does after the first searches of a shape."""
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                search.start(*ending.start(regions, beams))
                casts.renew()
                with casts.in_use():
                    number = search.run(partial(search.advance, ending), whole=True)
                return search.decoded(number)

        return launches(replayed)


def _most(counted: Counter[str]) -> str:
    return ", ".join(f"{name.removeprefix('aten::')} {number}" for name, number in counted.most_common(6))

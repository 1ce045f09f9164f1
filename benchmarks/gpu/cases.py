"""The cases that are timed on a GPU: training steps of captioners, RAM and DRAW, decoding, and encoders.

A case is built for a device and returns `Work`s by name. It runs on a CPU too, with a plain call in place of a captured
graph.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.decoding import BEAMS, Ending, random_ends
from benchmarks.encoders import kinds
from benchmarks.measure import accelerated
from benchmarks.shapes import Shapes, random_batch
from benchmarks.show_attend_tell import Side, Step, hard, ours, plain, training_step
from vision_attn.configuration.config import build, read
from vision_attn.decode import beam_search, greedy
from vision_attn.fast.graphs import without_graphs
from vision_attn.models.transformer import Transformer

CONFIGS = Path(__file__).parent.parent.parent / "configs"
ADAM = 40
"""The least number of bytes that a step with Adam moves for each float32 weight: read in the forward and the backward
pass, gradient written; then weight, gradient and two moments read, and weight and moments written."""
TASKS = {
    "ram": ["model.num_glimpses=2", "model.core.hidden_size=8"],
    "draw_reader": ["model.num_glimpses=2", "model.hidden_size=8", "model.size=4"],
    "draw_mnist": ["model.num_steps=2", "model.hidden_size=8", "model.latent_size=4", "importance_samples=2"],
}  # fmt: skip
"""The overrides of a config's task by `--quick`, by the beginning of the config's name."""
Result = TypeVar("Result")


class Work(NamedTuple):
    """A call to time, and the work that it does."""

    run: Callable[[], object]
    number: int
    """The number of items that one call handles."""
    unit: str
    operations: int
    """Nominal floating-point operations of its matrix products and convolutions."""
    moved: int
    """The least number of bytes that it moves: inputs and weights once, and the state of Adam."""
    memory: float = math.nan
    """Peak of allocated bytes; NaN on a CPU."""


Works = Iterator[tuple[str, Callable[[], Work]]]
"""Names of cases, and functions that build and warm up what is timed. A case that fails leaves the others as they
are."""


def captioners(name: str, shapes: Shapes, device: str, compiled: bool) -> Works:
    """Show, Attend and Tell or a Transformer, on a batch of annotation vectors."""
    regions, words = random_batch(shapes)
    size = {"number": shapes.captions, "unit": "captions", "inputs": regions.nbytes + words.nbytes}
    if name == "SAT soft" and not compiled:
        yield f"{name}, plain", partial(step, partial(plain, shapes, device), device, **size)
    make = {"SAT soft": ours, "SAT hard": hard, "Transformer": transformer}[name]
    yield from training(name, partial(make, shapes, device), device, compiled, **size)


def transformer(shapes: Shapes, device: str) -> Side:
    """A Transformer of three layers on the batch of `ours`."""
    torch.manual_seed(0)
    regions, words = random_batch(shapes).to(device)
    sizes = {"hidden_size": shapes.hidden, "num_heads": min(8, shapes.hidden // 4)}
    model = accelerated(Transformer(shapes.vocabulary, shapes.region_size, **sizes).to(device))
    return Side(model, lambda: -model(regions, words).log_prob.sum() / shapes.captions)


def digits(name: str, shapes: Shapes, device: str, compiled: bool, *, config: str, batch: int) -> Works:
    """The task of a config, on random images."""
    batch = 4 if shapes.quick else batch
    torch.manual_seed(0)
    built = build(read(CONFIGS / f"{config}.yaml", tiny_task(config) if shapes.quick else []))
    images = torch.rand(batch, *built["data"].image_shape, device=device)
    labels = torch.randint(10, (batch,), device=device)

    def make() -> Side:
        task = accelerated(built["task"](built["data"]).to(device))
        return Side(task, lambda: task(images, labels)["loss"])

    yield from training(name, make, device, compiled, number=batch, unit="images", inputs=images.nbytes)


def tiny_task(config: str) -> list[str]:
    """Overrides with which the task of a config takes no time."""
    tiny = next(tiny for start, tiny in TASKS.items() if config.startswith(start))
    return [f"--task.{override}" for override in tiny]


def decoding(name: str, shapes: Shapes, device: str, compiled: bool) -> Works:
    """Beam search and greedy decoding, also with a batch that keeps a GPU busy. They capture their time steps
    themselves, as they do for a user."""
    for images in shapes.some((shapes.images, 8 * shapes.images)):
        sizes = shapes._replace(images=images)

        def make(decode: Callable, sizes: Shapes = sizes) -> tuple[nn.Module, Tensor, Callable[[], object]]:
            regions, ends = random_batch(sizes).regions.to(device), random_ends(sizes, device)
            model = ours(sizes, device).model.eval()
            return model, regions, partial(decode, Ending(model, ends), regions, max_words=ends.shape[1])

        for what, decode in ((f"beam {BEAMS}", partial(beam_search, beams=BEAMS)), ("greedy", greedy)):
            full = f"{what}, {images} images"
            yield from inference(full, partial(make, decode), device, compiled, number=images, captures=True)


def encoders(name: str, shapes: Shapes, device: str, compiled: bool) -> Works:
    """Encoders on images that lie on the device."""
    images = 2 if shapes.quick else 128
    for network, encoder in kinds(shapes.quick).items():

        def make(encoder: Callable[[], nn.Module] = encoder) -> tuple[nn.Module, Tensor, Callable[[], object]]:
            model = encoder().to(device).eval()
            pixels = torch.randint(256, (images, 3, model.resolution, model.resolution), dtype=torch.uint8)
            pixels = pixels.to(device).contiguous(memory_format=torch.channels_last)
            return model, pixels, partial(model, pixels)

        yield from inference(network, make, device, compiled, number=images)


CASES: dict[str, Callable[[str, Shapes, str, bool], Works]] = {
    "SAT soft": captioners,
    "SAT hard": captioners,
    "Transformer": captioners,
    "RAM 28": partial(digits, config="ram_mnist28", batch=256),
    "RAM 28, large batch": partial(digits, config="ram_mnist28", batch=4096),
    "RAM 60": partial(digits, config="ram_cluttered60", batch=256),
    "RAM 100": partial(digits, config="ram_cluttered100", batch=256),
    "reader 100": partial(digits, config="draw_reader_cluttered100", batch=128),
    "DRAW 10": partial(digits, config="draw_mnist_small", batch=128),
    "DRAW 64": partial(digits, config="draw_mnist", batch=128),
    "decoding": decoding,
    "encoders": encoders,
}


def training(
    name: str, make: Callable[[], Side], device: str, compiled: bool, *, number: int, unit: str, inputs: int
) -> Works:
    """A training step as it is, and captured; both compiled or not."""
    for captured in (False, True):
        ways = {"compiled": compiled, "captured": captured}
        yield f"{name}, {way(**ways)}", partial(step, make, device, number=number, unit=unit, inputs=inputs, **ways)


def step(
    make: Callable[[], Side],
    device: str,
    *,
    number: int,
    unit: str,
    inputs: int,
    compiled: bool = False,
    captured: bool = False,
) -> Work:
    """A training step in bf16 with fused Adam: forward, backward, update."""
    side = make()

    def gradients() -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = side.loss()
        loss.backward()

    moved = inputs + ADAM * weights(side.model) // 4
    size = {"number": number, "unit": unit, "operations": operations(gradients), "moved": moved}
    del side

    def start() -> Step:
        side = make()
        if compiled:
            side = side._replace(loss=torch.compile(side.loss))
        step = training_step(side, bf16=True, fused=True, capturable=device == "cuda")
        return capture(step) if captured and device == "cuda" else step

    return work(start, device, **size)


def inference(
    name: str,
    make: Callable[[], tuple[nn.Module, Tensor, Callable]],
    device: str,
    compiled: bool,
    *,
    number: int,
    captures: bool = False,
) -> Works:
    """Decoding or encoding in bf16. `make` returns a model, its input, and the call of the model on that input.
    captures: the call captures itself."""

    def prepare(captured: bool) -> Work:
        model, input, call = make()

        def run() -> object:
            with torch.no_grad(), torch.autocast(device, torch.bfloat16), without_graphs(not captured):
                return call()

        size = {"number": number, "unit": "images", "operations": operations(run)}
        if compiled:
            model.compile()
        start = partial(capture, run) if captured and not captures and device == "cuda" else lambda: run
        return work(start, device, moved=input.nbytes + weights(model), **size)

    for captured in (False, True):
        yield f"{name}, {way(compiled, captured)}", partial(prepare, captured)


def way(compiled: bool, captured: bool) -> str:
    return " and ".join(["compiled"] * compiled + ["captured"] * captured) or "eager"


def work(start: Callable[[], Callable], device: str, **size: object) -> Work:
    """Build the timed call with `start`, run it until nothing is left to compile, and measure its peak memory."""
    memory = math.nan
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    run = start()
    for _ in range(2):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
        memory = torch.cuda.max_memory_allocated() - before
    return Work(run, memory=memory, **size)


def operations(run: Callable[[], object]) -> int:
    """Count the operations of matrix products and convolutions of an eager call."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def weights(model: nn.Module) -> int:
    """Bytes of all weights."""
    return sum(parameter.nbytes for parameter in model.parameters())


def capture(run: Callable[[], Result]) -> Callable[[], Result]:
    """A whole call, a training step or a search, as one CUDA graph that is replayed at each call.

    What is returned keeps `run` alive, and with it the model and its inputs: a graph reads and writes their memory, and
    does not hold it.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    return partial(_replay, graph, result, run)


def _replay(graph: torch.cuda.CUDAGraph, result: Result, recorded: Callable[[], Result]) -> Result:
    """Replay the graph of `recorded`, which is given here only to be kept."""
    graph.replay()
    return result

"""Training on a GPU in bf16: eager, compiled and captured steps, and their share of the GPU's matrix product rate."""

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import seconds, table
from benchmarks.shapes import Shapes
from benchmarks.show_attend_tell import Step, ours, plain, training_step

STEPS = 10


def gpu(shapes: Shapes, repeats: int) -> str:
    """The table of captions per second. The share counts only the nominal operations of the step's matrix products."""
    makers: dict[str, Callable[[], Step]] = {
        "plain": lambda: training_step(plain(shapes, "cuda"), bf16=True),
        "ours, eager": lambda: training_step(ours(shapes, "cuda"), bf16=True, fused=True),
        "ours, compiled": lambda: compiled(shapes),
        "ours, captured": lambda: captured(shapes),
    }
    side = ours(shapes, "cuda")
    with FlopCounterMode(display=False) as counter, torch.autocast("cuda", torch.bfloat16):
        side.loss().backward()
    operations, machine = counter.get_total_flops(), matrix_rate()

    rows = []
    for name, make in makers.items():
        torch.cuda.reset_peak_memory_stats()
        spent = seconds({name: _several(make())}, repeats, name)[name] / STEPS
        share = "-" if name == "plain" else f"{operations / spent / machine:.1%}"
        memory = torch.cuda.max_memory_allocated() / 2**20
        rows.append((name, f"{shapes.captions / spent:.0f}", f"{1000 * spent:.2f}", share, f"{memory:.0f}"))
    title = (
        f"Training in bf16 on {torch.cuda.get_device_name()}, which multiplies matrices at {machine / 1e12:.0f} TFLOP/s"
    )
    return table(title, ("", "captions/s", "ms per step", "share of that rate", "peak memory, MiB"), rows)


def compiled(shapes: Shapes) -> Step:
    """Forward pass and loss compiled together; Adam fused."""
    side = ours(shapes, "cuda")
    return training_step(side._replace(loss=torch.compile(side.loss)), bf16=True, fused=True)


def captured(shapes: Shapes) -> Step:
    """The whole compiled step (forward, backward, Adam), captured as one CUDA graph and replayed."""
    side = ours(shapes, "cuda")
    compiled_side = side._replace(loss=torch.compile(side.loss))
    step = training_step(compiled_side, bf16=True, fused=True, capturable=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return loss

    return replay


def matrix_rate(size: int = 8192, number: int = 20) -> float:
    """Operations per second of a large bf16 matrix product, measured on this machine."""
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)

    def multiply() -> None:
        for _ in range(number):
            a @ a
        torch.cuda.synchronize()

    return 2 * size**3 * number / seconds({"matrix": multiply}, 3, "matrix rate")["matrix"]


def _several(step: Step) -> Callable[[], None]:
    def run() -> None:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()

    return run

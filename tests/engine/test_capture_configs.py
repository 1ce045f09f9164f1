"""With default settings on CUDA the step of every config is captured: forward passes on tensors that only claim to be
there.

Such a tensor has a device, a shape and no numbers. An operation that reads numbers, whose result depends on them in its
shape, or that mixes devices, fails as it does while a graph is captured. `test_capture_tasks` has whole steps.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.optim import AdamW

from tests import pretend, tiny
from tests.graphs import PlainGraph
from tests.ways import prepared
from vision_attn.configuration.run_settings import Run
from vision_attn.criteria.self_critical import SampledCaptions
from vision_attn.engine.batches import is_tensors, like, on_device
from vision_attn.engine.capture import signature
from vision_attn.engine.device_settings import uncaptured
from vision_attn.engine.distributed import World
from vision_attn.fast import ragged
from vision_attn.task import Static, Task

CUDA = torch.device("cuda", 0)
KNOWN = ragged.known_schedule.__wrapped__
EAGER = {"ram_cluttered2000": "steps of Classification cannot be captured: its images differ in size"}
"""What is not captured, and what is said of it."""


captured: set[tuple[object, ...]] = set()
"""What cases are alike in that were tried already."""


def moved(part: Any) -> Any:
    """A tensor that claims to be on a GPU."""
    return torch.empty(part.shape, dtype=part.dtype, device=CUDA) if isinstance(part, Tensor) else part


def move(task: Task) -> None:
    for module in task.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = torch.nn.Parameter(moved(weight), requires_grad=weight.requires_grad)
        for name, buffer in module._buffers.items():
            module._buffers[name] = moved(buffer)


def known_schedule(lengths: Static, longest: int, device: torch.device) -> tuple[ragged.PackedStep, ...]:
    with unset_fake_temporarily():  # what is known of a batch is computed on the CPU
        steps = KNOWN(lengths, longest, torch.device("cpu"))
    return tuple(ragged.PackedStep(*map(moved, step)) for step in steps)


def sampled(rows: int, model: Any, regions: Tensor, references: Any) -> SampledCaptions:
    B = len(regions)
    return SampledCaptions(*(torch.ones(B, *sizes, dtype=torch.long, device=CUDA) for sizes in ((rows, 8), (2, 6))))


@pytest.mark.slow
@pytest.mark.parametrize("case", tiny.CASES)
def test_every_config_is_captured_by_default_on_cuda(
    case: str, both_ways: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.skip_repeated((both_ways, tiny.alike(case, numbers=both_ways == "fast")), captured)  # plain is no default
    pretend.no_triton(monkeypatch)  # a kernel needs an address
    pretend.captured_steps(monkeypatch, PlainGraph)
    task, batch = tiny.made(case)
    task = prepared(task)
    run, world = Run(folder="x", precision="bf16"), World(0, 1, CUDA)
    optimizer = AdamW([parameter for parameter in task.parameters() if parameter.requires_grad])
    assert uncaptured(run, task, world, optimizer) == EAGER.get(case, "")
    if case in EAGER:
        return
    if hasattr(batch, "references"):
        batch = batch._replace(lengths=Static(map(tuple, (batch.words != 0).sum(dim=2).tolist())))
        # a schedule is computed on the CPU and copied, which tensors without numbers cannot be
        monkeypatch.setattr(ragged, "known_schedule", known_schedule)
    for criterion in getattr(getattr(task, "criteria", None), "sampling", ()):  # searches are captured by themselves
        criterion.sample = partial(sampled, criterion.num_samples + criterion.greedy)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, torch.backends.cudnn.flags(enabled=False):  # cuDNN asks the device
        move(task)
        batch = on_device(task.captured_batch(like(batch, [*map(moved, batch)])), CUDA)
        scalars = task(*batch)
    kinds = Tensor | Static | type(None)
    assert all(isinstance(part, kinds) or part == () or is_tensors(part) for part in batch) and signature(batch)
    assert all(value.numel() == 1 and value.device == CUDA for value in scalars.values())

"""A checkpoint holds all that a task remembers: the weights and buffers of its `state_dict`."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import made
from vision_attn.task import Batch, Task

CASES = (
    "an embedding of each place, a GRU", "a score by distance, scheduled sampling", "a Transformer of one projection",
    "memory_scenes", "regions of films, with motion", "self-critical, hard", "a cosine, a learned baseline",
    "a bilinear score, a moving average", "RAM that is told where the object is, a moving average",
)  # fmt: skip
"""What has counts, averages or places of its own."""


def losses(task: Task, batch: Batch, seed: int) -> dict[str, Any]:
    """What a step of training with these random numbers returns."""
    torch.manual_seed(seed)
    return {name: value.detach() for name, value in task(*batch).items() if isinstance(value, Tensor)}


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_task_with_the_state_of_another_goes_on_as_that_one(case: str) -> None:
    """After two batches, with which schedules have moved on, and baselines and counts have changed."""
    task, batch = made(case)
    for seed in range(2):
        losses(task, batch, seed)
    again, _ = made(case)
    again.load_state_dict(task.state_dict())
    one, other = losses(task, batch, 2), losses(again, batch, 2)
    assert one["loss"].isfinite().all() and one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one), case

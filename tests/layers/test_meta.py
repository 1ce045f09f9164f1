"""Modules built without memory have the shapes of those built with it."""

from pathlib import Path

import pytest
import torch
from torch import nn

from vision_attn.configuration.config import build, read
from vision_attn.layers.meta import allocate, on_meta

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    "config", ["sat_soft_scenes", "sat_hard_scenes", "transformer_scenes", "top_down_scenes", "show_and_tell_scenes"]
)
def test_a_task_has_the_same_weights_without_memory(config: str) -> None:
    parts = build(read(CONFIGS / f"{config}.yaml"))
    with on_meta():
        hollow = build(read(CONFIGS / f"{config}.yaml"))["task"](parts["data"])
    whole = parts["task"](parts["data"])
    assert all(weight.is_meta for weight in hollow.state_dict().values())
    same = [{name: (w.shape, w.dtype) for name, w in each.state_dict().items()} for each in (hollow, whole)]
    assert same[0] == same[1] and len(same[0]) > 10


def test_operations_give_the_shapes_and_types_of_torch() -> None:
    for dtype in (torch.float64, torch.float32, torch.int64):
        with on_meta():
            ones = torch.ones(2, 3, dtype=dtype)
            results = [ones * 2, ones / 2, ones - 0.5, 2 * ones, torch.exp(ones), ones + ones[0], ones.clone().fill_(1)]
        ones = torch.ones(2, 3, dtype=dtype)
        plain = [ones * 2, ones / 2, ones - 0.5, 2 * ones, torch.exp(ones), ones + ones[0], ones.clone().fill_(1)]
        assert [(r.shape, r.dtype) for r in results] == [(p.shape, p.dtype) for p in plain]
        assert all(result.is_meta for result in results)


def test_a_division_in_place_has_no_effect() -> None:
    with on_meta():
        ones = torch.ones(2, 3)
        assert ones.div_(2) is ones and ones.is_meta


def test_tensors_elsewhere_are_computed_as_always() -> None:
    with on_meta(), torch.device("cpu"):
        assert torch.zeros(3).tolist() == [0, 0, 0] and torch.empty(2).fill_(3).mul(2).tolist() == [6, 6]
        assert nn.init.ones_(torch.empty(2)).tolist() == [1, 1]
        assert torch.zeros(2, device="cpu").add(1).tolist() == [1, 1]


def test_random_weights_of_any_size_take_no_memory() -> None:
    with on_meta():
        layer = nn.Linear(10**7, 10**7)
        noise = 0.1 * torch.randn(10**7, 10**7)
    assert layer.weight.is_meta and noise.shape == layer.weight.shape


def test_allocated_modules_can_be_used() -> None:
    with on_meta():
        module = nn.BatchNorm2d(3)
    allocate(module, "cpu").reset_parameters()
    assert module.running_var.tolist() == [1, 1, 1] and not any(w.is_meta for w in module.state_dict().values())
    assert module.num_batches_tracked.dtype == torch.int64

"""Weights that are cast together: what a model computes, and its gradients, as with autocast's own casts."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests import pretend
from vision_attn.fast import accelerate, cast, multi_head, time_loops
from vision_attn.fast.models import over_time, transformer
from vision_attn.models.draw import DRAW, DRAWReader
from vision_attn.models.ram import RAM
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.models.transformer import Transformer
from vision_attn.system.errors import UserError

WORDS = torch.tensor([[[3, 4, 1], [5, 1, 0]], [[3, 1, 0], [1, 0, 0]]])


def made() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Models, and what they are called with."""
    torch.manual_seed(0)
    images, regions = torch.rand(4, 1, 8, 8), torch.rand(2, 5, 6)
    sizes = {"hidden_size": 8, "dropout": 0.0}
    return {
        "captioner": (ShowAttendTell(7, 6, word_size=8, **sizes), (regions, WORDS)),
        "top-down": (TopDown(7, 6, word_size=8, **sizes), (regions, WORDS)),
        "transformer": (Transformer(7, 6, num_heads=2, feedforward_size=8, **sizes), (regions, WORDS)),
        "ram": (RAM((1, 8, 8), 3, num_glimpses=3), (images,)),
        "reader": (DRAWReader((1, 8, 8), 3, num_glimpses=2, size=3), (images,)),
        "draw": (DRAW((1, 8, 8), num_steps=2, hidden_size=8, latent_size=4), (images, torch.rand(2, 4, 1, 4))),
    }


def loss_and_gradients(name: str) -> tuple[Tensor, list[Tensor]]:
    model, inputs = made()[name]
    accelerate(model)
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        result = model(*inputs)
    loss = -result.log_prob.sum()
    if name == "draw":
        loss = loss + result.kl.sum()
    return loss, torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


@pytest.mark.parametrize("collects", [False, True], ids=["each time step", "collected"])
@pytest.mark.parametrize("name", made())
def test_gradients_are_those_of_autocast(name, collects, monkeypatch) -> None:
    expected = loss_and_gradients(name)
    pretend.casts(monkeypatch)
    if collects:
        pretend.on_cuda(monkeypatch, time_loops, multi_head, over_time, transformer)
    loss, gradients = loss_and_gradients(name)
    torch.testing.assert_close(loss, expected[0], rtol=1e-2, atol=1e-2)
    size = torch.stack([grad.norm() for grad in expected[1] if grad is not None]).norm()
    for ours, other in zip(gradients, expected[1], strict=True):
        assert (ours is None) == (other is None)
        if ours is not None:
            assert ours.dtype == torch.float32 and (ours - other).norm() < 0.02 * size + 0.05 * other.norm()


def test_all_weights_are_cast_by_one_operation(monkeypatch) -> None:
    """And the model has its own again afterwards, also after an error."""
    counted: Counter[str] = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            counted[function._schema.name] += 1
            return function(*arguments, **(options or {}))

    pretend.casts(monkeypatch)
    model, inputs = made()["transformer"]
    accelerate(model)
    before = dict(model.named_parameters())
    with torch.autocast("cpu", torch.bfloat16), Count():
        loss = model(*inputs).log_prob.sum()
    with Count():
        loss.backward()
    assert counted["vision_attn::cast_all"] == 2
    assert all(weight is before[name] for name, weight in model.named_parameters())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UserError):
        model(inputs[0], inputs[1].repeat(1, 1, 99))
    assert all(weight is before[name] for name, weight in model.named_parameters())


def test_weights_are_not_cast_in_float32_or_without_a_gradient() -> None:
    model = nn.Linear(2, 3)
    assert not cast._wanted(model)
    with torch.autocast("cpu", torch.bfloat16):  # a CPU casts as autocast does
        assert not cast._wanted(model)

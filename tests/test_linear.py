"""Our linear layer equals torch's, whichever library multiplies."""

import pytest
import torch
from torch import nn

from vision_attn.layers.linear import Linear, Rectified


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(7,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("kind, after", [(Linear, nn.Identity()), (Rectified, nn.ReLU())])
@pytest.mark.parametrize("intel", [True, False])
def test_results_and_gradients_are_those_of_torch(dtype, bias, rows, kind, after, intel, monkeypatch):
    monkeypatch.setattr("vision_attn.layers.linear.is_intel", lambda: intel)
    torch.manual_seed(0)
    ours = kind(33, 17, bias=bias).to(dtype)
    plain = nn.Linear(33, 17, bias=bias).to(dtype)
    plain.load_state_dict(ours.state_dict())
    plain = nn.Sequential(plain, after)
    seen = torch.randn(*rows, 33, dtype=dtype)
    weight = torch.randn(*rows, 17, dtype=dtype)
    found = []
    for layer in (ours, plain):
        given = seen.clone().requires_grad_()
        output = layer(given)
        (output * weight).sum().backward()
        found.append([output.detach(), given.grad, *(parameter.grad for parameter in layer.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("intel", [True, False])
def test_results_can_be_changed_in_place(intel, monkeypatch):
    """As decoders do that forbid words: `logits[..., PAD] = -inf`."""
    monkeypatch.setattr("vision_attn.layers.linear.is_intel", lambda: intel)
    logits = Linear(4, 3)(torch.randn(2, 5, 4, requires_grad=True))
    logits[..., 0] = -torch.inf
    logits.softmax(dim=-1)[..., 1].sum().backward()


def test_what_needs_no_gradient_gets_none():
    layer = Linear(4, 3)
    layer.weight.requires_grad_(False)
    layer(torch.randn(2, 4)).sum().backward()
    assert layer.weight.grad is None and layer.bias.grad is not None


def test_autocast_keeps_its_own_arithmetic():
    with torch.autocast("cpu", torch.bfloat16):
        assert Linear(4, 3)(torch.randn(2, 4)).dtype == torch.bfloat16

"""Fast linear layers equal torch's, whichever library multiplies."""

import pytest
import torch
from torch import nn

from tests import pretend
from vision_attn.fast import products
from vision_attn.fast.linear import FastLinear, FastRectified, constant_weights
from vision_attn.system.machine import multiplies_bf16

pytestmark = pytest.mark.usefixtures("onednn_for_small_products")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(7,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("kind, after", [(FastLinear, nn.Identity()), (FastRectified, nn.ReLU())])
@pytest.mark.parametrize("intel", [True, False])
def test_results_and_gradients_are_those_of_torch(dtype, bias, rows, kind, after, intel, monkeypatch):
    pretend.processor(monkeypatch, intel=intel)
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
    pretend.processor(monkeypatch, intel=intel)
    logits = FastLinear(4, 3)(torch.randn(2, 5, 4, requires_grad=True))
    logits[..., 0] = -torch.inf
    logits.softmax(dim=-1)[..., 1].sum().backward()


def test_what_needs_no_gradient_gets_none():
    layer = FastLinear(4, 3)
    layer.weight.requires_grad_(False)
    layer(torch.randn(2, 4)).sum().backward()
    assert layer.weight.grad is None and layer.bias.grad is not None


def test_autocast_keeps_its_own_arithmetic():
    with torch.autocast("cpu", torch.bfloat16):
        assert FastLinear(4, 3)(torch.randn(2, 4)).dtype == torch.bfloat16


def test_constant_weights_give_the_same_results_and_notice_another_weight(monkeypatch):
    pretend.processor(monkeypatch, intel=False)
    layers = nn.ModuleList([FastLinear(33, 17), FastLinear(33, 17, bias=False)])
    few, many = torch.randn(3, 33), torch.randn(5, 8, 33)
    with torch.no_grad():
        plain = [layer(rows) for layer in layers for rows in (few, many)]
        with constant_weights(layers):
            for _ in range(2):
                found = [layer(rows) for layer in layers for rows in (few, many)]
                torch.testing.assert_close(found, plain)
        layers[0].weight.add_(1)
        with constant_weights(layers):
            torch.testing.assert_close(layers[0](many), nn.functional.linear(many, layers[0].weight, layers[0].bias))


def test_constant_weights_are_shared_with_inner_contexts_and_later_ones(monkeypatch):
    pretend.processor(monkeypatch, intel=False)
    calls = []  # counts how often a weight is arranged, which no result shows
    monkeypatch.setattr("vision_attn.fast.products._arrange", lambda weight, rows: calls.append(weight) or weight)
    layer, rows, arranged = FastLinear(64, 64), torch.randn(32, 64), {}
    with torch.no_grad():
        for _ in range(2):
            with constant_weights(layer, arranged), constant_weights(layer):
                layer(rows)
        assert len(calls) == len(arranged) == 1
        for _ in range(2):
            with constant_weights(layer):
                layer(rows)
    assert len(calls) == 3


def test_constant_weights_in_half_precision_give_the_same_results() -> None:
    layers = nn.ModuleList([FastLinear(33, 17), FastLinear(33, 17, bias=False), FastRectified(33, 17)])
    inputs = [torch.randn(2, 33), torch.randn(5, 8, 33), torch.randn(40, 33).bfloat16(), torch.randn(0, 33)]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = [layer(rows) for layer in layers for rows in inputs]
        arranged = {}
        with constant_weights(layers, arranged):
            for _ in range(2):
                found = [layer(rows) for layer in layers for rows in inputs]
                torch.testing.assert_close(found, plain, rtol=0.01, atol=0.01)
                assert len(arranged) == (3 if multiplies_bf16() else 0)
        with constant_weights(layers, arranged), torch.autocast("cpu", enabled=False):
            exact = [layer(rows) for layer in layers[:1] for rows in inputs[:2]]
    assert all(each.dtype == torch.float32 for each in exact)
    assert all(each.dtype == torch.bfloat16 for each in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(3, 5), (5, 3)])
@pytest.mark.parametrize("narrow", [False, True])
def test_a_transposed_product(dtype: torch.dtype, sizes: tuple[int, int], narrow: bool, monkeypatch) -> None:
    monkeypatch.setattr(products, "NARROW", narrow)  # as the processor of this machine and as the other kind
    a, b = (torch.randn(7, size).to(dtype) for size in sizes)
    torch.testing.assert_close(products.transposed_product(a, b), a.T @ b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_product_with_a_bias(dtype: torch.dtype) -> None:
    input, weight, bias = (torch.randn(*size).to(dtype) for size in ((4, 65), (33, 65), (33,)))
    torch.testing.assert_close(products.linear(input, weight, bias), nn.functional.linear(input, weight, bias))


@pytest.mark.parametrize("intel", [True, False])
def test_not_a_number_is_not_lost(intel, monkeypatch):
    """A loss that is not finite stops a training; a ReLU that makes 0 of NaN would hide it."""
    pretend.processor(monkeypatch, intel=intel)
    layer, seen = FastRectified(4, 3), torch.randn(2, 4)
    with torch.no_grad():
        layer.weight[1] = torch.nan
    for output in (layer(seen), layer(seen.requires_grad_())):
        assert output.isnan().tolist() == [[False, True, False]] * 2


def test_rows_of_any_number_of_dimensions():
    layer = FastLinear(4, 3)
    for shape in ((4,), (0, 4), (2, 0, 4)):
        seen = torch.randn(*shape, requires_grad=True)
        layer(seen).sum().backward()
        assert layer(seen).shape == (*shape[:-1], 3) and seen.grad.shape == shape

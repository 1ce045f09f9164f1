"""Layers in a loop over time steps: the same numbers and gradients as those of autograd."""

from collections import Counter
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests import pretend
from vision_attn.fast import accelerate, time_loops
from vision_attn.fast.models import over_time as models_over_time
from vision_attn.fast.time_loops import over_time
from vision_attn.layers.linear import Linear, Rectified
from vision_attn.models.dram import ConvolutionalGlimpse
from vision_attn.models.draw import DRAW, DRAWReader
from vision_attn.models.ram import RAM, ContextLSTM, GlimpseNetwork, Rectifier

pytestmark = pytest.mark.usefixtures("onednn_for_small_products")


N, M, H, T = 5, 3, 4, 6


def network(last: type[Linear]) -> nn.ModuleDict:
    torch.manual_seed(0)
    layers = {"state": last(M + H, H), "out": Rectified(H, 2), "free": Linear(H, 1, bias=False)}
    return accelerated(nn.ModuleDict(layers)).double()


def accelerated(module: nn.Module) -> nn.Module:
    accelerate(module)
    return module


def inputs() -> Tensor:
    return torch.randn(T, N, 1, M, dtype=torch.double, generator=torch.Generator().manual_seed(1)).requires_grad_()


def run(layers: nn.ModuleDict, inputs: Tensor, *, deferred: bool) -> list[Tensor]:
    """Each time step's output, of a loop whose inputs are side by side with its state."""
    state, outputs = inputs.new_zeros(N, 1, H), []
    with over_time(layers) if deferred else nullcontext():
        for input in inputs:
            state = layers["state"](input, state).tanh()
            outputs.append(layers["out"](state) + layers["free"](state))
    return outputs


@pytest.fixture
def collecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers collect what their time steps need, as they do on a GPU."""
    pretend.on_cuda(monkeypatch, time_loops)


@pytest.fixture(params=[False, True], ids=["as on a CPU", "as on a GPU"])
def each_way(request: pytest.FixtureRequest) -> None:
    """Gradients of weights in each time step, as on a CPU, and collected for all time steps, as on a GPU."""
    if request.param:
        request.getfixturevalue("collecting")


@pytest.mark.parametrize("last", [Linear, Rectified])
@pytest.mark.parametrize("steps", [range(T), range(3), [2], [1, 4]], ids=["all", "the first", "one", "two"])
def test_gradients_are_those_of_autograd(last, steps, each_way):
    """Also of a loss that sees only some time steps."""
    results = []
    for deferred in (False, True):
        layers, numbers = network(last), inputs()
        outputs = run(layers, numbers, deferred=deferred)
        loss = sum(outputs[step].square().sum() for step in steps)
        results.append((*outputs, *torch.autograd.grad(loss, (*layers.parameters(), numbers))))
    torch.testing.assert_close(results[1], results[0])


def test_backward_passes_over_different_time_steps_do_not_mix(each_way):
    layers, numbers = network(Rectified), inputs()
    outputs, expected = run(layers, numbers, deferred=True), run(layers, numbers, deferred=False)
    parameters = tuple(layers.parameters())
    for steps in ([3, 5], [0], [1]):
        ours, theirs = (
            torch.autograd.grad(sum(some[step].sum() for step in steps), parameters, retain_graph=True)
            for some in (outputs, expected)
        )
        torch.testing.assert_close(ours, theirs)
    torch.autograd.grad(outputs[5].sum(), numbers, retain_graph=True)  # no weights: nothing collects these gradients
    again = torch.autograd.grad(outputs[0].sum(), parameters, retain_graph=True)
    torch.testing.assert_close(again, torch.autograd.grad(expected[0].sum(), parameters))


def test_frozen_weights_pass_gradients_on(each_way):
    layers, numbers = network(Linear), inputs()
    layers["state"].requires_grad_(False)
    wanted = (*layers["out"].parameters(), numbers)
    ours, theirs = (
        torch.autograd.grad(run(layers, numbers, deferred=deferred)[-1].sum(), wanted) for deferred in (True, False)
    )
    torch.testing.assert_close(ours, theirs)


def test_without_a_gradient_or_under_autocast_nothing_is_collected():
    """And a hook on a layer is called at every time step, also of one that collects."""
    layer, calls = accelerated(Linear(M, H)), []
    layer.register_forward_hook(lambda *_: calls.append(1))
    with over_time(layer):
        with torch.no_grad():
            layer(torch.ones(2, M))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(torch.ones(2, M)).dtype == torch.bfloat16
        assert not layer.loop.layers
        layer(torch.ones(2, M))
        assert len(layer.loop.layers) == 1
    assert len(calls) == 3 and layer.loop is None


@pytest.mark.compile
def test_models_with_such_loops_compile_into_one_graph():
    for model in (
        RAM((1, 8, 8), 3, num_glimpses=2),
        RAM((1, 8, 8), 3, num_glimpses=2, core=ContextLSTM),
        DRAWReader((1, 8, 8), 3, num_glimpses=2, size=3),
        DRAW((1, 8, 8), num_steps=2),
    ):
        explained = torch._dynamo.explain(accelerated(model))(torch.ones(2, 1, 8, 8))
        assert explained.graph_break_count == 0, explained.break_reasons


def test_weights_that_were_changed_before_the_backward_pass_are_noticed():
    layers, numbers = network(Linear), inputs()
    output = run(layers, numbers, deferred=True)[-1]
    with torch.no_grad():
        layers["state"].weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed between"):
        output.sum().backward()


def test_collected_gradients_under_autocast_are_near_those_in_float32(collecting):
    results = []
    for half in (False, True):
        layers, numbers = network(Rectified).float(), inputs().detach().float().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            outputs = run(layers, numbers, deferred=True)
        assert outputs[0].dtype == (torch.bfloat16 if half else torch.float32)
        loss = sum(output.float().square().sum() for output in outputs)
        results.append(torch.autograd.grad(loss, (*layers.parameters(), numbers)))
    for ours, other in zip(results[1], results[0], strict=True):
        assert ours.dtype == torch.float32 and (ours - other).norm() < 0.03 * other.norm()


def test_an_input_that_several_layers_read_is_cast_once(collecting):
    """And the weights of a layer once a loop."""
    layers, shared, casts = accelerated(nn.ModuleList(Linear(M, H) for _ in range(3))), torch.ones(2, M), Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            casts[function._schema.name] += 1
            return function(*arguments, **(options or {}))

    with torch.autocast("cpu", torch.bfloat16), over_time(layers), Count():
        for _ in range(4):
            shared = shared + 1
            for layer in layers:
                layer(shared)
    assert casts["aten::_to_copy"] == 4 + 2 * len(layers)


@pytest.mark.parametrize("core", [Rectifier, ContextLSTM], ids=lambda core: core.__name__)
@pytest.mark.parametrize("glimpse", [GlimpseNetwork, ConvolutionalGlimpse], ids=lambda glimpse: glimpse.__name__)
def test_gradients_of_glimpse_networks_can_wait_for_all_time_steps(core, glimpse, monkeypatch):
    torch.manual_seed(0)
    model = accelerated(RAM((1, 8, 8), 3, num_glimpses=3, core=core, glimpse=glimpse).double())
    images, results = torch.rand(4, 1, 8, 8, dtype=torch.double), []
    for on_gpu in (False, True):
        pretend.on_cuda(monkeypatch, models_over_time, there=on_gpu)
        calls = []
        where = model.glimpse.where
        where.forward = partial(_noted, calls, type(where).forward, where)
        torch.manual_seed(1)
        glance = model(images, 2)
        loss = -glance.log_prob[..., 0].sum() + glance.choice.log_prob.sum()
        results.append((glance.log_prob, *torch.autograd.grad(loss, list(model.parameters()))))
        assert len(calls) == (4 if on_gpu else 3)  # one for each glimpse, and on a GPU one for all
    torch.testing.assert_close(results[1], results[0])


def _noted(calls: list, forward, *arguments):
    calls.append(arguments)
    return forward(*arguments)

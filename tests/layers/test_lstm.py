"""The LSTM cell, plain and fast, equals torch's, and its gradient is correct."""

from collections.abc import Iterator

import pytest
import torch
from torch.autograd import gradcheck

from vision_attn.fast import versions
from vision_attn.fast.lstm import FastLSTMCell, _CellUpdate
from vision_attn.layers.lstm import LSTMCell


@pytest.fixture(params=["plain", "loops", "tensors"])
def lstm(request: pytest.FixtureRequest) -> Iterator[LSTMCell]:
    """The cell, and both fast ways of updating it: fused loops for float32, and tensor operations."""
    if request.param == "loops":
        pytest.importorskip("vision_attn.fast.lstm.cpu", reason="numba is not installed")
    with versions.without_loops(request.param == "tensors"):
        yield LSTMCell() if request.param == "plain" else FastLSTMCell()


def turn(*rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A cell and its gates."""
    generator = torch.Generator().manual_seed(0)
    sizes = (5, 20)
    return tuple(torch.randn(*rows, size, generator=generator, dtype=torch.double).requires_grad_() for size in sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_time_step_equals_torch(lstm, dtype):
    cell, gates = (numbers.to(dtype) for numbers in turn(7))
    theirs = torch.nn.LSTMCell(20, 5, bias=False).to(dtype)
    with torch.no_grad():
        theirs.weight_ih.copy_(torch.eye(20)[[*range(10), *range(15, 20), *range(10, 15)]])  # its candidate is third
    wanted = theirs(gates, (torch.zeros_like(cell), cell))
    torch.testing.assert_close(lstm(cell, gates), wanted)
    half = gates / 2
    torch.testing.assert_close(lstm(cell, half, half), wanted)
    torch.testing.assert_close(lstm(cell, *[gates / 4] * 4), wanted)


@pytest.mark.parametrize("rows", [(3,), (2, 1, 3)])
def test_the_derivative(lstm, rows):
    assert gradcheck(lstm, turn(*rows))


@pytest.mark.parametrize("rows", [(3,), (2, 1, 3)])
def test_the_derivative_in_float32(lstm, rows):
    """Against autograd's in float64, of the written formula; gates far from 0 too. The cell may be strided."""
    cell, gates = turn(*rows)
    gates = (gates * 4).detach().requires_grad_()
    input_gate, forget, output_gate, candidate = gates.chunk(4, dim=-1)
    after = forget.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    hidden = output_gate.sigmoid() * after.tanh()
    weights = torch.linspace(-1, 2, cell.numel(), dtype=torch.double).view_as(cell)
    wanted = torch.autograd.grad(((hidden + 2 * after) * weights).sum(), (cell, gates))
    single = cell.detach().float().mT.contiguous().mT.requires_grad_(), gates.detach().float().requires_grad_()
    hidden, after = lstm(*single)
    ours = torch.autograd.grad(((hidden + 2 * after) * weights.float()).sum(), single)
    torch.testing.assert_close([grad.double() for grad in ours], list(wanted), rtol=1e-5, atol=1e-6)


def test_not_a_number_is_not_lost(lstm):
    cell, gates = (numbers.detach().float() for numbers in turn(3))
    gates[1, 2] = torch.nan
    hidden, after = lstm(cell, gates)
    assert hidden.isnan().sum() == after.isnan().sum() == 1 and hidden[1, 2].isnan()


def test_saturated_gates_neither_overflow_nor_drift(lstm):
    gates, cell = torch.tensor([[1e4, 1e4, 1e4, -1e4]], requires_grad=True), torch.tensor([[30.0]])
    hidden, after = lstm(cell, gates)
    (hidden + after).sum().backward()
    assert (hidden.item(), after.item()) == (1.0, 29.0)
    assert not gates.grad.any()


def test_a_cell_is_not_rounded_under_autocast(lstm):
    cell, gates = (numbers.detach() for numbers in turn(2))
    hidden, after = lstm(cell.float(), gates.bfloat16())
    assert hidden.dtype == after.dtype == torch.float32


def test_shapes_that_do_not_fit_are_refused_and_empty_ones_fit(lstm):
    with pytest.raises(RuntimeError, match="must match the size"):
        _CellUpdate.apply(torch.zeros(3, 16), torch.zeros(2, 4))
    hidden, cell = _CellUpdate.apply(torch.zeros(3, 16), torch.zeros(1, 4))  # as torch broadcasts
    assert hidden.shape == cell.shape == (3, 4)
    hidden, cell = lstm(torch.zeros(0, 1, 4), torch.zeros(0, 1, 16))
    assert hidden.shape == cell.shape == (0, 1, 4)

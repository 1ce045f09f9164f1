"""Our LSTM cell equals torch's, and its gradient is correct."""

import pytest
import torch
from torch.autograd import gradcheck

from vision_attn.layers.lstm import lstm


def turn(*rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (20, 5)
    return tuple(torch.randn(*rows, size, generator=generator, dtype=torch.double).requires_grad_() for size in sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_time_step_equals_torch(dtype):
    gates, cell = (numbers.to(dtype) for numbers in turn(7))
    theirs = torch.nn.LSTMCell(20, 5, bias=False).to(dtype)
    with torch.no_grad():
        theirs.weight_ih.copy_(torch.eye(20)[[*range(10), *range(15, 20), *range(10, 15)]])  # its candidate is third
    wanted = theirs(gates, (torch.zeros_like(cell), cell))
    torch.testing.assert_close(lstm(gates, cell), wanted)


@pytest.mark.parametrize("rows", [(3,), (2, 1, 3)])
def test_the_derivative(rows):
    assert gradcheck(lstm, turn(*rows))


def test_saturated_gates_neither_overflow_nor_drift():
    gates, cell = torch.tensor([[1e4, 1e4, 1e4, -1e4]], requires_grad=True), torch.tensor([[30.0]])
    hidden, after = lstm(gates, cell)
    (hidden + after).sum().backward()
    assert (hidden.item(), after.item()) == (1.0, 29.0)
    assert not gates.grad.any()


def test_a_cell_is_not_rounded_under_autocast():
    gates, cell = (numbers.detach() for numbers in turn(2))
    hidden, after = lstm(gates.bfloat16(), cell.float())
    assert hidden.dtype == after.dtype == torch.float32

"""An LSTM's cell update on a CPU: one fused loop forward, one backward, compiled by numba."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.fast.loops import LOG2_E, compiled, exp2, in_threads

ONE, TWO = np.float32(1), np.float32(2)


def update(
    first: Float[Tensor, "N gates"],
    second: Float[Tensor, "N gates"] | None,
    third: Float[Tensor, "N gates"] | None,
    cell: Float[Tensor, "N H"],
) -> tuple[Float[Tensor, "N gates"], Float[Tensor, "N H"], Float[Tensor, "N H"]]:
    """Return the activated gates, h_t and c_t, in float32. The gates' pre-activations are the sum of one to three
    tensors."""
    gates = first if second is None else first + second
    gates = (gates if third is None else gates + third).float().contiguous()
    cell = cell.contiguous()
    activated, hidden, new_cell = torch.empty_like(gates), torch.empty_like(cell), torch.empty_like(cell)
    in_threads(_update, 4 * gates.numel(), gates, cell, activated, hidden, new_cell)
    return activated, hidden, new_cell


def gradients(
    grad_hidden: Float[Tensor, "N H"] | None,
    grad_cell: Float[Tensor, "N H"] | None,
    activated: Float[Tensor, "N gates"],
    cell: Float[Tensor, "N H"],
    new_cell: Float[Tensor, "N H"],
    half: bool,
) -> tuple[Float[Tensor, "N gates"], Float[Tensor, "N H"]]:
    """Return the gradients of the gates' pre-activations and of c_{t-1}, given the gradients of h_t and c_t. All are
    float32."""
    cell = cell.contiguous()
    grad_hidden = torch.zeros_like(cell) if grad_hidden is None else grad_hidden.contiguous()
    grad_cell = torch.zeros_like(cell) if grad_cell is None else grad_cell.contiguous()
    grad_gates, grad_before = torch.empty_like(activated), torch.empty_like(cell)
    given = grad_hidden, grad_cell, activated, cell, new_cell.contiguous()
    in_threads(_gradients, 4 * activated.numel(), *given, grad_gates, grad_before)
    return grad_gates, grad_before


@compiled
def _update(first, last, gates, cell, activated, hidden, new_cell):
    size = cell.shape[1]
    for row in range(first, last):
        x, to = gates[row], activated[row]
        for i in range(3 * size):
            to[i] = ONE / (ONE + exp2(-LOG2_E * x[i]))
        for i in range(3 * size, 4 * size):  # tanh(x) = 2 sigmoid(2 x) - 1
            to[i] = TWO / (ONE + exp2(-TWO * LOG2_E * x[i])) - ONE
        input_gate, forget, output_gate, candidate = (
            to[:size],
            to[size : 2 * size],
            to[2 * size : 3 * size],
            to[3 * size :],
        )
        c, h, new = cell[row], hidden[row], new_cell[row]
        for i in range(size):
            value = forget[i] * c[i] + input_gate[i] * candidate[i]
            new[i] = value
            h[i] = output_gate[i] * (TWO / (ONE + exp2(-TWO * LOG2_E * value)) - ONE)


@compiled
def _gradients(first, last, grad_hidden, grad_cell, activated, cell, new_cell, grad_gates, grad_before):
    size = cell.shape[1]
    for row in range(first, last):
        gates, to = activated[row], grad_gates[row]
        input_gate, forget, output_gate = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size]
        candidate, c, new = gates[3 * size :], cell[row], new_cell[row]
        to_input, to_forget, to_output = to[:size], to[size : 2 * size], to[2 * size : 3 * size]
        to_candidate, to_before, gh, gc = to[3 * size :], grad_before[row], grad_hidden[row], grad_cell[row]
        for i in range(size):
            tanh = TWO / (ONE + exp2(-TWO * LOG2_E * new[i])) - ONE
            slope = gc[i] + gh[i] * output_gate[i] * (ONE - tanh * tanh)  # of c_t
            to_input[i] = slope * candidate[i] * input_gate[i] * (ONE - input_gate[i])
            to_forget[i] = slope * c[i] * forget[i] * (ONE - forget[i])
            to_output[i] = gh[i] * tanh * output_gate[i] * (ONE - output_gate[i])
            to_candidate[i] = slope * input_gate[i] * (ONE - candidate[i] * candidate[i])
            to_before[i] = slope * forget[i]

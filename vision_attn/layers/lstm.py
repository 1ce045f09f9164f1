"""The cell of an LSTM, for models whose input at each time step depends on the previous state."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.layers.precision import at_least_float32


class LSTMCell(nn.Module):
    """One step of an LSTM, without weights: its linear maps are layers of the model.

    Fast version: `fast.lstm.FastLSTMCell`.
    """

    def forward(
        self, cell: Float[Tensor, "*rows H"], *gates: Float[Tensor, "*rows gates"]
    ) -> tuple[Float[Tensor, "*rows H"], Float[Tensor, "*rows H"]]:
        """Return (h_t, c_t).

        cell: c_{t-1}.
        gates: the pre-activations, as one tensor or several to be added, ordered input, forget, output, candidate.

        The nonlinearities of Xu et al. 2015, eq. 1, then c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g) (eq. 2) and
        h_t = sigmoid(o) tanh(c_t) (eq. 3). Both are float32 or wider, also under autocast: a cell accumulates small
        changes over many time steps.
        """
        cell = at_least_float32(cell)
        input, forget, output, candidate = at_least_float32(sum(gates[1:], start=gates[0])).chunk(4, dim=-1)
        cell = forget.sigmoid() * cell + input.sigmoid() * candidate.tanh()
        return output.sigmoid() * cell.tanh(), cell


class CellUpdate(NamedTuple):
    """The update of the cell in one step: c_t = forget * before + written."""

    before: Float[Tensor, "*rows H"]
    forget: Float[Tensor, "*rows H"]
    written: Float[Tensor, "*rows H"]
    """i_t g_t."""


@contextmanager
def recording_updates(model: nn.Module) -> Iterator[list[CellUpdate]]:
    """Context manager: yields a list to which each step of the LSTM cells of `model` appends its update, without
    gradients."""
    updates: list[CellUpdate] = []

    @torch.no_grad()
    def record(cell: LSTMCell, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, Tensor]) -> None:
        before, *gates = map(at_least_float32, inputs)
        input, forget, _, candidate = sum(gates[1:], start=gates[0]).chunk(4, dim=-1)
        updates.append(CellUpdate(before, forget.sigmoid(), input.sigmoid() * candidate.tanh()))

    hooks = [module.register_forward_hook(record) for module in model.modules() if isinstance(module, LSTMCell)]
    try:
        yield updates
    finally:
        for hook in hooks:
            hook.remove()

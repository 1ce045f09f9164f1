"""A step of a GRU, and torch's LSTM or GRU over whole sequences. The step of an LSTM is in `layers.lstm`."""

from typing import Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.layers.precision import at_least_float32

Cell = Literal["lstm", "gru"]
CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
GATES = {"lstm": 4, "gru": 3}
"""The size of the pre-activations of a step, as a multiple of the size of the state."""


class RecurrentState(NamedTuple):
    """The state of a recurrent network. Held once per row; beams reorder it."""

    hidden: Float[Tensor, "B R H"]
    cell: Float[Tensor, "B R H"] | None
    """None for a GRU."""


def gru(
    from_input: Float[Tensor, "*rows gates"],
    from_hidden: Float[Tensor, "*rows gates"],
    hidden: Float[Tensor, "*rows H"],
) -> Float[Tensor, "*rows H"]:
    """Return h_t of a GRU (Cho et al. 2014, section 2.3), computed as `torch.nn.GRUCell` does.

    With r, z and n the parts of both pre-activations, of the input and of h_{t-1}: r = sigmoid(r_x + r_h),
    z = sigmoid(z_x + z_h), n = tanh(n_x + r n_h), and h_t = (1 - z) n + z h_{t-1}, in float32 or wider.

    Differs from the paper, where r multiplies h_{t-1} before the matrix product of n_h, as in torch.
    """
    hidden = at_least_float32(hidden)
    size = hidden.shape[-1]
    gates_x, candidate_x = at_least_float32(from_input).split([2 * size, size], dim=-1)
    gates_h, candidate_h = at_least_float32(from_hidden).split([2 * size, size], dim=-1)
    reset, update = (gates_x + gates_h).sigmoid().chunk(2, dim=-1)
    candidate = (candidate_x + reset * candidate_h).tanh()
    return candidate + update * (hidden - candidate)


def over_steps(
    network: nn.LSTM | nn.GRU,
    inputs: Float[Tensor, "N T _"],
    hidden: Float[Tensor, "N H"] | None = None,
    cell: Float[Tensor, "N H"] | None = None,
) -> tuple[Float[Tensor, "N T H"], Float[Tensor, "N H"], Float[Tensor, "N H"] | None]:
    """Run a network of one layer. Return h_t of each step, and the last h and c; c is None for a GRU.

    hidden, cell: the initial state; None: zeros.
    """
    before = [state[None].contiguous() for state in (hidden, cell) if state is not None]
    outputs, after = network(inputs, tuple(before) if len(before) > 1 else before[0] if before else None)
    hidden, cell = after if isinstance(after, tuple) else (after, None)
    return outputs, hidden.squeeze(0), None if cell is None else cell.squeeze(0)

"""Linear layers that take their input in one or several tensors side by side."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.system.errors import UserError


class Linear(nn.Linear):
    """A linear layer of one input or of several side by side, W [x_1; x_2; ..] + b. Raises UserError for sizes below
    1.

    Fast version: `fast.linear.FastLinear`.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device=None, dtype=None):
        if min(in_features, out_features) < 1:
            raise UserError(f"a layer of {in_features} inputs and {out_features} outputs: both must be at least 1")
        super().__init__(in_features, out_features, bias, device, dtype)

    def forward(self, *inputs: Float[Tensor, "*rows _"]) -> Float[Tensor, "*rows N"]:
        return super().forward(side_by_side(inputs))


class Rectified(Linear):
    """A linear layer followed by ReLU, max(0, W x + b).

    Fast version: `fast.linear.FastRectified`.
    """

    def forward(self, *inputs: Float[Tensor, "*rows _"]) -> Float[Tensor, "*rows N"]:
        return F.relu(super().forward(*inputs))


def side_by_side(inputs: tuple[Tensor, ...]) -> Tensor:
    """Join the inputs along their last dimension."""
    return torch.cat(inputs, dim=-1) if len(inputs) > 1 else inputs[0]

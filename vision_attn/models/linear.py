"""Linear layers at the speed of the processor.

On CPUs torch multiplies float32 matrices with Intel's MKL, which on AMD's processors stays below half of what they can
do. oneDNN, which is part of torch too, does not: on an EPYC of 2.6 GHz and one thread, products of RAM's sizes ran at
200 to 245 Gflop/s forward and backward, against 105 to 110.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


class Linear(nn.Linear):
    """`nn.Linear`, multiplied by oneDNN where that is faster: eagerly, on a CPU, in float32."""

    def forward(self, input: Float[Tensor, "*rows M"]) -> Float[Tensor, "*rows N"]:
        single = input.device.type == "cpu" and input.dtype == self.weight.dtype == torch.float32
        if not single or _onednn is None or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
            return super().forward(input)
        return _Product.apply(input, self.weight, self.bias)


class _Product(torch.autograd.Function):
    """input weight^T + bias."""

    @staticmethod
    def forward(ctx, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        return _product(input, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        rows, needed = grad.flatten(0, -2), ctx.needs_input_grad
        return (
            _product(grad, weight.t()) if needed[0] else None,
            _product(rows.t(), input.flatten(0, -2).t()) if needed[1] else None,
            rows.sum(dim=0) if needed[2] else None,
        )


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    return _onednn(left, right, bias, "none", [], "")

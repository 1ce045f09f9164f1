"""Linear layers at the speed of the processor.

On CPUs torch multiplies float32 matrices with Intel's MKL, which on AMD's processors stays below half of what they can
do. oneDNN, which is part of torch too, does not: on an EPYC of 2.6 GHz and one thread, products of RAM's sizes ran at
200 to 245 Gflop/s forward and backward, against 105 to 110.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


class Linear(nn.Linear):
    """`nn.Linear`, multiplied by oneDNN where that is faster: eagerly, on a CPU, in float32."""

    def forward(self, input: Float[Tensor, "*rows M"]) -> Float[Tensor, "*rows N"]:
        return _Product.apply(input, self.weight, self.bias, False) if self._fast(input) else super().forward(input)

    def _fast(self, input: Tensor) -> bool:
        single = input.device.type == "cpu" and input.dtype == self.weight.dtype == torch.float32
        elsewhere = _onednn is None or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
        return single and not elsewhere


class Rectified(Linear):
    """max(0, x W^T + b), in one operation where `Linear` is fast."""

    def forward(self, input: Float[Tensor, "*rows M"]) -> Float[Tensor, "*rows N"]:
        if self._fast(input):
            return _Product.apply(input, self.weight, self.bias, True)
        return F.relu(F.linear(input, self.weight, self.bias))


class _Product(torch.autograd.Function):
    """input weight^T + bias, rectified or not."""

    @staticmethod
    def forward(ctx, input: Tensor, weight: Tensor, bias: Tensor | None, rectified: bool) -> Tensor:
        output = _onednn(input, weight, bias, "relu" if rectified else "none", [], "")
        ctx.save_for_backward(input, weight, output if rectified else None)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (input, weight, output), needed = ctx.saved_tensors, ctx.needs_input_grad
        if output is not None:
            grad = torch.ops.aten.threshold_backward(grad, output, 0)
        rows = grad.flatten(0, -2)
        return (
            _onednn(grad, weight.t(), None, "none", [], "") if needed[0] else None,
            _onednn(rows.t(), input.flatten(0, -2).t(), None, "none", [], "") if needed[1] else None,
            rows.sum(dim=0) if needed[2] else None,
            None,
        )

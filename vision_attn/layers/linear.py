"""Linear layers that are fast on any CPU.

On CPUs torch multiplies float32 matrices with Intel's MKL, which reaches less than half of the peak rate of AMD
processors. oneDNN, which is part of torch too, has no such limit: on one thread of a 2.6 GHz EPYC, products of RAM's
sizes ran at 200 to 245 Gflop/s forward and backward, against 105 to 110 with MKL.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


class Linear(nn.Linear):
    """`nn.Linear` that uses oneDNN where that is faster: in eager mode, on a CPU, in float32."""

    def forward(self, input: Float[Tensor, "*rows M"]) -> Float[Tensor, "*rows N"]:
        return _Product.apply(input, self.weight, self.bias, False) if self._fast(input) else super().forward(input)

    def _fast(self, input: Tensor) -> bool:
        float32_on_cpu = input.device.type == "cpu" and input.dtype == self.weight.dtype == torch.float32
        unsupported = _onednn is None or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
        return float32_on_cpu and not unsupported


class Rectified(Linear):
    """A linear layer followed by ReLU, max(0, x W^T + b), in a single operation where `Linear` uses oneDNN."""

    def forward(self, input: Float[Tensor, "*rows M"]) -> Float[Tensor, "*rows N"]:
        if self._fast(input):
            return _Product.apply(input, self.weight, self.bias, True)
        return F.relu(F.linear(input, self.weight, self.bias))


class _Product(torch.autograd.Function):
    """input weight^T + bias, followed by a ReLU if `rectified`."""

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

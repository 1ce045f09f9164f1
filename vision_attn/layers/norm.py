"""Layer normalisation before a product."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vision_attn.kernels.launch import on_gpu
from vision_attn.layers.collected import product_dtype

MOST = 8192
"""The most features of a row that one program of a kernel holds."""


class PreNorm(nn.LayerNorm):
    """Layer normalisation whose output goes into linear layers alone. Under autocast on a GPU it is in their precision,
    rounded once, in place of a cast before each of them."""

    def forward(self, input: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        dtype = product_dtype(input)
        half = input.dtype == self.weight.dtype == torch.float32 != dtype
        if not half or torch.compiler.is_compiling() or input.shape[-1] > MOST or not on_gpu(input):
            return super().forward(input)
        rows = input.reshape(-1, input.shape[-1])
        return _Normalised.apply(rows, self.weight, self.bias, self.eps, dtype).view(input.shape)


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        from vision_attn.kernels import norm_triton as kernels

        output, moments = kernels.normalise(x, weight, bias, eps, dtype)
        ctx.save_for_backward(x, weight, moments)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        from vision_attn.kernels import norm_triton as kernels

        of_x, parts = kernels.gradients(grad, *ctx.saved_tensors)
        return of_x, *parts.sum(dim=0).unbind(), None, None

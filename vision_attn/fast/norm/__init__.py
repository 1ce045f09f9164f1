"""Layer normalisation that returns the precision of the products that follow it."""

from jaxtyping import Float
from torch import Tensor

from vision_attn.fast.versions import fast_version
from vision_attn.layers.norm import PreNorm
from vision_attn.layers.precision import product_dtype


class FastPreNorm(PreNorm):
    """`PreNorm`. Under autocast on a GPU, its output already has the precision of the linear layers that read it,
    instead of being cast before each of them."""

    def forward(self, input: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        dtype, kernels = product_dtype(input), fast_version("norm", input, self.weight)
        if dtype == input.dtype or kernels is None or input.shape[-1] > kernels.MOST:
            return super().forward(input)
        rows = input.reshape(-1, input.shape[-1])
        return kernels.Normalised.apply(rows, self.weight, self.bias, self.eps, dtype).view(input.shape)

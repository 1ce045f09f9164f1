"""Layer normalisation before a product."""

from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.kernels.choice import fused
from vision_attn.layers.collected import product_dtype


class PreNorm(nn.LayerNorm):
    """Layer normalisation whose output goes into linear layers alone. Under autocast on a GPU it is in their precision,
    rounded once, in place of a cast before each of them."""

    def forward(self, input: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        dtype, kernels = product_dtype(input), fused("norm", input, self.weight)
        if dtype == input.dtype or kernels is None or input.shape[-1] > kernels.MOST:
            return super().forward(input)
        rows = input.reshape(-1, input.shape[-1])
        return kernels.Normalised.apply(rows, self.weight, self.bias, self.eps, dtype).view(input.shape)

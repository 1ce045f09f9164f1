"""Expressions element by element that a GPU computes by one kernel."""

from jaxtyping import Float
from torch import Tensor

from vision_attn.fast.choice import fused
from vision_attn.layers.precision import product_dtype


def tanh_of_sum(
    a: Float[Tensor, "*rows D"], b: Float[Tensor, "*rows D"], c: Float[Tensor, "*rows D"]
) -> Float[Tensor, "*rows D"]:
    """tanh(a + b + c); on a GPU in the precision of the products that follow."""
    if a.shape == b.shape == c.shape and (kernels := fused("pointwise", a, b, c)):
        return kernels.TanhOfSum.apply(a, b, c, product_dtype(a))
    return (a + b + c).tanh()


def gated(gate: Float[Tensor, "*rows G"], x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
    """sigmoid(gate) x, with one gate for a row or for each feature."""
    kernels = fused("pointwise", gate, x)
    if kernels and gate.shape[-1] in (1, x.shape[-1]) and x.shape[-1] <= kernels.MOST:
        return kernels.Gated.apply(gate, x)
    return gate.sigmoid() * x

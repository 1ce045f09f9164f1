"""Soft attention: the expected annotation vector, and the penalty that spreads attention over the image."""

from jaxtyping import Float
from torch import Tensor


def expected_context(alpha: Float[Tensor, "B R L"], regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B R D"]:
    """z_t = sum_i alpha_ti a_i (Xu et al. 2015, eq. 13)."""
    return alpha.to(regions.dtype) @ regions


def doubly_stochastic(alpha: Float[Tensor, "B R T L"]) -> Float[Tensor, "B R"]:
    """sum_i (1 - sum_t alpha_ti)^2 of each caption (Xu et al. 2015, eq. 14); `alpha` is zero past a caption's end."""
    return (1 - alpha.float().sum(dim=2)).square().sum(dim=-1)

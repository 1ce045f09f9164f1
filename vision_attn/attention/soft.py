"""Soft attention: the expected annotation vector, and the penalty that spreads attention over the image."""

from jaxtyping import Bool, Float
from torch import Tensor, nn


class Soft(nn.Module):
    """z_t = sum_i alpha_ti a_i: the look at every region at once, with an exact gradient."""

    reinforced = False

    def coins(self, num_images: int, like: Tensor) -> None:
        """Nothing is tossed for: every look is the expected one."""

    def forward(
        self,
        alpha: Float[Tensor, "B R L"],
        regions: Float[Tensor, "B L D"],
        expected: Bool[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B R D"], None]:
        return expected_context(alpha, regions), None


def expected_context(alpha: Float[Tensor, "B R L"], regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B R D"]:
    """z_t = sum_i alpha_ti a_i (Xu et al. 2015, eq. 13)."""
    return alpha.to(regions.dtype) @ regions


def doubly_stochastic(alpha: Float[Tensor, "B R T L"]) -> Float[Tensor, "B R"]:
    """sum_i (1 - sum_t alpha_ti)^2 of each caption (Xu et al. 2015, eq. 14); `alpha` is zero past a caption's end."""
    return (1 - alpha.float().sum(dim=2)).square().sum(dim=-1)

"""Draw a picture of kernel regression: `python -m benchmarks.kernel_regression PICTURE`.

Left, f(x) = sum_i K(x - x_i) y_i / sum_j K(x - x_j) (Nadaraya 1964; Watson 1964) of 40 noisy points, by the score
`Kernel` and `Soft`: the query is x, the keys are x_i, and what is seen are y_i. Right, the weights of the points for
one query. The learned bandwidth is the one with the lowest error where each point is left out of its own estimate.
"""

import sys
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.charts import Axis, Chart, save
from vision_attn.attention.scores import Kernel
from vision_attn.attention.soft import Soft
from vision_attn.system.console import say

POINTS, NOISE, QUERY = 40, 0.5, 2.5
CURVE = torch.linspace(0, 5, 101)
FIXED = {"bandwidth 0.05": 0.05, "bandwidth 1": 1.0, "the mean (bandwidth 1000)": 1000.0}
STEPS = 150


class Estimate(NamedTuple):
    """f and the weights of the points at several x."""

    value: Float[Tensor, "R"]
    alpha: Float[Tensor, "R L"]


def function(x: Tensor) -> Tensor:
    """The function whose noisy values the points are."""
    return 2 * x.sin() + x**0.8


def sample(seed: int = 0) -> tuple[Float[Tensor, "L"], Float[Tensor, "L"]]:
    """x_i, in order, and y_i."""
    generator = torch.Generator().manual_seed(seed)
    x = 5 * torch.rand(POINTS, generator=generator).sort().values
    return x, function(x) + NOISE * torch.randn(POINTS, generator=generator)


def regress(score: Kernel, at: Float[Tensor, "R"], x: Tensor, y: Tensor, *, leave_out: bool = False) -> Estimate:
    """Estimate f. leave_out: without the point itself, for `at` = x."""
    scores, _ = score(at[None, :, None], score.project(x[None, :, None]))
    if leave_out:
        scores = scores.masked_fill(torch.eye(len(x), dtype=torch.bool), -torch.inf)
    seen = Soft()(scores, y[None, :, None])
    return Estimate(seen.context[0, :, 0], seen.alpha[0])


def learned(x: Tensor, y: Tensor) -> Kernel:
    """The kernel whose bandwidth minimises the mean squared error of points that are left out."""
    score = Kernel(1, 1, learned=True)
    optimizer = torch.optim.Adam(score.parameters(), lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (regress(score, x, x, y, leave_out=True).value - y).square().mean().backward()
        optimizer.step()
    return score


@torch.no_grad()
def charts(x: Tensor, y: Tensor, score: Kernel) -> list[Chart]:
    kernels = {f"learned bandwidth {score.log_bandwidth.exp():.2f}": score}
    kernels |= {name: Kernel(1, 1, bandwidth=bandwidth) for name, bandwidth in FIXED.items()}
    curves = {name: regress(kernel, CURVE, x, y).value for name, kernel in kernels.items()}
    weights = {name: regress(kernel, torch.tensor([QUERY]), x, y).alpha[0] for name, kernel in kernels.items()}
    points = {"points (x, y)": pairs(x, y)}
    values = (
        points | {"f(x)": pairs(CURVE, function(CURVE))} | {name: pairs(CURVE, curve) for name, curve in curves.items()}
    )
    beside = dict.fromkeys(values, []) | {name: pairs(x, weight) for name, weight in weights.items()}
    linear = Axis("x", logarithmic=False)
    return [
        Chart(values, linear, Axis("y", logarithmic=False), frozenset(points)),
        Chart(beside, linear, Axis(f"weight for the query {QUERY}", logarithmic=False)),
    ]


def pairs(x: Tensor, y: Tensor) -> list[tuple[float, float]]:
    return list(zip(x.tolist(), y.tolist(), strict=True))


def main(picture: str) -> None:
    x, y = sample()
    score = learned(x, y)
    with torch.no_grad():
        errors = {
            f"{bandwidth:g}": (regress(kernel, CURVE, x, y).value - function(CURVE)).square().mean().item()
            for kernel in (score, *(Kernel(1, 1, bandwidth=width) for width in FIXED.values()))
            for bandwidth in [float(f"{kernel.log_bandwidth.exp():.3g}")]
        }
    save(charts(x, y, score), picture)
    for bandwidth, error in errors.items():
        say(f"bandwidth {bandwidth}: mean squared error {error:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])

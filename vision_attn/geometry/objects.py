"""Convert maps over boxes of objects, which overlap and lie on no grid, to maps on a fine grid of the photograph."""

import torch
from jaxtyping import Float
from torch import Tensor

CELLS = 28
"""The number of rows and of columns of the fine grid."""


def over_photograph(
    alpha: Float[Tensor, "T 1 L"], boxes: Float[Tensor, "L 4"], cells: int = CELLS
) -> Float[Tensor, "T cells cells"]:
    """Return the weight of each cell of the photograph at each word: the sum of the weights of the boxes that cover the
    cell (as in the figures of Anderson et al. 2018), normalised so that a map sums to 1. A map of zeros stays zero.

    boxes: (x0, y0, x1, y1) in [-1, 1]. A box smaller than a cell is enlarged to the size of a cell.
    """
    low, high = boxes.double().view(-1, 2, 2).sort(dim=1).values.unbind(dim=1)  # (L, 2) each: (x, y) of two corners
    side = 2 / cells
    middle, half = ((low + high) / 2).clamp(-1 + side / 2, 1 - side / 2), ((high - low) / 2).clamp(min=side / 2)
    low, high = (torch.minimum(low, middle - half).clamp(min=-1), torch.maximum(high, middle + half).clamp(max=1))
    edges = torch.linspace(-1, 1, cells + 1, dtype=torch.float64)
    ends = torch.minimum(high[..., None], edges[1:]) - torch.maximum(low[..., None], edges[:-1])
    x, y = (ends.clamp(min=0) / side).unbind(dim=1)  # the share of each column and row that a box covers, (L, cells)
    covered = torch.einsum("tl,ly,lx->tyx", alpha.detach().cpu().double()[:, 0], y, x)
    return (covered / covered.sum(dim=(1, 2), keepdim=True).clamp(min=1e-300)).to(torch.float32)

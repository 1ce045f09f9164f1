"""Points, boxes and masks of a photograph as weights of regions."""

import pytest
import torch

from vision_attn.geometry.extents import Extent, centres
from vision_attn.geometry.places import RegionGrid, as_map


def centre_of(weights: torch.Tensor, grid: RegionGrid) -> tuple[float, float]:
    """The mean of the cells' centres, on the photograph."""
    inner = grid.extent.within(grid.seen)
    x, y = (weights.flatten()[:, None] * centres(grid.rows, grid.columns, inner)).sum(dim=0).tolist()
    return x, y


def test_a_point_has_its_four_cells_and_their_mean_is_where_it_is() -> None:
    grid = RegionGrid(3, 4, Extent(-0.9, -0.8, 0.7, 0.9), Extent(-0.75, -1, 0.75, 1))
    weights = grid.at_point(0.1, -0.2)
    assert (weights > 0).sum() == 4 and weights.sum() == pytest.approx(1)
    assert centre_of(weights, grid) == pytest.approx((0.1, -0.2), abs=1e-3)
    (x, y) = centres(3, 4, grid.extent.within(grid.seen))[6].tolist()
    assert grid.at_point(x, y).flatten()[6] > 0.999
    assert grid.at_point(-0.75, 1).flatten()[8] == 1  # a corner is the corner's cell
    assert grid.at_point(0.76, 0) is None and grid.at_point(0, 1.01) is None


def test_a_box_counts_by_area() -> None:
    grid = RegionGrid(2, 2)
    assert torch.equal(
        grid.on_mask(torch.ones(1, 1), Extent(-0.5, -1, 1, 0)), torch.tensor([[1, 2], [0, 0]]).double() / 3
    )
    assert grid.on_mask(torch.ones(1, 1), Extent(-1, -1, 1, 1)).tolist() == [[0.25, 0.25], [0.25, 0.25]]


def test_cells_of_the_border_reach_to_the_border_of_what_is_seen_and_not_beyond() -> None:
    grid = RegionGrid(1, 2, Extent(-0.5, -0.5, 0.5, 0.5), Extent(-0.5, -1, 0.5, 1))
    assert grid.on_mask(torch.ones(1, 1), Extent(-0.5, -1, -0.45, -0.9)).tolist() == [[1, 0]]
    assert grid.on_mask(torch.ones(1, 1), Extent(-1, -1, 0.25, 1)).tolist() == [[2 / 3, 1 / 3]]  # by what is seen of it
    assert grid.on_mask(torch.ones(1, 1), Extent(0.5, -1, 1, 1)) is None


def test_a_mask_of_many_pixels_is_the_sum_of_their_boxes() -> None:
    grid, mask = (
        RegionGrid(3, 3, seen=Extent(-0.5, -1, 0.5, 1)),
        torch.rand(5, 7, generator=torch.Generator().manual_seed(0)),
    )
    found = grid.on_mask(mask)
    total = torch.zeros(3, 3, dtype=torch.float64)
    for row in range(5):
        for column in range(7):
            box = Extent(-1 + 2 * column / 7, -1 + 2 * row / 5, -1 + 2 * (column + 1) / 7, -1 + 2 * (row + 1) / 5)
            inside = (min(box.x1, 0.5) - max(box.x0, -0.5)) / (box.x1 - box.x0)
            if inside > 0:
                total += mask[row, column] * inside * grid.on_mask(torch.ones(1, 1), box)
    torch.testing.assert_close(found, total / total.sum())
    one = torch.zeros(100, 100)
    one[50, 10] = 1
    assert grid.on_mask(one) is None  # on a part that the model does not see


def test_a_map_stays_as_it_is_to_the_bit() -> None:
    weights = torch.rand(3, 3).softmax(dim=0) / 3
    assert as_map(weights) is weights
    torch.testing.assert_close(as_map(7 * weights), weights)

"""Insertion and deletion curves."""

import pytest
import torch
from torch import Tensor

from vision_attn.faithfulness.curves import best_order, perturbation_curves
from vision_attn.metrics.perturbations import constant
from vision_attn.system.errors import UserError


def brightness(images: Tensor) -> Tensor:
    """The mean of the upper left quarter: what a good map points at."""
    return images[:, 0, :4, :4].mean(dim=(1, 2))


def test_curves_follow_the_order_of_the_map() -> None:
    image = torch.ones(1, 8, 8)
    good = torch.zeros(4, 4)
    good[:2, :2] = 1
    curves = perturbation_curves(brightness, image, good, steps=4, fill=constant(torch.zeros(1, 8, 8)))
    assert curves.deletion.tolist() == [1, 0, 0, 0, 0] and curves.insertion.tolist() == [0, 1, 1, 1, 1]
    assert curves.areas == {"deletion": 0.125, "insertion": 0.875}
    bad = perturbation_curves(brightness, image, 1 - good, steps=4, fill=constant(torch.zeros(1, 8, 8)))
    assert bad.deletion.tolist() == [1, 1, 1, 1, 0] and bad.areas == {"deletion": 0.875, "insertion": 0.125}


def test_an_empty_image_is_of_the_mean_colour_by_default() -> None:
    image = torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(0))
    curves = perturbation_curves(lambda images: images[:, 1].mean(dim=(1, 2)), image, torch.rand(3, 3), steps=9)
    torch.testing.assert_close(curves.deletion[[0, -1]], image[1].mean().expand(2))
    assert len(curves.insertion) == 10 and curves.insertion.std() > 0
    with pytest.raises(UserError, match="steps is 0, but must be at least 1"):
        perturbation_curves(brightness, image, torch.rand(3, 3), steps=0)


def test_the_best_order_takes_what_the_score_depends_on_first() -> None:
    """Greedily found, in both directions; several maps at once give the curves of each."""
    image, fill = torch.ones(1, 8, 8), constant(torch.zeros(1, 8, 8))
    found = [best_order(brightness, image, (4, 4), sign=sign, fill=fill) for sign in (1, -1)]
    true = torch.zeros(4, 4)
    true[:2, :2] = 1
    curves = perturbation_curves(brightness, image, torch.stack([*found, true]), steps=16, fill=fill)
    assert curves.deletion.shape == (3, 17)
    assert curves.deletion[0].tolist() == curves.deletion[2].tolist() == [1, 0.75, 0.5, 0.25] + 13 * [0]
    assert curves.insertion[1].tolist() == [0, 0.25, 0.5, 0.75] + 13 * [1]
    alone = perturbation_curves(brightness, image, true, steps=16, fill=fill)
    assert alone.areas["deletion"] == curves.areas["deletion"][2]

"""The generation task: the bound by hand, the estimate of log p(x) against an integral, binarisation, every config."""

import json
import math
from functools import partial

import pytest
import torch
from PIL import Image
from torch import nn

from tests.whole_runs import two_steps
from vision_attn.contracts import DrawOutput
from vision_attn.data.binarisation import fixed, stochastic
from vision_attn.data.digits.mnist import DigitBatch
from vision_attn.models.draw import DRAW, ReadImage, WriteImage
from vision_attn.system.errors import UserError
from vision_attn.task import Source
from vision_attn.tasks.generate import Generation

GOLDEN = 0b001000010001000000001001111100111101101111101111
CONFIGS = ["draw_mnist", "draw_mnist_no_attention", "draw_mnist_small", "draw_two_digits"]


class Nothing(Source):
    image_shape = (1, 6, 5)


class Told(nn.Module):
    """A model that assigns every image a given likelihood."""

    def __init__(self, log_prob: list[float], kl: list[list[float]], log_ratio: list[list[float]]):
        super().__init__()
        self.told, self.calls = [torch.tensor(numbers) for numbers in (log_prob, kl, log_ratio)], 0
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images) -> DrawOutput:
        self.calls += 1
        log_prob, kl, log_ratio = (numbers[: len(images)] for numbers in self.told)
        return DrawOutput((), (), (), log_prob + 0 * self.weight, kl, log_ratio + math.log(self.calls))


def small(**options) -> Generation:
    torch.manual_seed(0)
    settings = {"num_steps": 3, "hidden_size": 7, "latent_size": 4}
    return Generation(Nothing(), model=lambda shape: DRAW(shape, **settings), **options)


def batch(number: int = 4) -> DigitBatch:
    images = torch.rand(number, 1, 6, 5, generator=torch.Generator().manual_seed(1))
    return DigitBatch(images, torch.zeros(number, dtype=torch.long), torch.ones(number, 4))


def test_the_bound_by_hand(tmp_path):
    """Two images of 80 + 3 and 90 + 7 nats; log p(x) of the first three images of two batches, two samples each."""
    told = Told([-80.0, -90.0], [[1.0, 2.0], [3.0, 4.0]], [[-1.0, -1.0], [-2.0, -3.0]])
    task = Generation(Nothing(), model=lambda shape: told, importance_samples=2, importance_images=3)
    scalars = task(*batch(2))
    assert {name: value.item() for name, value in scalars.items()} == {"loss": 90, "reconstruction": 85, "kl": 5}
    assert not scalars["kl"].requires_grad and scalars["loss"].requires_grad
    told.calls = 0
    metrics = task.evaluate([batch(2), batch(2)], tmp_path)
    assert (metrics["bound"], metrics["reconstruction"], metrics["kl"]) == (90, 85, 5)
    assert json.loads((tmp_path / "steps.json").read_text()) == {"kl": [2, 3]}
    assert (metrics["nll_images"], metrics["nll_samples"]) == (3, 2)
    assert metrics["nll_bound"] == pytest.approx((83 + 97 + 83) / 3)
    # Call n adds log n at each of two time steps: 1 and 2 are the bounds, so that what is left to do is known after
    # them; 3 and 4 estimate the first batch, 5 and 6 the second.
    (first, second), later = (math.log((3**2 + 4**2) / 2) - known for known in (82, 95)), math.log((25 + 36) / 2) - 82
    assert metrics["nll"] == pytest.approx(-(first + second + later) / 3)


def test_without_a_folder_only_the_bound_is_computed():
    told = Told([-80.0, -90.0], [[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]])
    metrics = Generation(Nothing(), model=lambda shape: told).evaluate([batch(2)])
    assert metrics.keys() == {"bound", "reconstruction", "kl"} and told.calls == 1


def log_likelihood(model: DRAW, images: torch.Tensor) -> torch.Tensor:
    """log p(x) for a single z of size 1: an integral over z, as a sum over a fine grid of its noise."""
    epsilon = torch.linspace(-9, 9, 6001)
    density = torch.distributions.Normal(0.0, 1.0).log_prob(epsilon) + math.log(18 / 6000)
    found = []
    for image in images:
        drawing = model(image.expand(len(epsilon), -1, -1, -1), epsilon.view(1, -1, 1, 1))
        found.append((drawing.log_prob + drawing.log_ratio[:, 0] + density).logsumexp(dim=0))
    return torch.stack(found)


@torch.no_grad()
def test_the_estimate_is_the_likelihood_and_the_bound_is_below_it():
    """p(x) depends on the decoder alone, so different encoders must give the same integral."""
    models = []
    for seed in (1, 2):
        torch.manual_seed(0)
        model = DRAW((1, 3, 3), num_steps=1, hidden_size=5, latent_size=1, read=ReadImage, write=WriteImage)
        model.write.image.weight.mul_(8)
        model.decoder_gates.weight.mul_(3)
        torch.manual_seed(seed)
        model.encoder_gates.weight.normal_()
        models.append(model)
    images = torch.rand(5, 1, 3, 3, generator=torch.Generator().manual_seed(3)).round()
    truth = log_likelihood(models[0], images)
    torch.testing.assert_close(log_likelihood(models[1], images), truth, rtol=1e-4, atol=1e-4)
    many = images.repeat(100, 1, 1, 1)
    for model in models:
        task = Generation(Nothing(), model=lambda shape, model=model: model, importance_samples=20)
        estimate = task.log_likelihood(many).view(100, 5)
        torch.testing.assert_close(estimate.logsumexp(dim=0) - math.log(100), truth, rtol=0, atol=0.05)
        drawing = model(many)
        bound = (drawing.log_prob - drawing.kl[:, 0]).view(100, 5).mean(dim=0)
        assert (bound < truth + 0.05).all() and bound.mean() < estimate.mean() - 0.02
        assert estimate.mean() < truth.mean() + 0.01  # in expectation, the estimate from k samples is below too


def test_fixed_pixels_do_not_depend_on_the_batch_and_differ_between_images():
    images = batch(64).images
    once = fixed(images)
    assert set(once.unique().tolist()) == {0, 1}
    order = torch.randperm(64)
    assert torch.equal(fixed(images[order]), once[order]) and torch.equal(fixed(images), once)
    same = torch.full((1, 1, 28, 28), 128 / 255)
    other = same.clone()
    other[..., 0, 0] += 1 / 255
    assert 0.4 < (fixed(same) != fixed(other)).float().mean() < 0.6


@pytest.mark.parametrize("draw", [fixed, stochastic])
def test_pixels_are_ones_as_often_as_they_are_bright(draw):
    torch.manual_seed(0)
    level = torch.tensor([0, 40, 128, 230, 255]).repeat(4000).view(1, 1, 200, 100) / 255
    for name in (0, 40, 128, 230, 255):
        share = draw(level)[(level * 255).round() == name].mean().item()
        assert share == pytest.approx(name / 255, abs=0 if name in (0, 255) else 0.025)


def test_fixed_pixels_are_the_same_on_every_machine():
    levels = torch.arange(48).view(1, 1, 6, 8) * 5 / 255
    assert int("".join(f"{int(pixel)}" for pixel in fixed(levels).flatten()), 2) == GOLDEN


def test_binarisation_applies_to_training():
    levels = batch()
    for binarisation, alike in (("fixed", True), ("stochastic", False)):
        task = small(binarisation=binarisation)
        assert torch.equal(task.binarised(levels.images), task.binarised(levels.images)) is alike


def test_pictures(tmp_path):
    paths = small().show(batch(3), tmp_path)
    assert [path.name for path in paths] == ["index.html", "samples.gif", "samples.png", "reconstructions.png"]
    assert Image.open(paths[1]).n_frames > 1
    whole = Generation(Nothing(), model=partial(DRAW, num_steps=2, read=ReadImage, write=WriteImage))
    assert all(path.exists() for path in whole.show(batch(3), tmp_path / "whole"))


def test_mistakes_are_named():
    with pytest.raises(UserError, match="split is empty"):
        small().evaluate([])
    with pytest.raises(UserError, match="importance_samples is 0"):
        small(importance_samples=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_takes_two_steps(name, tmp_path):
    settings = {
        "data.batch_size": 2 if name == "draw_two_digits" else 150,
        "task.model.num_steps": 2,
        "task.model.hidden_size": 8,
        "task.importance_images": 2,
        "task.importance_samples": 2,
        "run.validate_every": 0,
        "run.show": 0,
    }
    if name == "draw_two_digits":
        settings |= {"data.epoch_images": 4, "data.test_images": 4}
    metrics = two_steps(name, tmp_path, **settings)
    assert metrics["bound"] == pytest.approx(metrics["reconstruction"] + metrics["kl"])
    assert metrics["nll_images"] == 2 and (tmp_path / "steps_test.json").exists()

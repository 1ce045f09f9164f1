"""DRAW, the generative model: against the paper's equations, one number at a time; its gradients and its samples."""

from functools import partial

import pytest
import torch

from tests import references_draw
from tests.ways import prepared
from vision_attn.models.draw import DRAW, ReadImage, ReadPatch, WriteImage, WritePatch, divergence
from vision_attn.system.errors import UserError

pytestmark = pytest.mark.usefixtures("both_ways")

B, T, Z, SHAPE = 2, 3, 4, (2, 6, 5)
PARTS = [
    pytest.param(partial(ReadPatch, size=2), partial(WritePatch, size=3), id="attention"),
    pytest.param(ReadImage, WriteImage, id="whole"),
    pytest.param(ReadImage, partial(WritePatch, size=3), id="writes with attention"),
]


def build(read=PARTS[0].values[0], write=PARTS[0].values[1], **options) -> DRAW:
    torch.manual_seed(0)
    settings = {"num_steps": T, "hidden_size": 7, "latent_size": Z} | options
    model = DRAW(SHAPE, read=read, write=write, **settings)
    with torch.no_grad():  # parameters that start at zero must count too
        for first in (model.first_canvas, model.first_encoded, model.first_decoded):
            first.uniform_(-1, 1)
    return prepared(model)


def images(number: int = B) -> torch.Tensor:
    return torch.rand(number, *SHAPE, generator=torch.Generator().manual_seed(1)).round()


def noise(number: int = B, num_steps: int = T) -> torch.Tensor:
    return torch.randn(num_steps, number, 1, Z, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("read, write", PARTS)
def test_it_follows_the_papers_equations(read, write):
    model = build(read, write).double()
    drawing = model(images().double(), noise().double())
    weights = references_draw.paper_weights(model)
    for b in range(B):
        wanted = references_draw.draw(weights, images()[b].double().numpy(), noise()[:, b, 0].double().numpy())
        for canvas, expected in zip(drawing.canvases, wanted.canvases, strict=True):
            torch.testing.assert_close(canvas[b], torch.from_numpy(expected))
        assert drawing.log_prob[b].item() == pytest.approx(wanted.log_prob)
        assert drawing.kl[b].tolist() == pytest.approx(wanted.kl)
        assert drawing.log_ratio[b].tolist() == pytest.approx(wanted.log_ratio)


def test_the_kl_is_zero_where_the_posterior_is_the_prior_for_any_number_of_time_steps():
    """Its constant is the size of z. With the number of time steps instead, as in some replications, it is not 0."""
    model = build()
    torch.nn.init.zeros_(model.latent.weight)
    torch.nn.init.zeros_(model.latent.bias)
    for num_steps in (1, T, 9):
        drawing = model(images(), noise(num_steps=num_steps))
        torch.testing.assert_close(drawing.kl, torch.zeros(B, num_steps))
        torch.testing.assert_close(drawing.log_ratio, torch.zeros(B, num_steps))


def test_the_kl_is_that_of_normal_distributions():
    mean, log_sigma = torch.randn(2, 5, Z, dtype=torch.double)
    posterior, prior = torch.distributions.Normal(mean, log_sigma.exp()), torch.distributions.Normal(0.0, 1.0)
    wanted = torch.distributions.kl_divergence(posterior, prior).sum(dim=-1)
    torch.testing.assert_close(divergence(mean, log_sigma), wanted)


@pytest.mark.parametrize("read, write", PARTS)
def test_everything_learns(read, write):
    model = build(read, write)
    drawing = model(images())
    (drawing.kl.sum() - drawing.log_prob.sum()).backward()
    assert not [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert not drawing.log_ratio.requires_grad


def test_gradients_equal_finite_differences():
    model = build(num_steps=2, hidden_size=3, latent_size=2).double()
    names, weights = zip(*model.named_parameters(), strict=True)
    x, epsilon = images().double(), noise(num_steps=2)[..., :2].double()

    def bound(*weights):
        drawing = torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (x, epsilon))
        return drawing.kl.sum() - drawing.log_prob.sum()

    assert torch.autograd.gradcheck(bound, weights, fast_mode=True)


@pytest.mark.parametrize("read, write", PARTS)
def test_there_is_a_window_for_each_time_step(read, write):
    drawing = build(read, write)(images())
    for part, windows in ((read, drawing.reads), (write, drawing.writes)):
        assert len(windows) == T
        assert all((window is None) == (part in (ReadImage, WriteImage)) for window in windows)
        assert all(window is None or window.centre.shape == (B, 1, 2) for window in windows)


def test_samples_are_what_the_decoder_makes_of_the_prior():
    """Where the posterior is the prior, a reconstruction is a new image."""
    model = build()
    torch.nn.init.zeros_(model.latent.weight)
    torch.nn.init.zeros_(model.latent.bias)
    sampled = model.sample(B, num_steps=9, generator=torch.Generator().manual_seed(2))
    drawing = model(images(), noise(num_steps=9))
    for sample, canvas in zip(sampled.canvases, drawing.canvases, strict=True):
        torch.testing.assert_close(sample, canvas)
    for sample, window in zip(sampled.writes, drawing.writes, strict=True):
        torch.testing.assert_close(sample, window)
    assert sampled.log_prob is None and sampled.kl is None and not sampled.canvases[-1].requires_grad


def test_samples_follow_the_seed():
    model = build()
    with pytest.raises(UserError, match="num_steps is 0, but must be from 1"):
        model.sample(3, 0)
    first, again, other = (model.sample(3, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert len(first.canvases) == T and torch.equal(first.canvases[-1], again.canvases[-1])
    assert not torch.equal(first.canvases[-1], other.canvases[-1])


def test_initially_a_patch_is_written_at_full_strength():
    """A patch of ones gives, well inside the image, a canvas of about ones."""
    write = WritePatch(4, (1, 28, 28), size=5)
    torch.nn.init.zeros_(write.patch.weight)
    torch.nn.init.ones_(write.patch.bias)
    stroke, _ = write(torch.zeros(1, 1, 4))
    assert (stroke[..., 9:19, 9:19] - 1).abs().max() < 0.15


def test_sizes_are_the_papers_by_default():
    model = DRAW((1, 28, 28))
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert model.num_steps == 64 and shapes["latent.weight"] == (200, 256)
    assert shapes["encoder_gates.weight"] == (1024, 2 * 4 + 512) and shapes["decoder_gates.weight"] == (1024, 356)
    assert shapes["write.patch.weight"] == (25, 256)


def test_bfloat16_keeps_the_bound_in_float32():
    model = build()
    with torch.autocast("cpu", torch.bfloat16):
        drawing = model(images(), noise())
    exact = model(images(), noise())
    assert drawing.log_prob.dtype == drawing.kl.dtype == drawing.canvases[-1].dtype == torch.float32
    torch.testing.assert_close(drawing.log_prob, exact.log_prob, rtol=0.02, atol=0.1)


def test_zero_time_steps_are_refused():
    with pytest.raises(UserError, match="num_steps is 0"):
        build(num_steps=0)

"""DRAW, the generative one: against the paper's equations, one number at a time; what learns; what samples are."""

from functools import partial

import pytest
import torch

from tests import references_draw
from vision_attn.models.draw import DRAW, ReadImage, ReadPatch, WriteImage, WritePatch, divergence

B, T, Z, SHAPE = 2, 3, 4, (2, 6, 5)
PARTS = [
    pytest.param(partial(ReadPatch, size=2), partial(WritePatch, size=3), id="attention"),
    pytest.param(ReadImage, WriteImage, id="whole"),
    pytest.param(ReadImage, partial(WritePatch, size=3), id="writes with attention"),
]


def build(read=PARTS[0].values[0], write=PARTS[0].values[1], **options) -> DRAW:
    torch.manual_seed(0)
    settings = {"num_turns": T, "hidden_size": 7, "latent_size": Z} | options
    model = DRAW(SHAPE, read=read, write=write, **settings)
    with torch.no_grad():  # what begins as zeros must count too
        for first in (model.first_canvas, model.first_encoded, model.first_decoded):
            first.uniform_(-1, 1)
    return model


def images(number: int = B) -> torch.Tensor:
    return torch.rand(number, *SHAPE, generator=torch.Generator().manual_seed(1)).round()


def noise(number: int = B, turns: int = T) -> torch.Tensor:
    return torch.randn(turns, number, 1, Z, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("read, write", PARTS)
def test_it_is_the_papers(read, write):
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


def test_the_kl_is_zero_where_nothing_is_told_however_many_turns_there_are():
    """Its constant is the size of z. With the number of turns there, as some replications have it, it is not 0."""
    model = build()
    torch.nn.init.zeros_(model.latent.weight)
    torch.nn.init.zeros_(model.latent.bias)
    for turns in (1, T, 9):
        drawing = model(images(), noise(turns=turns))
        torch.testing.assert_close(drawing.kl, torch.zeros(B, turns))
        torch.testing.assert_close(drawing.log_ratio, torch.zeros(B, turns))


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


def test_gradients_are_those_of_small_steps():
    model = build(num_turns=2, hidden_size=3, latent_size=2).double()
    names, weights = zip(*model.named_parameters(), strict=True)
    x, epsilon = images().double(), noise(turns=2)[..., :2].double()

    def bound(*weights):
        drawing = torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (x, epsilon))
        return drawing.kl.sum() - drawing.log_prob.sum()

    assert torch.autograd.gradcheck(bound, weights, fast_mode=True)


@pytest.mark.parametrize("read, write", PARTS)
def test_windows_are_those_of_each_turn(read, write):
    drawing = build(read, write)(images())
    for part, windows in ((read, drawing.reads), (write, drawing.writes)):
        assert len(windows) == T
        assert all((window is None) == (part in (ReadImage, WriteImage)) for window in windows)
        assert all(window is None or window.centre.shape == (B, 1, 2) for window in windows)


def test_samples_are_what_the_decoder_draws_of_the_prior():
    """Where the posterior is the prior, drawing an image again is drawing a new one."""
    model = build()
    torch.nn.init.zeros_(model.latent.weight)
    torch.nn.init.zeros_(model.latent.bias)
    sampled = model.sample(B, num_steps=9, generator=torch.Generator().manual_seed(2))
    drawing = model(images(), noise(turns=9))
    for sample, canvas in zip(sampled.canvases, drawing.canvases, strict=True):
        torch.testing.assert_close(sample, canvas)
    for sample, window in zip(sampled.writes, drawing.writes, strict=True):
        torch.testing.assert_close(sample, window)
    assert sampled.log_prob is None and sampled.kl is None and not sampled.canvases[-1].requires_grad


def test_samples_follow_the_seed():
    model = build()
    first, again, other = (model.sample(3, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert len(first.canvases) == T and torch.equal(first.canvases[-1], again.canvases[-1])
    assert not torch.equal(first.canvases[-1], other.canvases[-1])


def test_at_first_a_patch_is_written_as_strongly_as_it_is():
    """A patch of ones gives, well inside the image, a canvas of about ones."""
    write = WritePatch(4, (1, 28, 28), size=5)
    torch.nn.init.zeros_(write.patch.weight)
    torch.nn.init.ones_(write.patch.bias)
    stroke, _ = write(torch.zeros(1, 1, 4))
    assert (stroke[..., 9:19, 9:19] - 1).abs().max() < 0.15


def test_sizes_are_the_papers_by_default():
    model = DRAW((1, 28, 28))
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert model.num_turns == 64 and shapes["latent.weight"] == (200, 256)
    assert shapes["encoder.weight"] == (1024, 2 * 4 + 512) and shapes["decoder.weight"] == (1024, 356)
    assert shapes["write.patch.weight"] == (25, 256)


def test_bfloat16_keeps_the_bound_in_float32():
    model = build()
    with torch.autocast("cpu", torch.bfloat16):
        drawing = model(images(), noise())
    exact = model(images(), noise())
    assert drawing.log_prob.dtype == drawing.kl.dtype == drawing.canvases[-1].dtype == torch.float32
    torch.testing.assert_close(drawing.log_prob, exact.log_prob, rtol=0.02, atol=0.1)


def test_no_turn_is_refused():
    with pytest.raises(ValueError, match="num_turns is 0"):
        build(num_turns=0)

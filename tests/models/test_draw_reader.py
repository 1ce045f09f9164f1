"""DRAW's classifier: its recurrence against a slow version, its windows, its gradients and its configs."""

from functools import partial

import numpy as np
import pytest
import references_filterbank as reference
import torch

from tests.ways import prepared
from tests.whole_runs import two_steps
from vision_attn.models.convolutions import Context, PatchFeatures
from vision_attn.models.draw import DRAWReader
from vision_attn.system.errors import UserError
from vision_attn.task import Source
from vision_attn.tasks.classify import Classification

pytestmark = pytest.mark.usefixtures("both_ways")

B, T, SHAPE, CLASSES, N, H = 3, 4, (2, 11, 14), 5, 3, 6
PARTS = {
    "features": partial(PatchFeatures, size=7, filters=(3, 4)),
    "context": partial(Context, side=5, filters=(2, 3)),
}


class Nothing(Source):
    image_shape, num_classes = SHAPE, CLASSES


def build(**options) -> DRAWReader:
    torch.manual_seed(0)
    return prepared(DRAWReader(SHAPE, CLASSES, **{"num_glimpses": T, "size": N, "hidden_size": H} | options))


def images(number: int = B) -> torch.Tensor:
    return torch.rand(number, *SHAPE, generator=torch.Generator().manual_seed(1))


def sigmoid(numbers: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-numbers))


def moved(model: DRAWReader) -> DRAWReader:
    """The model with large weights, so that windows move far and differ between images."""
    with torch.no_grad():
        model.filterbank.numbers.weight *= 4
        if model.context:
            model.initial.weight.normal_(std=0.3)
    return model


@pytest.mark.parametrize("parts", [{}, PARTS], ids=["paper", "features and context"])
@pytest.mark.parametrize("relative", [False, True])
def test_the_recurrence_follows_the_papers_equations(relative, parts):
    """One image and one filter at a time, with the paper's windows and with relative ones."""
    model, (_, Y, X) = moved(build(relative=relative, **parts).double()), SHAPE
    glance = model(images().double())
    assert glance.log_prob.shape == (B, 1, T, CLASSES) and glance.locations.shape == (B, 1, T, 2)
    assert glance.choice is None and glance.locations.std(dim=2).min() > 0.01
    weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    for b, image in enumerate(images().double().numpy()):
        h = c = np.zeros(H)
        if parts:
            context = model.context(torch.from_numpy(image)[None])[0].detach().numpy()
            h, c = np.split(weights["initial.weight"] @ context + weights["initial.bias"], 2)
            h = np.tanh(h)
        g_x, g_y, delta = (X + 1) / 2, (Y + 1) / 2, (X - 1) / (N - 1)
        features = 0
        for t in range(T):
            numbers = weights["filterbank.numbers.weight"] @ h + weights["filterbank.numbers.bias"]
            if relative:
                g_x, g_y, delta, sigma, gamma = reference.moved(numbers, (g_x, g_y, delta), X, Y, N)
            else:
                g_x, g_y, delta, sigma, gamma = reference.window(numbers, X, Y, N)
            F_x, F_y = reference.filters(g_x, delta, sigma, N, X), reference.filters(g_y, delta, sigma, N, Y)
            patch = np.concatenate([reference.read(channel, F_x, F_y, gamma).ravel() for channel in image])
            gates = weights["gates.weight"] @ np.concatenate([patch, h]) + weights["gates.bias"]
            i, f, o, candidate = np.split(gates, 4)  # input, forget and output gate
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(candidate)
            h = sigmoid(o) * np.tanh(c)
            seen = h
            if parts:
                shown = torch.from_numpy(patch).view(1, 1, SHAPE[0], N, N)
                features = features + model.features(shown)[0].detach().numpy()
                seen = np.concatenate([h, features])
            scores = weights["action.weight"] @ seen + weights["action.bias"]
            log_prob = scores - np.log(np.exp(scores).sum())
            np.testing.assert_allclose(glance.log_prob[b, 0, t].detach(), log_prob, atol=1e-10)
            location = ((2 * g_x - 1) / X - 1, (2 * g_y - 1) / Y - 1)  # pixel a's centre is at (2 a - 1) / X - 1
            np.testing.assert_allclose(glance.locations[b, 0, t].detach(), location, atol=1e-10)


def test_windows_are_where_it_looked():
    """The first covers the whole image; reading through all windows again returns the patches that the model saw."""
    model = build()
    glance = model(images())
    windows = glance.windows
    torch.testing.assert_close(model.filterbank.locations(windows), glance.locations[:, 0])
    assert windows.stride.shape == (B, T)
    assert (glance.locations[:, 0, 0] == 0).all() and (model.filterbank.boxes(windows)[:, 0].abs() > 0.9).all()
    seen, first = model.filterbank.read(images(), windows), model.filterbank.window(torch.zeros(B, 1, H))
    assert seen.shape == (B, T, SHAPE[0], N, N)
    torch.testing.assert_close(seen[:, :1], model.filterbank.read(images(), first))


def test_a_context_starts_as_a_state_of_zeros_and_then_moves_the_first_window():
    model = build(**PARTS)
    assert (model(images()).locations[:, 0, 0] == 0).all()
    first = moved(model)(images()).locations[:, 0, 0]
    assert (first[0] - first[1]).abs().max() > 0.01


@pytest.mark.parametrize("parts", [{}, PARTS], ids=["paper", "features and context"])
def test_an_image_does_not_depend_on_its_batch(parts):
    model = moved(build(**parts))
    torch.testing.assert_close(model(images()[1:2]).log_prob, model(images()).log_prob[1:2])
    assert model(images(), rows=7, mode="mean").log_prob.shape == (B, 1, T, CLASSES)  # copies would be identical


@pytest.mark.parametrize("parts", [{}, PARTS], ids=["paper", "features and context"])
def test_the_loss_of_the_last_answer_trains_the_windows(parts):
    """It has a gradient for every weight, those of the windows included; the first window only depends on a bias."""
    model = moved(build(**parts))
    model(images()).log_prob[..., -1, 0].sum().backward()
    assert all(weight.grad.abs().sum() > 0 for weight in model.parameters())
    assert (model.filterbank.numbers.weight.grad.abs().sum(dim=1) > 0).all()
    one = build(num_glimpses=1)
    one(images()).log_prob[..., 0].sum().backward()
    assert one.filterbank.numbers.weight.grad.abs().sum() == 0  # its state was 0
    assert (one.filterbank.numbers.bias.grad != 0).all()


def test_under_autocast_locations_stay_in_float32():
    model = build()
    exact = model(images())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(images())
    assert rough.locations.dtype == torch.float32
    torch.testing.assert_close(rough.log_prob.float(), exact.log_prob, atol=0.05, rtol=0)
    rough.log_prob.sum().backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


def test_the_task_takes_it():
    task = Classification(Nothing(), model=partial(DRAWReader, num_glimpses=T, size=N, hidden_size=H), early_weight=0.3)
    assert task.reinforce is None and task.rows == 1
    metrics = task(images(), torch.arange(B))
    glance = task.model(images())
    nll = -torch.stack([glance.log_prob[b, 0, :, b] for b in range(B)]).mean(dim=0)
    torch.testing.assert_close(metrics["loss"], nll[-1] + 0.3 * nll[:-1].mean())


def test_what_it_reads():
    assert build().pixels == T * SHAPE[0] * N * N
    assert build(**PARTS).pixels == T * SHAPE[0] * N * N + SHAPE[0] * 5 * 5
    model = DRAWReader((1, 100, 100), 10)
    assert model.pixels == 8 * 144 and model.gates.weight.shape == (1024, 400)


def test_it_needs_at_least_one_glimpse():
    with pytest.raises(UserError, match="num_glimpses is 0"):
        build(num_glimpses=0)


def test_a_deterministic_model_has_one_value_of_at_test():
    with pytest.raises(UserError, match="at_test is copies, but DRAWReader samples no glimpses"):
        Classification(Nothing(), model=DRAWReader, at_test="copies")


@pytest.mark.parametrize(
    "name", ["draw_reader_cluttered60", "draw_reader_cluttered100", "draw_reader_cluttered100_pixels"]
)
def test_every_config_takes_two_steps(name, tmp_path):
    settings = {"data.batch_size": 16, "data.epoch_images": 32, "data.val_images": 16, "data.test_images": 16}
    metrics = two_steps(name, tmp_path, **settings)
    assert "error_copies" not in metrics and metrics["pixels"] == (8 if "pixels" in name else 4 + 1) * 144


@pytest.mark.parametrize("relative", [False, True])
def test_given_boxes_are_those_that_are_read(relative):
    """The boxes of its own windows, given, change nothing; a NaN leaves the window to the model."""
    model = moved(build(relative=relative)).eval()
    own = model(images())
    again = model(images(), given=model.filterbank.boxes(own.windows))
    for after, before in zip((*again.windows, again.log_prob), (*own.windows, own.log_prob), strict=True):
        torch.testing.assert_close(after, before)
    given = torch.full((B, T, 4), torch.nan)
    given[:, 1] = torch.tensor([-0.5, -0.25, 0.25, 0.5])  # of 14 x 11 pixels: 5.25 wide, 4.125 high
    forced = model(images(), given=given)
    assert torch.equal(forced.log_prob[:, :, 0], own.log_prob[:, :, 0])
    assert (forced.log_prob[:, :, 1:] != own.log_prob[:, :, 1:]).any(dim=-1).all()
    torch.testing.assert_close(forced.windows.stride[:, 1], torch.full((B,), 5.25 / N))
    centre = torch.tensor([-0.125 * 7 + 7.5, 0.125 * 5.5 + 6])
    torch.testing.assert_close(forced.windows.centre[:, 1], centre.expand(B, 2))
    ratio = own.windows.sigma[:, 1] / own.windows.stride[:, 1]
    torch.testing.assert_close(forced.windows.sigma[:, 1] / forced.windows.stride[:, 1], ratio)

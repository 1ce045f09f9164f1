"""RAM and its baselines: shapes, the recurrence against a slow version, which loss trains which part, and the cost."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from tests.ways import prepared
from vision_attn.attention.glimpse import Retina
from vision_attn.models.convolutions import Context
from vision_attn.models.draw import DRAWReader
from vision_attn.models.policies import Anywhere, Gaussian
from vision_attn.models.ram import LSTM, RAM, ContextLSTM, GlimpseNetwork, Rectifier
from vision_attn.models.vit import VisionTransformer
from vision_attn.models.whole_image import Convolutional, FullyConnected
from vision_attn.system.errors import UserError
from vision_attn.tasks.cost import multiply_adds

pytestmark = pytest.mark.usefixtures("both_ways")

CORES = [
    pytest.param(partial(Rectifier, hidden_size=7), id="rectifier"),
    pytest.param(partial(LSTM, hidden_size=7), id="LSTM"),
    pytest.param(partial(ContextLSTM, hidden_size=7, place_size=6, context_side=5, filters=(2, 3)), id="context"),
]
B, R, T, N, SHAPE = 3, 4, 5, 6, (2, 20, 16)


def build(core=LSTM, **options) -> RAM:
    torch.manual_seed(0)
    glimpse = partial(GlimpseNetwork, what_size=9, where_size=5, glimpse_size=8)
    settings = {"num_glimpses": T, "retina": partial(Retina, size=4, num_scales=2), "glimpse": glimpse} | options
    return prepared(RAM(SHAPE, N, core=core, **settings))


def images(number: int = B) -> torch.Tensor:
    return torch.rand(number, *SHAPE, generator=torch.Generator().manual_seed(1))


def guided(model: RAM, path: torch.Tensor) -> list:
    """Make the policy choose the locations `path` (T - 1, 2) after the first glimpse; return the states it sees."""
    shown, locations = [], iter(path)

    def locate(state, noise):
        shown.append(state)
        return next(locations).expand(*state.shape[:-1], 2)

    model.policy.locate = locate
    return shown


@pytest.mark.parametrize("first", ["random", "centre", "policy"])
@pytest.mark.parametrize("core", CORES)
def test_shapes(core, first):
    model = build(core, first=first)
    glance = model(images(), R)
    assert glance.log_prob.shape == (B, R, T, N) and glance.locations.shape == (B, R, T, 2)
    torch.testing.assert_close(glance.log_prob.exp().sum(-1), torch.ones(B, R, T))
    draws = T if first == "policy" else T - 1
    assert glance.choice.log_prob.shape == glance.choice.entropy.shape == glance.choice.sampled.shape == (B, R, draws)
    assert glance.choice.state.shape == (B, R, draws, model.state_size) and not glance.choice.state.requires_grad
    assert model(images(), mode="mean").choice is None


def test_sizes_are_the_papers_by_default():
    model = RAM((1, 28, 28), 10)
    assert isinstance(model.core, Rectifier) and model.num_glimpses == 6
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters() if name.endswith("weight")}
    assert shapes["glimpse.what.weight"] == (128, 64) and shapes["glimpse.where.weight"] == (128, 2)
    assert shapes["glimpse.both.weight"] == (256, 256) and shapes["core.both.weight"] == (256, 512)
    assert shapes["policy.mean.0.weight"] == (128, 256) and shapes["policy.mean.1.weight"] == (2, 128)
    assert shapes["action.weight"] == (10, 256)


def test_the_first_glimpse():
    assert (build(first="centre")(images(), R).locations[:, :, 0] == 0).all()
    first = build(first="random")(images(200), R).locations[:, :, 0]
    assert first.min() < -0.9 and first.max() > 0.9 and abs(first.mean()) < 0.1


@pytest.mark.parametrize("kind", [Rectifier, LSTM])
def test_the_recurrence_follows_the_papers_equations(kind):
    """One image and one copy at a time, each product written out."""
    model = build(partial(kind, hidden_size=7))
    glance = model(images(), R)
    network, core = model.glimpse, model.core
    cell = nn.LSTMCell(8, 7)
    if kind is LSTM:  # torch orders them input, forget, candidate, output
        order = torch.cat([torch.arange(7) + 7 * gate for gate in (0, 1, 3, 2)])
        weight = core.gates.weight[order]
        cell.load_state_dict(
            {
                "weight_ih": weight[:, :8],
                "weight_hh": weight[:, 8:],
                "bias_ih": core.gates.bias[order],
                "bias_hh": torch.zeros(28),
            }
        )
    for b, image in enumerate(images()):
        pyramid = model.retina.pyramid(image[None])
        for r in range(R):
            h, c = torch.zeros(7), torch.zeros(7)
            for t, location in enumerate(glance.locations[b, r]):
                seen = model.retina(pyramid, location.view(1, 1, 2)).flatten()
                h_g = torch.relu(network.what.weight @ seen + network.what.bias)
                h_l = torch.relu(network.where.weight @ location + network.where.bias)
                both = network.both
                g = torch.relu(both.weight[:, :9] @ h_g + both.weight[:, 9:] @ h_l + both.bias)
                if kind is LSTM:
                    h, c = cell(g, (h, c))
                else:
                    h = torch.relu(core.both.weight[:, :8] @ g + core.both.weight[:, 8:] @ h + core.both.bias)
                log_prob = (model.action.weight @ h + model.action.bias).log_softmax(0)
                torch.testing.assert_close(glance.log_prob[b, r, t], log_prob, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("core", CORES)
def test_the_same_locations_give_the_same_answers(core):
    """For an image alone, or in a batch and in several copies."""
    model, path = build(core, first="centre"), 2 * torch.rand(T - 1, 2) - 1
    guided(model, path)
    glance = model(images(), R)
    torch.testing.assert_close(glance.locations[:, :, 1:], path.expand(B, R, -1, -1))
    guided(model, path)
    alone = model(images()[1:2])
    torch.testing.assert_close(glance.log_prob[1], alone.log_prob[0].expand(R, -1, -1))
    guided(model, -path)
    assert not torch.allclose(model(images()).log_prob[:, :, -1], glance.log_prob[:, :1, -1], atol=1e-3)


@pytest.mark.parametrize(
    "make",
    [
        build,
        lambda: DRAWReader(SHAPE, N, num_glimpses=T, size=4, hidden_size=7),
        lambda: FullyConnected(SHAPE, N, hidden_size=7),
    ],
)
def test_answers_are_not_rounded_under_autocast(make):
    """Outputs of layers are; their log softmax in bfloat16 would not sum to 1, and would round -0.003 to 0."""
    with torch.autocast("cpu", torch.bfloat16):
        log_prob = make()(images()).log_prob
    assert log_prob.dtype == torch.float32
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(log_prob.shape[:-1]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("core", CORES)
def test_log_p_is_that_of_the_sample_before_clipping(core):
    model = build(core, policy=partial(Gaussian, sigma=0.3), first="centre")
    path = torch.tensor([[0.2, -0.4], [1.7, -1.2], [0.9, 2.5], [-3.0, 0.0]])
    shown = guided(model, path)
    glance = model(images(), R)
    assert len(shown) == T - 1  # no location is sampled or rewarded after the last glimpse
    torch.testing.assert_close(glance.locations[:, :, 1:], path.clamp(-1, 1).expand(B, R, -1, -1))
    policy = Normal(torch.stack([model.policy.mean(state).tanh() for state in shown], dim=2), 0.3)
    torch.testing.assert_close(glance.choice.log_prob, policy.log_prob(path).sum(-1))
    torch.testing.assert_close(glance.choice.entropy, policy.entropy().sum(-1))


def test_samples_are_normal_around_the_means():
    model = build(first="centre", policy=partial(Gaussian, sigma=0.05))
    mean = model(images(1), mode="mean").locations[0, 0, 1]
    drawn = model(images(1), 4000).locations[0, :, 1]
    torch.testing.assert_close(drawn.mean(0), mean, rtol=0, atol=0.004)
    torch.testing.assert_close(drawn.std(0), torch.full((2,), 0.05), rtol=0.05, atol=0)


def parts_with_gradient(model: RAM) -> set[str]:
    """The parts of the model of which every weight has a gradient. No weight of other parts may have one."""
    parts = {"glimpse": model.glimpse, "core": model.core, "policy": model.policy, "action": model.action}
    if isinstance(model.core, ContextLSTM):
        core = model.core
        parts |= {"core": core.gates, "place": nn.ModuleList([core.place_gates, core.context, core.initial])}
    found = set()
    for name, part in parts.items():
        moved = [weight.grad is not None and bool(weight.grad.any()) for weight in part.parameters()]
        assert all(moved) or not any(moved), name
        found |= {name} if all(moved) else set()
    return found


@pytest.mark.parametrize("core", CORES)
def test_answers_train_the_core_and_samples_train_the_policy(core):
    """Neither trains the other: the location network sees the state without a gradient."""
    model = build(core)
    model(images(8), R).log_prob[..., 0].sum().backward()
    assert parts_with_gradient(model) == {"glimpse", "core", "action"}
    model.zero_grad()
    glance = model(images(8), R)
    (glance.choice.log_prob * torch.randn(8, R, T - 1)).sum().backward()
    own = {"place"} if isinstance(model.core, ContextLSTM) else set()
    assert parts_with_gradient(model) == {"policy", *own}


def test_the_context_determines_the_first_location():
    model = build(partial(ContextLSTM, context_side=5), first="policy")
    seen, other = images(2)
    first = model(torch.stack([seen, seen, other]), mode="mean").locations[:, 0, 0]
    torch.testing.assert_close(first[0], first[1])
    assert (first[0] - first[2]).abs().max() > 1e-5


def test_sigma_decays_with_the_training_batches():
    model = build(policy=partial(Gaussian, sigma=0.1, first_sigma=0.4, batches_to_sigma=4))
    sigmas = []
    for _ in range(6):
        sigmas.append(model.policy.sigma.item())
        model(images())
    torch.testing.assert_close(sigmas, [0.4 * 0.25 ** (min(i, 4) / 4) for i in range(6)])
    model.eval()(images())
    assert model.policy.state_dict()["batches"] == 6  # in every checkpoint; evaluation does not change it
    model.policy.restart()
    assert model.policy.sigma.item() == pytest.approx(0.1)  # at test time, also before the schedule has ended
    assert model.policy.train().sigma.item() == pytest.approx(0.4)


def test_random_locations_are_uniform_and_learn_nothing():
    model = build(policy=Anywhere)
    glance = model(images(200), R)
    assert glance.choice is None and not model.reinforced and not list(model.policy.parameters())
    locations = glance.locations.flatten(0, 2)
    torch.testing.assert_close(locations.mean(0), torch.zeros(2), rtol=0, atol=0.05)
    torch.testing.assert_close(locations.var(0), torch.full((2,), 1 / 3), rtol=0.05, atol=0)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("options", [{"policy": Anywhere}, {"num_glimpses": 1, "first": "centre"}, {}])
def test_every_weight_that_is_not_frozen_gets_a_gradient(core, options):
    """Without a choice of locations, what would make it is frozen: several processes would wait for its gradient."""
    model = build(core, **options)
    glance = model(images(), R)
    loss = glance.log_prob.sum() + (0 if glance.choice is None else glance.choice.log_prob.sum())
    loss.backward()
    idle = {name for name, weight in model.named_parameters() if weight.grad is None}
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    chooses = bool(list(model.policy.parameters())) or isinstance(model.core, ContextLSTM)
    assert idle == frozen and bool(frozen) == (chooses and not model.reinforced)


@pytest.mark.parametrize("kind", [FullyConnected, Convolutional])
def test_baselines_see_the_whole_image(kind):
    model = kind((2, 24, 31), N)
    glance = model(torch.rand(B, 2, 24, 31), R)
    assert glance.log_prob.shape == (B, 1, 1, N) and glance.locations is None and glance.choice is None
    assert model.pixels == 2 * 24 * 31


def test_operations_are_counted_by_hand():
    convolutional = 8 * 11 * 11 * 100 + 8 * 11 * 11 * 256 + 256 * 10
    assert multiply_adds(Convolutional((1, 60, 60), 10), torch.rand(2, 1, 60, 60)) == convolutional
    connected = 3600 * 256 + 256 * 256 + 256 * 10
    assert multiply_adds(FullyConnected((1, 60, 60), 10), torch.rand(2, 1, 60, 60)) == connected

    transformer = VisionTransformer((3, 8, 8), 5, patch=4, hidden_size=6, num_layers=2, num_heads=2, feedforward_size=7)
    tokens, layer = 5, 4 * 6 * 6 + 2 * 6 * 7
    expected = 4 * 6 * 3 * 4 * 4 + 2 * (tokens * layer + 2 * tokens**2 * 6) + 6 * 5
    assert multiply_adds(transformer, torch.rand(3, 3, 8, 8)) == expected

    model = build(partial(LSTM, hidden_size=7), policy=Gaussian)
    patch = 2 * 2 * 4 * 4
    glimpse = 4 * patch + 9 * patch + 5 * 2 + 8 * 14 + 28 * 15 + N * 7
    policy = 128 * 7 + 2 * 128
    pyramid = 3 * 2 * 21 * 17
    assert multiply_adds(model, images(), mode="mean") == T * glimpse + (T - 1) * policy + pyramid
    assert model.pixels == T * patch
    assert build(partial(ContextLSTM, context_side=5)).pixels == T * patch + 2 * 5 * 5


@pytest.mark.parametrize("make, match", [
    (lambda: build(num_glimpses=0), "num_glimpses is 0"),
    (lambda: Gaussian(4, sigma=0.0), "sigma=0.0"),
    (lambda: Convolutional((1, 8, 28), 10), "10 pixels do not fit"),
])  # fmt: skip
def test_mistakes_are_named(make, match):
    with pytest.raises(UserError, match=match):
        make()


def test_a_normalised_context_is_that_of_the_same_image_made_darker():
    """And of a black image it is finite."""
    images, context = torch.rand(2, 2, 9, 9), Context(2, side=5, normalise=True)
    torch.testing.assert_close(context(images), context(images / 100), rtol=1e-4, atol=1e-6)
    plain = Context(2, side=5)
    assert not torch.allclose(plain(images), plain(images / 100), rtol=1e-2)
    assert context(torch.zeros(2, 2, 9, 9)).isfinite().all()


@pytest.mark.parametrize("core", CORES)
def test_given_locations_are_those_that_are_looked_at(core):
    """Its own locations, given, change nothing; others change what it says from there on; NaN is its own choice."""
    model = build(core, first="centre").eval()
    own = model(images(), mode="mean")
    again = model(images(), mode="mean", given=own.locations[:, 0])
    assert torch.equal(again.log_prob, own.log_prob) and torch.equal(again.locations, own.locations)
    given = torch.full((B, T, 2), torch.nan)
    given[:, 2] = torch.tensor([0.9, -0.9])
    forced = model(images(), mode="mean", given=given)
    assert torch.equal(forced.locations[:, 0, 2], given[:, 2])
    assert torch.equal(forced.log_prob[:, :, :2], own.log_prob[:, :, :2])
    assert (forced.log_prob[:, :, 2:] != own.log_prob[:, :, 2:]).any(dim=-1).all()

"""DRAM for sequences: with one character it is RAM with a ContextLSTM; its samples are scored."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from tests.ways import prepared
from vision_attn.attention.glimpse import Retina
from vision_attn.criteria.reinforce_attention import ReinforceAttention
from vision_attn.decode import beam_search
from vision_attn.models.dram import DRAM, ConvolutionalGlimpse
from vision_attn.models.policies import Anywhere, Gaussian
from vision_attn.models.ram import RAM, ContextLSTM, GlimpseNetwork
from vision_attn.system.errors import UserError

pytestmark = pytest.mark.usefixtures("both_ways")

B, Y, X, V = 3, 16, 40, 6
PARTS = {
    "retina": partial(Retina, size=4, num_scales=2),
    "glimpse": partial(GlimpseNetwork, what_size=6, where_size=5, glimpse_size=7),
    "core": partial(ContextLSTM, hidden_size=8, place_size=6, context_side=4, filters=(2, 3)),
    "policy": partial(Gaussian, hidden_size=5, sigma=0.3),
}
REGIONS = torch.rand(B, X, Y, generator=torch.Generator().manual_seed(0))
WORDS = torch.tensor([[[3, 4, 5, 1]], [[4, 4, 1, 0]], [[1, 0, 0, 0]]])


def build() -> DRAM:
    torch.manual_seed(1)
    return prepared(DRAM(V, Y, num_glimpses=2, **PARTS))


def test_the_glimpse_network_multiplies_what_by_where() -> None:
    """The patches of all scales are the channels of one image."""
    torch.manual_seed(0)
    network = prepared(ConvolutionalGlimpse((2, 3, 5, 5), filters=(3, 4), glimpse_size=6))
    patches, places = torch.randn(2, 4, 2, 3, 5, 5), torch.rand(2, 4, 2) * 2 - 1
    found, (first, _, second, _) = network(patches, places), network.what.convolutions
    for b, r in [(0, 0), (1, 3)]:
        channels = torch.cat([patches[b, r, 0], patches[b, r, 1]])[None]
        hidden = F.conv2d(channels, first.weight, first.bias, padding=1).relu()
        hidden = F.conv2d(hidden, second.weight, second.bias, stride=2, padding=1).relu()
        rows = hidden[0].permute(1, 2, 0).flatten()
        what = (network.what.linear.weight @ rows + network.what.linear.bias).relu()
        where = network.where.weight @ places[b, r] + network.where.bias
        torch.testing.assert_close(found[b, r], what * where)
    middle = network(patches, torch.zeros_like(places))
    torch.testing.assert_close(middle, network.what(patches))  # at first, a location changes nothing at the centre


def test_with_one_character_it_is_ram_with_a_context_lstm() -> None:
    model = build().eval()
    ram = prepared(RAM((1, Y, X), V, num_glimpses=2, first="policy", **PARTS)).eval()
    ram.load_state_dict(model.ram.state_dict())
    glance = ram(REGIONS.mT[:, None].contiguous(), mode="mean")
    caption = model(REGIONS, torch.full((B, 1, 1), 4))
    torch.testing.assert_close(caption.log_prob[..., 0], glance.log_prob[:, :, -1, 4])
    column = ((glance.locations[:, :, -1, 0] + 1) / 2 * X).long()
    assert torch.equal(caption.region[..., 0], column)
    assert caption.alpha[..., 0, :].argmax(-1).equal(column) and caption.choice is None


def test_step_and_forward_agree() -> None:
    model = build().eval()
    caption = model(REGIONS, WORDS)
    memory, state = model.start(REGIONS, 1)
    before = torch.zeros(B, 1, dtype=torch.long)
    for t in range(4):
        logits, state, look = model.step(before, state, memory)
        before, said = WORDS[..., t], WORDS[..., t] != 0
        found = logits.log_softmax(-1).gather(-1, before[..., None]).squeeze(-1)
        torch.testing.assert_close(caption.log_prob[..., t][said], found[said])
        assert torch.equal(caption.region[..., t][said], look.region[said])
    assert (caption.log_prob[WORDS == 0] == 0).all()


def test_the_path_for_pictures_is_that_of_the_characters() -> None:
    model = build().eval()
    locations, seen, _ = model.glimpses(REGIONS, 4)
    caption = model(REGIONS, torch.full((B, 1, 4), 3))
    last = ((locations[:, 1::2, 0] + 1) / 2 * X).long()
    assert torch.equal(last, caption.region[:, 0]) and seen.patches.shape == (B, 8, 2, 1, 4, 4)
    images = REGIONS.mT[:, None].contiguous()
    retina = model.ram.retina
    torch.testing.assert_close(retina(retina.pyramid(images), locations[:, 5:6]), seen.patches[:, 5:6])


def test_the_glimpses_of_a_character_are_one_sample() -> None:
    model = build().train()
    torch.manual_seed(2)
    caption = model(REGIONS, WORDS, 2)
    choice = caption.choice
    said = WORDS.repeat_interleave(2, dim=1) != 0
    assert choice.log_prob.shape == (B, 2, 4) and torch.equal(choice.sampled, said)
    assert (choice.log_prob[~said] == 0).all() and choice.state.shape == (B, 2, 4, 6)
    assert not torch.equal(caption.region[:, 0], caption.region[:, 1])  # runs are independent
    constant = 2 * (1 + torch.log(torch.tensor(2 * torch.pi * 0.3**2)))
    torch.testing.assert_close(choice.entropy[said], constant.expand(int(said.sum())))
    choice.log_prob.sum().backward()
    assert model.ram.policy.mean[0].weight.grad.abs().sum() > 0


def test_columns_of_pixels_are_asked_for() -> None:
    with pytest.raises(UserError, match="columns of pixels"):
        build()(torch.rand(B, X, Y + 1), WORDS)


def test_locations_have_no_probability_and_so_no_variance_of_one() -> None:
    """It was logged, with densities in the place of probabilities, and could be negative."""
    model = build().train()
    criterion = ReinforceAttention(model)
    terms = criterion(model(REGIONS, WORDS, criterion.num_runs), WORDS.repeat_interleave(criterion.num_runs, dim=1))
    assert set(terms) == {"loss"} and terms["loss"].requires_grad
    assert criterion.measure(model.eval(), REGIONS, WORDS) == {}


def test_random_glimpses_are_trained_without_an_estimator() -> None:
    model = prepared(DRAM(V, Y, num_glimpses=2, **PARTS | {"policy": Anywhere}))
    caption = model(REGIONS, WORDS)
    assert not model.reinforced and caption.choice is None
    caption.log_prob.sum().backward()


def test_given_glimpses_are_taken_and_the_others_follow_from_them() -> None:
    """Two glimpses a character: the second of the first character and the first of the second are given."""
    model = build().eval()
    given = torch.full((B, 4, 2), torch.nan)
    given[:, 1:3] = torch.rand(B, 2, 2, generator=torch.Generator().manual_seed(2)) * 2 - 1
    own, taken = model.glimpses(REGIONS, 3), model.guided(given).glimpses(REGIONS, 3)
    torch.testing.assert_close(taken.locations[:, 1:3], given[:, 1:3])
    assert torch.equal(taken.locations[:, 0], own.locations[:, 0])  # nothing was given before
    assert not torch.isclose(taken.locations[:, 3:], own.locations[:, 3:]).all(dim=-1).any()
    assert torch.equal(taken.log_prob[:, 0], own.log_prob[:, 0])
    given_now = torch.cat([taken.locations, torch.full((B, 2, 2), torch.nan)], dim=1)
    again = model.guided(given_now[:, :6]).glimpses(REGIONS, 4)  # all of them, and two of the policy
    torch.testing.assert_close(again.log_prob[:, :6], taken.log_prob)
    torch.testing.assert_close(model.guided(given_now).glimpses(REGIONS, 4).locations, again.locations)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_guided_reader_decodes_what_its_glimpses_say(beams) -> None:
    """Each word is the likeliest after the last of its glimpses, for each image and beam, past the given ones too."""
    model = build().eval()
    given = torch.rand(B, 5, 2, generator=torch.Generator().manual_seed(3)) * 2 - 1
    given[1] = torch.nan  # this image is read as ever
    guided = model.guided(given)
    decoded = beam_search(guided, REGIONS, beams=beams, max_words=4)
    taken, own = guided.glimpses(REGIONS, 4), beam_search(model, REGIONS, beams=beams, max_words=4)
    for image in range(B):
        words = decoded.words[image, 0].tolist()
        for number, word in enumerate(words[: words.index(0)] if 0 in words else words):
            log_prob = taken.log_prob[image, 2 * number + 1]
            if beams == 1:
                assert word == int(log_prob[1:].argmax()) + 1  # a search never says PAD
            column = int((taken.locations[image, 2 * number + 1, 0] + 1) / 2 * X)
            assert int(decoded.region[image, 0, number]) == min(column, X - 1)
    assert torch.equal(decoded.words[1], own.words[1])
    torch.testing.assert_close(decoded.score[1], own.score[1])
    assert not torch.allclose(decoded.score[::2], own.score[::2])

"""Scores by location: Gaussian mixtures that move forward, a predicted position, coverage."""

from functools import partial

import pytest
import torch

from tests.ways import prepared
from vision_attn.attention.hard import Hard
from vision_attn.attention.location import ContentLocation, Coverage, GaussianMixture, LocalPredictive
from vision_attn.attention.monotonic import HardMonotonic, Monotonic
from vision_attn.attention.scores import Additive
from vision_attn.attention.soft import Soft
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.system.errors import UserError

B, R, L, D, H = 2, 3, 9, 4, 5


def test_gaussian_mixtures_are_the_papers_and_move_only_forward() -> None:
    torch.manual_seed(0)
    score = GaussianMixture(D, H, num_components=2)
    keys, kappa = score.project(torch.randn(B, L, D)), score.start(torch.zeros(B, L, 0), R)
    for _ in range(4):
        query = 3 * torch.randn(B, R, H)
        log_phi, after = score(query, keys, kappa)
        assert (after > kappa).all()
        a, b, k = score.query(query).chunk(3, dim=-1)
        u = torch.arange(L)
        terms = a.softmax(-1)[..., None] * torch.exp(-b.exp()[..., None] * ((kappa + k.exp())[..., None] - u) ** 2)
        torch.testing.assert_close(log_phi.exp(), terms.sum(dim=2), atol=1e-6, rtol=1e-4)
        kappa = after


def test_a_sharp_gaussian_is_indexing() -> None:
    score, regions = GaussianMixture(D, H, num_components=1, step=1.0), torch.randn(B, L, D)
    with torch.no_grad():
        score.query.weight.zero_()
        score.query.bias.copy_(torch.tensor([0.0, 6.0, 0.0]))  # beta = e^6, one column for each character
    carry = score.start(score.project(regions), R)
    for character in range(1, 4):
        scores, carry = score(torch.randn(B, R, H), score.project(regions), carry)
        seen = Soft()(scores, regions)
        torch.testing.assert_close(seen.context, regions[:, character, None].expand(-1, R, -1))


def test_coverage_with_zero_weights_is_additive(both_ways) -> None:
    torch.manual_seed(1)
    additive, coverage = Additive(D, H, attention_size=6), Coverage(D, H, attention_size=6)
    coverage.load_state_dict(additive.state_dict(), strict=False)
    additive, coverage = prepared(additive), prepared(coverage)
    regions, carry = torch.randn(B, L, D), None
    keys = coverage.project(regions)
    for _ in range(3):
        query = torch.randn(B, R, H)
        expected, _ = additive(query, additive.project(regions))
        scores, carry = coverage(query, keys, carry)
        torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-4)
        carry = coverage.after(carry, scores.softmax(dim=-1))
    torch.testing.assert_close(carry.sum(dim=-1), torch.full((B, R), 3.0))
    with torch.no_grad():
        coverage.coverage.fill_(1.0)
    with_weights, _ = coverage(query, keys, carry)
    wanted = torch.tanh(keys[:, None] + coverage.query(query)[:, :, None] + carry[..., None]) @ coverage.weight
    torch.testing.assert_close(with_weights, wanted)


@pytest.mark.parametrize("attention", [Soft, Monotonic, HardMonotonic, Hard])
@pytest.mark.parametrize("score", [Coverage, partial(ContentLocation, grid=(1, -1))])
def test_scores_see_the_maps_that_attention_made_of_them(score, attention, both_ways) -> None:
    """Not the softmax of scores: c_t = sum of alpha_s (See et al. 2017, eq. 10) and alpha_{t-1} (Chorowski et al. 2015,
    eq. 8), whatever attention follows."""
    torch.manual_seed(0)
    model = ShowAttendTell(9, D, hidden_size=H, word_size=6, score=score, attention=attention).eval()
    model = prepared(model)
    memory, state = model.start(torch.randn(B, L, D), R)
    maps = []
    for word in (0, 4, 7):
        _, state, look = model.step(torch.full((B, R), word), state, memory)
        maps.append(look.alpha)
    wanted = sum(maps) if score is Coverage else maps[-1]
    torch.testing.assert_close(state.carry, wanted)


def test_a_predicted_position_multiplies_a_gaussian(both_ways) -> None:
    torch.manual_seed(2)
    score, regions, query = (
        prepared(LocalPredictive(D, H, attention_size=6, window=2.0)),
        torch.randn(B, L, D),
        torch.randn(B, R, H),
    )
    keys = score.project(regions)
    additive = prepared(Additive(D, H, attention_size=6))
    additive.load_state_dict(score.state_dict(), strict=False)
    content, _ = additive(query, keys)
    centre = L * score.position(query).sigmoid()
    gaussian = torch.exp(-((torch.arange(L) + 0.5 - centre) ** 2) / 2)
    product = content.exp() * gaussian
    torch.testing.assert_close(score(query, keys)[0].softmax(-1), product / product.sum(-1, keepdim=True))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: GaussianMixture(D, H, num_components=0), "num_components is 0"),
        (lambda: LocalPredictive(D, H, window=0.0), "window is 0.0"),
    ],
)
def test_mistakes_are_named(make, message) -> None:
    with pytest.raises(UserError, match=message):
        make()

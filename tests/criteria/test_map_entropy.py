"""What sharpens maps: a penalty of their entropy, and a temperature."""

from functools import partial

import pytest
import torch

from vision_attn.attention.scores import Additive
from vision_attn.attention.soft import Soft
from vision_attn.criteria.map_entropy import MapEntropy
from vision_attn.models.show_and_tell import ShowAndTell
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.transformer import Transformer
from vision_attn.system.errors import UserError

V, D = 9, 4
WORDS = torch.tensor([[[3, 8, 4, 1], [5, 1, 0, 0]], [[6, 7, 1, 0], [0, 0, 0, 0]]])


def build(**options) -> ShowAttendTell:
    torch.manual_seed(0)
    return ShowAttendTell(V, D, hidden_size=6, word_size=8, score=partial(Additive, attention_size=7), **options).eval()


@pytest.mark.parametrize("make", [build, partial(Transformer, V, D, hidden_size=8, num_heads=2, feedforward_size=8)])
def test_the_penalty_is_the_entropy_of_each_word_and_lowers_it(make) -> None:
    model, regions = make(), torch.randn(2, 6, D, generator=torch.Generator().manual_seed(1))
    criterion = MapEntropy(model, weight=0.5)
    model.eval()
    before = model(regions, WORDS)
    loss = criterion(before, WORDS)["loss"]
    each = [-(alpha * alpha.log()).sum() for alpha in before.alpha[WORDS != 0]]
    torch.testing.assert_close(loss, 0.5 * sum(each) / 4)
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(6):
        optimizer.zero_grad()
        criterion(model(regions, WORDS), WORDS)["loss"].backward()
        optimizer.step()
    assert all(one.isfinite().all() for one in model.parameters())
    assert criterion(model(regions, WORDS), WORDS)["loss"] < 0.9 * loss


def test_nothing_without_maps_or_weight() -> None:
    plain = ShowAndTell(V, D, hidden_size=6, word_size=8)
    regions = torch.randn(2, 6, D)
    assert MapEntropy(plain)(plain(regions, WORDS), WORDS) == {}
    model = build()
    assert MapEntropy(model, weight=0.0)(model(regions, WORDS), WORDS) == {}


def test_a_temperature_divides_the_scores() -> None:
    scores, regions = torch.randn(2, 3, 5), torch.randn(2, 5, D)
    seen = Soft(temperature=0.5)(scores, regions)
    torch.testing.assert_close(seen.alpha, (2 * scores).softmax(dim=-1))
    torch.testing.assert_close(seen.context, seen.alpha @ regions)
    assert torch.equal(Soft()(scores, regions).alpha, scores.softmax(dim=-1))
    with pytest.raises(UserError, match="Soft: temperature is 0.0"):
        Soft(temperature=0.0)


def test_a_captioner_with_a_temperature_is_one_with_larger_scores() -> None:
    sharp, plain = build(attention=partial(Soft, temperature=0.25)), build()
    regions = torch.randn(2, 6, D)
    assert not torch.allclose(sharp(regions, WORDS).alpha, plain(regions, WORDS).alpha)
    with torch.no_grad():
        plain.score.weight.mul_(4)
    torch.testing.assert_close(sharp(regions, WORDS).log_prob, plain(regions, WORDS).log_prob)

"""Hard attention: samples follow the map, one region is seen, and sharp maps make it soft attention."""

import pytest
import torch

from tests import references
from tests.models.test_show_attend_tell import UNSORTED, build, draw
from tests.ways import prepared
from vision_attn.attention import hard
from vision_attn.attention.hard import Hard, StraightThrough
from vision_attn.attention.scores import General
from vision_attn.decode import beam_search, greedy
from vision_attn.system.errors import UserError

pytestmark = pytest.mark.usefixtures("both_ways")

B, R, L, D = 3, 2, 5, 4


def maps(*rows: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*rows, L).double().mul(2).softmax(-1)


def test_samples_follow_the_map():
    """Chi-square of 20,000 samples against alpha: above 27.9 once in a thousand for 9 degrees of freedom."""
    torch.manual_seed(0)
    alpha = torch.randn(10).mul(2).softmax(-1)
    number = 20_000
    seen = torch.bincount(hard.sample(alpha.expand(number, -1)), minlength=10)
    assert ((seen - number * alpha).square() / (number * alpha)).sum() < 27.9


def test_a_region_without_weight_is_never_sampled():
    alpha = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]).expand(5000, -1)
    assert set(hard.sample(alpha).tolist()) == {1, 3}


def test_a_region_is_what_indexing_gives():
    regions, region = torch.randn(B, L, D), torch.randint(L, (B, R))
    expected = torch.stack([torch.stack([regions[b, i] for i in region[b].tolist()]) for b in range(B)])
    assert torch.equal(hard.at(regions, region), expected)


def test_entropy_and_log_prob_are_finite_where_a_map_is_sharp():
    scores = torch.tensor([[0.0, -200.0, -300.0]], requires_grad=True)
    alpha = scores.softmax(-1)
    (hard.entropy(alpha) + hard.log_prob(alpha, torch.tensor([0]))).sum().backward()
    assert hard.entropy(alpha).item() == 0 and scores.grad.isfinite().all()
    uniform = torch.full((1, 4), 0.25)
    torch.testing.assert_close(hard.entropy(uniform), torch.tensor([4.0]).log())


@pytest.mark.parametrize("mode", ["expectation", "argmax", "sample"])
@pytest.mark.parametrize("kind", [Hard, StraightThrough])
def test_a_sharp_map_is_seen_alike_in_every_mode(mode, kind):
    alpha = torch.zeros(B, R, L).scatter_(-1, torch.randint(L, (B, R, 1)), 1)
    regions = torch.randn(B, L, D)
    seen, found, region, _ = prepared(kind(at_test=mode)).eval()(alpha.log(), regions)
    torch.testing.assert_close(seen, alpha @ regions)
    torch.testing.assert_close(found, alpha)
    assert (region is None) == (mode == "expectation")
    assert region is None or torch.equal(region, alpha.argmax(-1))


def test_an_image_in_the_mask_sees_the_expectation():
    attention, alpha, regions = prepared(Hard()).train(), maps(B, R), torch.randn(B, L, D).double()
    mask = torch.tensor([True, False, True])
    seen, _, region, _ = attention(alpha.log(), regions, mask)
    torch.testing.assert_close(seen[mask], (alpha @ regions)[mask])
    torch.testing.assert_close(seen[1], regions[1, region[1]])


def test_the_mask_is_sampled_per_image_and_only_in_training():
    attention = Hard(expectation_probability=0.3)
    share = attention.sample_expectation_mask(20_000, torch.zeros(1)).float().mean().item()
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / 20_000) ** 0.5
    for without in (attention.eval(), Hard(expectation_probability=0.0)):
        assert without.sample_expectation_mask(5, torch.zeros(1)) is None


def test_a_soft_start_uses_the_expectation_of_every_image():
    attention = Hard(expectation_probability=0.0, soft_start=2)
    masked = [bool(attention.sample_expectation_mask(9, torch.zeros(1)).all()) for _ in range(4)]
    assert masked == [True, True, False, False]
    again = Hard(expectation_probability=0.0, soft_start=2)
    again.load_state_dict(attention.state_dict())  # a resumed run does not repeat its soft start
    assert not again.sample_expectation_mask(9, torch.zeros(1)).any()


def test_straight_through_looks_at_one_and_learns_from_all():
    alpha = maps(B, R).requires_grad_()
    regions = torch.randn(B, L, D).double()
    seen, _, region, _ = prepared(StraightThrough(temperature=0.5)).train()(alpha.log(), regions)
    torch.testing.assert_close(seen, hard.at(regions, region))
    seen.square().sum().backward()
    assert (alpha.grad != 0).all()


def test_the_sampled_path_is_the_one_that_is_scored():
    """log p(y | s, a), log p(s | a) and the entropy of the model's own samples, against the paper's equations."""
    model = build(attention=lambda: Hard(expectation_probability=0.0), dropout=0.0).train()
    regions, words = draw([[3]])
    caption = model(regions, words)
    paths = {
        path.regions: path
        for path in references.every_path(references.paper_weights(model), regions[0], words[0, 0].tolist())
    }
    path = paths[tuple(caption.region[0, 0].tolist())]
    torch.testing.assert_close(caption.log_prob[0, 0], path.said)
    torch.testing.assert_close(caption.choice.log_prob[0, 0], path.look)
    torch.testing.assert_close(caption.choice.entropy[0, 0], path.entropy)


def test_nothing_is_sampled_at_padding_or_in_masked_images():
    model = build(attention=lambda: Hard(expectation_probability=0.5)).train()
    regions, words = draw(UNSORTED)
    torch.manual_seed(5)  # some of the three images are masked
    caption = model(regions, words)
    sampled = caption.choice.sampled
    by_image = sampled.flatten(1).any(1)
    assert by_image.any() and not by_image.all()
    assert torch.equal(sampled, (words != 0) & by_image[:, None, None])
    assert torch.equal(caption.choice.log_prob != 0, sampled)
    assert torch.equal(caption.choice.entropy != 0, words != 0)


def test_at_test_time_the_expectation_is_soft_attention():
    regions, words = draw(UNSORTED)
    soft, expects = build(), build(attention=Hard)
    assert torch.equal(soft(regions, words).log_prob, expects(regions, words).log_prob)
    assert expects(regions, words).choice is None and expects(regions, words).region is None


def test_decoding_tells_which_region_each_word_saw():
    model = build(attention=lambda: Hard(at_test="argmax")).float()
    regions, _ = draw(UNSORTED)
    for decoded in (beam_search(model, regions.float(), beams=3), greedy(model, regions.float())):
        said = decoded.words != 0
        assert torch.equal(decoded.region[said], decoded.alpha.argmax(-1)[said])
    with model.attention.in_mode("expectation"):
        assert beam_search(model, regions.float()).region is None
    assert model.attention.at_test == "argmax"


def test_maps_move_from_word_to_word():
    """The known failure of the authors' code: identical maps at every word."""
    model = build(attention=Hard)
    regions, words = draw([[6, 6]])
    alpha = model(regions, words).alpha
    assert alpha.diff(dim=2).abs().sum(-1).min() > 1e-3


def test_nonsense_is_refused():
    with pytest.raises(UserError, match="expectation_probability=1.5"):
        Hard(expectation_probability=1.5)
    with pytest.raises(UserError, match="temperature is 0"):
        StraightThrough(temperature=0.0)


@pytest.mark.parametrize("attention", [Hard, StraightThrough])
def test_everything_after_the_softmax_is_float32_under_autocast(attention):
    model = build(attention=attention, score=General).float().train()
    regions, words = draw(UNSORTED)
    with torch.autocast("cpu", torch.bfloat16):
        caption = model(regions.float(), words)
    assert caption.alpha.dtype == torch.float32
    sums = caption.alpha.sum(-1)
    torch.testing.assert_close(sums, (words != 0).float(), rtol=0, atol=2e-6)
    if caption.choice is not None:
        assert caption.choice.log_prob.dtype == caption.choice.entropy.dtype == torch.float32


def test_runs_of_a_caption_share_their_dropout():
    """Without samples, the runs of a caption are then the same; captions still differ from each other."""
    model = build(dropout=0.5, context_dropout=0.5).train()
    regions, words = draw([[6, 6], [6, 6], [4, 4]])
    words[:, 1] = words[:, 0]
    caption = model(regions, words, runs=3)
    runs = caption.log_prob.unflatten(1, (2, 3))
    torch.testing.assert_close(runs[:, :, :1].expand_as(runs), runs, rtol=0, atol=1e-14)  # a product rounds rows apart
    assert not torch.allclose(runs[:, 0], runs[:, 1])


def test_a_run_that_starts_from_another_starts_its_soft_start_again():
    attention = Hard(expectation_probability=0.0, soft_start=2)
    for _ in range(4):
        attention.sample_expectation_mask(3, torch.zeros(1))
    attention.restart()
    assert attention.sample_expectation_mask(3, torch.zeros(1)).all()

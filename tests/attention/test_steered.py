"""Captioners that are made to look somewhere: what changes, and what does not, to the bit."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests import pretend
from tests.graphs import PlainGraph, TapeGraph
from vision_attn.attention.hard import Hard, StraightThrough
from vision_attn.attention.location import ContentLocation
from vision_attn.attention.monotonic import HardMonotonic, Monotonic
from vision_attn.attention.scores import Additive, Dot
from vision_attn.attention.soft import Attention, AttentionOutput, Soft, normalised
from vision_attn.attention.steered import Steered, Steering
from vision_attn.contracts import END, Captioner
from vision_attn.decode import Decoded, beam_search, greedy, sample
from vision_attn.fast import accelerate
from vision_attn.fast.versions import without_loops
from vision_attn.models.ctc import CTC
from vision_attn.models.encoder_decoder import EncoderDecoder, RNNsearch
from vision_attn.models.ensemble import Ensemble, Share
from vision_attn.models.show_and_tell import ShowAndTell
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.models.transformer import Transformer
from vision_attn.system.errors import UserError

B, L, D, V, T = 4, 6, 5, 9, 7
SMALL = {"hidden_size": 6, "word_size": 8, "score": partial(Additive, attention_size=7)}
MEMORY = {**SMALL, "score": partial(ContentLocation, attention_size=7, num_filters=2, filter_size=3, grid=(2, 3))}
MODELS: dict[str, Callable[[], Captioner]] = {
    "soft": partial(ShowAttendTell, V, D, **SMALL),
    "a sharper softmax": partial(ShowAttendTell, V, D, attention=partial(Soft, temperature=0.5), **SMALL),
    "a score that sees earlier maps": partial(ShowAttendTell, V, D, **MEMORY),
    "hard, expectation": partial(ShowAttendTell, V, D, attention=Hard, **SMALL),
    "hard, argmax": partial(ShowAttendTell, V, D, attention=partial(Hard, at_test="argmax"), **SMALL),
    "hard, sample": partial(ShowAttendTell, V, D, attention=partial(Hard, at_test="sample"), **SMALL),
    "straight-through": partial(ShowAttendTell, V, D, attention=StraightThrough, **SMALL),
    "top-down": partial(TopDown, V, D, **SMALL),
    "monotonic": partial(RNNsearch, V, D, encoder_size=3, attention=partial(Monotonic, at_test="expectation"), **SMALL),
    "hard monotonic": partial(RNNsearch, V, D, encoder_size=3, attention=HardMonotonic, **SMALL),
    "transformer": partial(
        Transformer, V, D, hidden_size=8, num_heads=2, num_layers=2, feedforward_size=8, max_length=T
    ),
}
SEARCHES: dict[str, Callable[..., Decoded]] = {
    "greedy": greedy,
    "sampled": lambda *arguments, **rules: sample(*arguments, rows=2, generator=generator(5), **rules),
    "beam": partial(beam_search, beams=3, length_power=0.7),
    "diverse": partial(beam_search, beams=4, groups=2),
}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(name: str) -> Captioner:
    torch.manual_seed(0)
    if name == "ensemble":
        shares = [Share(None, slice(0, D))] * 2
        return Ensemble([MODELS["soft"](), MODELS["transformer"]()], shares, same_regions=True).eval()
    model = MODELS[name]().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
        model.output.bias[END] += 1
    return model


def images() -> Tensor:
    return torch.randn(B, L, D, generator=generator(1))


def at_cells(word: int, cells: Tensor, strength: float = 1.0) -> Steering:
    """One cell of each image, at one word."""
    alpha, amount = torch.zeros(B, word, 1, L), torch.zeros(B, word, 1)
    alpha[:, -1, 0], amount[:, -1] = F.one_hot(cells, L).float(), strength
    return Steering(alpha, amount)


def decode(search: str, model: Captioner) -> Decoded:
    torch.manual_seed(3)  # of hard attention that samples
    return SEARCHES[search](model, images(), max_words=T, min_words=3)


def equal(first: Decoded, second: Decoded) -> None:
    for one, other in zip(first, second, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize("search", ["sampled", "beam"])
@pytest.mark.parametrize("name", [*MODELS, "ensemble"])
def test_without_strength_nothing_changes(name: str, search: str) -> None:
    model = made(name)
    equal(decode(search, model), decode(search, Steered(model, at_cells(2, torch.arange(B), 0.0))))


@pytest.mark.parametrize("name", [*MODELS, "ensemble"])
def test_its_own_maps_change_nothing(name: str) -> None:
    """Given as weights, head by head where there are heads: to the bit on a CPU, where attention is not fused."""
    model = made(name)
    own = decode("greedy", model)
    maps = own.alpha[:, 0, :, None] if own.heads is None else own.heads[:, 0]
    if name == "ensemble":  # the mean of its members is the map of none
        model.members[1] = model.members[0]
        own = decode("greedy", model)
        maps = own.alpha[:, 0, :, None]
    again = decode("greedy", Steered(model, Steering(maps, maps.any(dim=-1).float())))
    equal(again, own)


@pytest.mark.parametrize("search", ["greedy", "sampled", "beam", "diverse"])
@pytest.mark.parametrize("name", [*MODELS, "ensemble"])
def test_the_map_of_a_word_is_the_one_that_was_given(name: str, search: str) -> None:
    cells, word = torch.tensor([0, 3, 5, 3]), 3
    model = made(name)
    own, found = decode(search, model), decode(search, Steered(model, at_cells(word, cells, 0.75)))
    there = found.words[:, :, word - 1] != 0
    maps = found.alpha[:, :, word - 1][there]
    assert len(maps)
    expected = F.one_hot(cells, L)[:, None].expand(-1, there.shape[1], -1)[there]
    assert ((maps - 0.75 * expected) >= -1e-6).all()
    torch.testing.assert_close(maps.sum(dim=-1), torch.ones(len(maps)))
    if found.heads is not None:
        assert (found.heads[:, :, word - 1][there] >= 0.75 * expected[:, None] - 1e-6).all()
    if search == "greedy":
        assert torch.equal(found.words[:, :, : word - 1], own.words[:, :, : word - 1])
        assert not torch.equal(found.log_prob[:, :, word - 1], own.log_prob[:, :, word - 1])


@pytest.mark.parametrize("name", ["soft", "top-down", "transformer", "a score that sees earlier maps"])
def test_beams_keep_the_number_of_their_words(name: str) -> None:
    """What a beam found has the log-probability and the maps of the same words, given with the same steering."""
    model = Steered(made(name), at_cells(3, torch.tensor([1, 2, 3, 4])))
    found = decode("beam", model)
    given = model(images(), found.words)
    torch.testing.assert_close(found.log_prob, given.log_prob)
    torch.testing.assert_close(found.alpha, given.alpha)


def test_hard_attention_takes_the_largest_weight_or_samples() -> None:
    half = torch.zeros(B, 1, 1, L)
    half[..., 2], half[..., 4] = 0.6, 0.4
    always = Steering(half.expand(-1, T, -1, -1), torch.ones(B, T, 1))
    by_mode = decode("greedy", Steered(made("hard, argmax"), always))
    assert (by_mode.region[by_mode.words != 0] == 2).all()
    sampled = decode("sampled", Steered(made("hard, sample"), always))
    regions = sampled.region[sampled.words != 0]
    assert {*regions.tolist()} == {2, 4}


def test_heads_may_look_at_different_places_or_where_they_do() -> None:
    model = made("transformer")
    own = decode("greedy", model)
    alpha, strength = torch.zeros(B, 1, 4, L), torch.zeros(B, 1, 4)
    alpha[:, :, 3, 1] = alpha[:, :, 1, 5] = strength[:, :, 3] = strength[:, :, 1] = 1
    heads = decode("greedy", Steered(model, Steering(alpha, strength))).heads[:, 0, 0]
    assert (heads[:, 3, 1] == 1).all() and (heads[:, 1, 5] == 1).all()
    assert torch.equal(heads[:, 0], own.heads[:, 0, 0, 0])  # of the first layer, before the others changed anything
    with pytest.raises(UserError, match="3 attention heads, but the layers have 4"):
        decode("greedy", Steered(model, Steering(alpha[:, :, :3], strength[:, :, :3])))
    with pytest.raises(UserError, match="one map for each word"):
        decode("greedy", Steered(made("soft"), Steering(alpha, strength)))


@pytest.mark.parametrize("name", ["soft", "transformer"])
def test_padding_gets_nothing(name: str) -> None:
    model, regions = made(name), images()
    regions[1, 4:] = 0
    model.leave_out_padding()
    everywhere = Steering(torch.full((B, T, 1, L), 1 / L), torch.ones(B, T, 1))
    found = greedy(Steered(model, everywhere, padded=True), regions, max_words=T)
    real = found.words[1, 0] != 0
    torch.testing.assert_close(found.alpha[1, 0, real, :4], torch.full((int(real.sum()), 4), 0.25))
    assert not found.alpha[1, 0, :, 4:].any()
    on_padding = at_cells(1, torch.full((B,), 5))
    own, found = (greedy(each, regions, max_words=T) for each in (model, Steered(model, on_padding, padded=True)))
    assert torch.equal(own.alpha[1, 0, 0], found.alpha[1, 0, 0])
    assert not torch.equal(own.alpha[0, 0, 0], found.alpha[0, 0, 0])


@pytest.mark.parametrize("name", ["soft", "hard, argmax", "top-down", "transformer", "a score that sees earlier maps"])
@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_fast_captioners_are_steered_as_plain_ones(name: str, search: str) -> None:
    steering = at_cells(2, torch.tensor([0, 1, 2, 3]), 0.5)
    plain, fast = made(name), made(name)
    accelerate(fast, "cpu")
    first, second = (decode(search, Steered(model, steering)) for model in (plain, fast))
    assert torch.equal(first.words, second.words)
    torch.testing.assert_close(first.alpha, second.alpha, atol=1e-5, rtol=0)
    torch.testing.assert_close(first.log_prob, second.log_prob, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["soft", "hard, argmax", "top-down", "transformer"])
@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_a_search_that_is_replayed_reads_its_own_maps(name: str, search: str, monkeypatch) -> None:
    """The graph is recorded with the maps of one search, and replayed with those of another."""
    model = made(name).double()
    accelerate(model)
    where = [at_cells(2, torch.arange(B) + shift) for shift in range(2)]
    run = partial(SEARCHES[search], regions=images().double(), max_words=T, min_words=3)
    with without_loops():
        expected = [run(Steered(model, steering)) for steering in where]
        pretend.replayed_searches(monkeypatch, TapeGraph)
        steered = Steered(model, where[0])
        for turn in range(5):
            steered.steering = where[turn % 2]
            found, wanted = run(steered), expected[turn % 2]
            length = wanted.words.shape[2]  # a replayed search has room for the longest caption
            assert torch.equal(found.words[..., :length], wanted.words) and not found.words[..., length:].any()
            torch.testing.assert_close(found.alpha[:, :, :length], wanted.alpha)
    assert PlainGraph.made and PlainGraph.made[0].replays
    assert not torch.equal(expected[0].log_prob, expected[1].log_prob)


class Own(Attention):
    """An attention of somebody's own, which takes no forced map."""

    def forward(self, scores, regions, expectation_mask=None, carry=None):
        alpha = normalised(scores)
        return AttentionOutput(self.expected(alpha, regions), alpha)


@pytest.mark.parametrize(
    "captioner",
    [
        lambda: ShowAndTell(V, D, hidden_size=6, word_size=8),
        lambda: EncoderDecoder(V, D, encoder_size=3, hidden_size=6, word_size=8),
        lambda: CTC(V, D),
        lambda: ShowAttendTell(V, D, attention=Own, **SMALL),
        lambda: Ensemble([made("soft"), ShowAndTell(V, D)], [Share(None, slice(0, D))] * 2, same_regions=True),
        lambda: Ensemble([made("soft")] * 2, [Share(None, slice(0, D))] * 2, same_regions=False),
    ],
)
def test_others_refuse(captioner: Callable[[], Captioner]) -> None:
    with pytest.raises(UserError, match="cannot be steered"):
        Steered(captioner(), at_cells(1, torch.zeros(B, dtype=torch.long)))


def test_maps_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="a weight for each region"):
        greedy(Steered(made("soft"), at_cells(1, torch.zeros(B, dtype=torch.long))), images()[:, :4], max_words=T)


def test_an_attention_of_ones_own_still_captions() -> None:
    model = ShowAttendTell(V, D, attention=Own, hidden_size=D, word_size=8, score=Dot).eval()
    assert isinstance(model.attention, nn.Module) and greedy(model, images(), max_words=T).alpha is not None

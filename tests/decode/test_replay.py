"""Searches that replay one time step find what eager ones find. Their graphs are made of recorded operations, as a
CUDA graph is of recorded kernels; tests/test_gpu.py has CUDA's."""

import gc
import weakref
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from toy import Plane

from tests import pretend
from tests.decode.test_decode import OneWord
from tests.engine.test_capture import train
from tests.graphs import PlainGraph, TapeGraph
from vision_attn.attention.glimpse import Retina
from vision_attn.attention.hard import Hard
from vision_attn.attention.location import ContentLocation
from vision_attn.attention.monotonic import Monotonic
from vision_attn.attention.scores import Additive
from vision_attn.contracts import END, PAD, Captioner
from vision_attn.decode import Decoded, beam_search, greedy, replay, sample
from vision_attn.decode.captured_search import EVERY
from vision_attn.decode.replay import MOST
from vision_attn.fast import accelerate, products, restore
from vision_attn.fast.graphs import Later, graphs_unwanted, without_graphs
from vision_attn.fast.versions import without_loops
from vision_attn.models.dram import DRAM
from vision_attn.models.encoder_decoder import EncoderDecoder, RNNsearch
from vision_attn.models.ensemble import Ensemble, Share
from vision_attn.models.ram import ContextLSTM, GlimpseNetwork
from vision_attn.models.show_and_tell import ShowAndTell
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.models.transformer import Transformer

B, L, D, V, T = 3, 6, 4, 9, 13
SMALL = {"hidden_size": 6, "word_size": 8}
ADDITIVE = partial(Additive, attention_size=7)
LOCATION = partial(ContentLocation, attention_size=7, num_filters=2, filter_size=3, grid=(2, 3))
MODELS: dict[str, Callable[[], Captioner]] = {
    "soft": partial(ShowAttendTell, V, D, score=ADDITIVE, **SMALL),
    "hard": partial(ShowAttendTell, V, D, score=ADDITIVE, attention=partial(Hard, at_test="argmax"), **SMALL),
    "location": partial(ShowAttendTell, V, D, score=LOCATION, **SMALL),
    "top-down": partial(TopDown, V, D, score=ADDITIVE, **SMALL),
    "RNNsearch": partial(RNNsearch, V, D, encoder_size=3, score=ADDITIVE, attention=Monotonic, **SMALL),
    "one vector": partial(EncoderDecoder, V, D, encoder_size=3, **SMALL),
    "DRAM": partial(
        DRAM,
        V,
        D,
        num_glimpses=2,
        retina=partial(Retina, size=2, num_scales=1),
        glimpse=partial(GlimpseNetwork, what_size=4, where_size=4, glimpse_size=6),
        core=partial(ContextLSTM, hidden_size=6),
    ),
    "no attention": partial(ShowAndTell, V, D, **SMALL),
    "transformer": partial(
        Transformer, V, D, hidden_size=8, num_heads=2, num_layers=2, feedforward_size=8, max_length=T
    ),
}
SEARCHES: dict[str, Callable[..., Decoded]] = {
    "greedy": greedy,
    "beam": partial(beam_search, beams=3, length_power=0.7),
    "a beam of one": partial(beam_search, beams=1),
    "a wide beam": partial(beam_search, beams=40),
    "diverse": partial(beam_search, beams=6, groups=3, diversity=0.3),
    "rules": partial(beam_search, beams=4, min_words=4, no_repeat=2, never=(5,)),
    "rules, greedy": partial(greedy, min_words=3, no_repeat=1),
    "words that occur once": partial(beam_search, beams=4, no_repeat=2, once=(3, 4, 6)),
    "rules that bar nothing": partial(greedy, no_repeat=T + 2),
}


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    """Graphs of recorded operations on a CPU, without the loops, which are none."""
    pretend.replayed_searches(monkeypatch, TapeGraph)
    with without_loops():
        yield PlainGraph


def accelerated(captioner: Captioner) -> Captioner:
    accelerate(captioner)
    return captioner


def model(name: str) -> Captioner:
    torch.manual_seed(0)
    if name == "ensemble":
        members = [MODELS["soft"](), MODELS["transformer"]()]
        return accelerated(Ensemble(members, [Share(None, slice(0, D))] * 2, same_regions=True)).double().eval()
    made = MODELS[name]().double().eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(3)
        if name != "DRAM":
            made.output.bias[END] += 1
    return accelerated(made)


def images(seed: int, number: int = B) -> Tensor:
    return torch.randn(number, L, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def eagerly(search: Callable[..., Decoded], *arguments, **options) -> Decoded:
    """What a search finds as it runs on a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TapeGraph, "available", staticmethod(lambda device: False))
        return search(*arguments, **options)


def assert_same(found: Decoded, other: Decoded) -> None:
    """The same but for positions past all captions, which a search on fixed shapes may have more of."""
    longest, rows = int((other.words > 0).any(dim=(0, 1)).sum()), other.score.shape[1]
    torch.testing.assert_close(found.score[:, :rows], other.score)
    assert not found.words[..., longest:].any() and found.score[:, rows:].isneginf().all()
    for name in ("words", "log_prob", "alpha", "region", "heads"):
        one, two = getattr(found, name), getattr(other, name)
        assert (one is None) == (two is None)
        if one is not None:
            torch.testing.assert_close(one[:, :rows, :longest], two[:, :, :longest], atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize(
    "name, search",
    [
        *((name, search) for name in ("soft", "transformer") for search in SEARCHES),
        *(
            (name, "beam")
            for name in ("hard", "location", "RNNsearch", "one vector", "DRAM", "no attention", "ensemble")
        ),
    ],
)
def test_a_replayed_search_finds_what_an_eager_one_finds(name, search, graphs):
    captioner, decode = model(name), partial(SEARCHES[search], max_words=T)
    for seed in range(3):
        assert_same(decode(captioner, images(seed)), eagerly(decode, captioner, images(seed)))
    assert len(graphs.made) == 1 and graphs.made[0].replays > 8
    assert graphs.made[0].rehearsals == replay.WARM_UP


def test_samples_are_the_same_replayed_or_not(graphs):
    """Random numbers are drawn before the first word: neither a graph nor the end of a search changes them."""
    captioner, found = model("soft"), []
    for eager in (True, False):
        generator = torch.Generator().manual_seed(5)
        with without_graphs(eager):
            found.append(
                [
                    sample(
                        captioner, images(seed), rows=4, max_words=T, top_p=0.9, temperature=0.8, generator=generator
                    )
                    for seed in range(4)
                ]
            )
    for one, other in zip(*found, strict=True):
        assert_same(one, other)
    assert len(graphs.made) == 1 and len({tuple(one.words[:, :, :3].flatten().tolist()) for one in found[0]}) == 4


def test_samples_follow_the_captioner_when_they_are_replayed():
    """As in test_decode.py: within five standard errors."""
    captioner, rows = model("soft"), 2000
    for seed in range(3):
        words = sample(captioner, images(0, 1), rows=rows, max_words=4, generator=torch.Generator().manual_seed(seed))
    memory, state = captioner.start(images(0, 1), 1)
    logits, *_ = captioner.step(torch.zeros(1, 1, dtype=torch.long), state, memory)
    p = logits[..., PAD + 1 :].softmax(-1).flatten()
    share = torch.bincount(words.words[:, :, 0].flatten(), minlength=V)[PAD + 1 :] / rows
    assert ((share - p).abs() <= 5 * (p * (1 - p) / rows).sqrt() + 1e-6).all()


def test_a_search_ends_soon_after_all_captions_have_ended(graphs):
    """The answer comes a few words later; what is decoded meanwhile is padding."""
    captioner = model("soft")
    with torch.no_grad():
        captioner.output.bias[END] += 6
    for seed in range(3):
        found = greedy(captioner, images(seed), max_words=40)
        longest = int((found.words > 0).sum(dim=-1).max())
        assert longest < found.words.shape[2] <= longest + 3 * EVERY
    assert sum(one.replays + one.rehearsals for one in graphs.made) < 2 * 20


def test_a_graph_follows_weights_that_change_in_place_and_is_dropped_if_they_move(graphs):
    captioner, other = model("soft"), model("soft")
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.3)
    for _ in range(3):
        beam_search(captioner, images(0))
    captioner.load_state_dict(other.state_dict())
    assert_same(beam_search(captioner, images(0)), eagerly(beam_search, other, images(0)))
    assert len(graphs.made) == 1
    captioner.float()
    for _ in range(3):
        found = greedy(captioner, images(0).float())
    assert_same(found, eagerly(greedy, captioner, images(0).float()))
    assert len(graphs.made) == 2 and len(replay._graphs[captioner].recorded) == 1


def test_captioners_in_other_states_have_other_graphs(graphs, monkeypatch):
    """A way to look, and autocast, whose casts of weights no graph may keep."""
    monkeypatch.setattr(products, "_in_half", lambda *_: False)  # a CPU has casts of its own
    captioner = model("hard").float()
    for _ in range(3):
        mode = greedy(captioner, images(0).float())
    with captioner.in_mode("expectation"):
        assert (greedy(captioner, images(0).float()).region is None) == (mode.region is not None)
    for step in range(4):
        with torch.autocast("cpu", torch.bfloat16):
            captioner(images(0).float(), mode.words)  # casts the weights, and keeps the casts
            half = greedy(captioner, images(0).float())
            other = eagerly(greedy, captioner, images(0).float())
            torch.testing.assert_close(half.score, other.score)
        if step == 2:
            with torch.no_grad():
                captioner.output.bias.neg_()
    assert len(graphs.made) == 2


def test_graphs_are_few_and_go_with_their_captioner(graphs):
    captioner = model("soft")
    for number in range(1, MOST + 3):
        for _ in range(2):
            greedy(captioner, images(0, number))
    assert len(graphs.made) == MOST + 2 and len(replay._graphs[captioner].recorded) == MOST
    alive = weakref.ref(captioner)
    del captioner
    gc.collect()
    assert alive() is None


class Reading(OneWord):
    """Reads a number from the device at every word."""

    def step(self, word, state, memory):
        assert word.sum().item() >= 0
        return super().step(word, state, memory)


class Remembering(OneWord):
    """Its state holds all words so far."""

    def step(self, word, state, memory):
        logits, _, look = super().step(word, state, memory)
        return logits, torch.cat([state, word[..., None]], dim=-1), look


class Recalling(OneWord):
    """Its state holds the last four words, each of which takes the place of the next; the oldest one is likely."""

    def start(self, regions, rows):
        return None, torch.zeros(4, len(regions), rows, dtype=torch.long).unbind(0)

    def step(self, word, state, memory):
        words = torch.arange(V)
        logits = torch.linspace(0, 1, V).roll(3) + 2.0 * (words == (word + state[3] + 2)[..., None] % V)
        return logits, (word, *state[:3]), None


@pytest.mark.parametrize("search", ["greedy", "beam", "a beam of one"])
def test_parts_of_a_state_may_change_places(search):
    captioner, regions = accelerated(Recalling()), torch.zeros(2, 1, 1)
    for _ in range(3):
        found = SEARCHES[search](captioner, regions, max_words=T, never=(END,))
    assert_same(found, eagerly(SEARCHES[search], captioner, regions, max_words=T, never=(END,)))
    assert len(found.words[0, 0].unique()) > 3


@pytest.mark.parametrize(
    "kind, said", [(Reading, "cannot be captured"), (Remembering, "changes its shape from word to word")]
)
def test_what_cannot_be_captured_is_said_once(kind, said, capsys):
    regions = torch.tensor([0.0, 1.0])[:, None, None]
    captioner = accelerated(kind())
    for _ in range(4):
        found = beam_search(captioner, regions, beams=4, max_words=5)
    other = eagerly(beam_search, captioner, regions, beams=4, max_words=5)
    assert torch.equal(found.score, other.score) and torch.equal(found.words, other.words)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 and said in lines[0] and kind.__name__ in lines[0]


def test_buffers_serve_one_search_at_a_time(graphs):
    """A search in another thread has buffers of its own. Those made in inference mode serve outside of it, too."""
    captioner = model("soft")
    with torch.inference_mode():
        for _ in range(3):
            found = greedy(captioner, images(0))
    one = replay._graphs[captioner]
    with one.lock:
        before = graphs.made[0].replays
        assert_same(greedy(captioner, images(1)), eagerly(greedy, captioner, images(1)))
        assert graphs.made[0].replays == before
    again = greedy(captioner, images(1))
    assert graphs.made[0].replays > before and torch.equal(again.words, greedy(captioner, images(1)).words)
    assert_same(found, eagerly(greedy, captioner, images(0)))


def test_a_run_without_capture_replays_no_search(tmp_path):
    asked = []

    class Asking(Plane):
        def forward(self, *batch):
            asked.append(graphs_unwanted())
            return super().forward(*batch)

    for number, capture in enumerate((False, "auto")):
        train(tmp_path / str(number), task=Asking, capture=capture, epochs=1, validate_every=0)
    assert set(asked[: len(asked) // 2]) == {True} and set(asked[len(asked) // 2 :]) == {False}


def test_a_number_is_read_later():
    number = torch.tensor(True)
    later = Later(number)
    number.fill_(False)
    assert later.read() is True


def test_a_captioner_that_is_not_accelerated_replays_no_search(graphs):
    captioner = model("soft")
    for _ in range(3):
        found = greedy(captioner, images(0), max_words=T)
    replays = len(graphs.made)
    restore(captioner)
    for _ in range(3):
        assert_same(found, greedy(captioner, images(0), max_words=T))
    assert len(graphs.made) == replays > 0

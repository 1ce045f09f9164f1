"""Minimum length, n-grams that do not repeat, and diverse beams, against plain searches with Python's lists."""

from collections import Counter
from functools import cache, partial

import pytest
import torch

from tests import references
from tests.decode.test_decode import EVERYTHING, WORDS, B, T, V, annotation_vectors, captioner, spelled
from tests.ways import prepared
from vision_attn.contracts import END, Captioner, DecodedCaption
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.decode import beam_search, greedy, sample
from vision_attn.encoders.convnet import ConvNet
from vision_attn.metrics.evaluators import content_of
from vision_attn.metrics.function_words import is_content
from vision_attn.metrics.variety import repetition
from vision_attn.models.transformer import Transformer
from vision_attn.system.errors import UserError
from vision_attn.tasks.caption import Captioning

pytestmark = pytest.mark.usefixtures("both_ways")

LONG = 9
RULES = [(0, 1), (0, 2), (0, 3), (3, 0), (LONG, 0), (5, 2), (3, 1)]
"""Values of `min_words` and `no_repeat`."""


@pytest.fixture
def model():
    return captioner()


@pytest.fixture(scope="module")
def regions():
    return annotation_vectors()


@cache
def next_words(b):
    """The function from the words so far to log p of every next word, for image `b`."""
    weights = references.paper_weights(captioner())
    return cache(references.next_words(weights, annotation_vectors()[b]))


def allowed(words, word, min_words, no_repeat, once=()):
    """Whether `word` may follow `words`: by looking at all n-grams of the longer caption."""
    if word in once and word in words:
        return False
    longer = (*words, word)
    ngrams = Counter(longer[i : i + no_repeat] for i in range(len(longer) - no_repeat + 1)) if no_repeat else {}
    return word != 0 and not (word == END and len(words) < min_words) and max([*ngrams.values(), 1]) == 1


@cache
def plain_search(after, *, beams, max_words, min_words=0, no_repeat=0, once=(), groups=1, diversity=0.0):
    """The captions of the groups of a beam search, one after the other, with their log p: lists and no tensors."""
    found = [[((), 0.0, 0.0)] for _ in range(groups)]  # words, log p, log p with all penalties
    for _ in range(max_words):
        chosen = Counter()
        for group in range(groups):
            ended = [row for row in found[group] if END in row[0]]
            grown = [
                ((*words, word), total + log_prob, compared + log_prob - diversity * chosen[word])
                for words, total, compared in found[group]
                if END not in words
                for word, log_prob in enumerate(after(words).tolist())
                if allowed(words, word, min_words, no_repeat, once)
            ]
            grown = sorted(grown, key=lambda row: -row[2])[: beams // groups - len(ended)]
            chosen.update(words[-1] for words, _, _ in grown)
            found[group] = ended + grown
    return [[(words, total) for words, total, _ in rows] for rows in found]


@pytest.mark.parametrize(
    "min_words, no_repeat, once", [(*rules, ()) for rules in RULES] + [(0, 0, (2, 4)), (3, 2, (3,))]
)
@pytest.mark.parametrize("beams", [1, 3])
def test_rules_are_those_of_a_plain_search(model, regions, beams, min_words, no_repeat, once):
    options = {"beams": beams, "max_words": LONG, "min_words": min_words, "no_repeat": no_repeat, "once": once}
    decoded = beam_search(model, regions, **options)
    for b in range(B):
        (rows,) = plain_search(next_words(b), **options)
        expected = sorted(rows, key=lambda row: -row[1])
        assert [spelled(decoded, b, r) for r in range(beams)] == [words for words, _ in expected]
        torch.testing.assert_close(decoded.score[b], torch.tensor([p for _, p in expected]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("min_words, no_repeat", [(2, 0), (0, 1), (0, 2), (3, 2), (4, 1)])
def test_a_beam_as_wide_as_everything_finds_all_captions_that_the_rules_allow(model, regions, min_words, no_repeat):
    options = {"max_words": T, "min_words": min_words, "no_repeat": no_repeat}
    decoded = beam_search(model, regions, beams=EVERYTHING, **options)
    for b in range(B):
        wanted = {
            said.words: sum(said.log_prob)
            for said in references.every_caption(next_words(b), WORDS, T)
            if all(allowed(said.words[:t], word, min_words, no_repeat) for t, word in enumerate(said.words))
        }
        there = decoded.score[b].isfinite()
        found = {spelled(decoded, b, r): decoded.score[b, r].item() for r in range(int(there.sum()))}
        assert found == pytest.approx(wanted, rel=1e-4) and 0 < len(wanted) < EVERYTHING
        assert list(found) == sorted(found, key=lambda words: -found[words]) and not there[len(found) :].any()


@pytest.mark.parametrize("min_words, no_repeat", RULES)
def test_greedy_and_samples_keep_the_rules(model, regions, min_words, no_repeat):
    rules = {"max_words": LONG, "min_words": min_words, "no_repeat": no_repeat}
    one, other = greedy(model, regions, **rules), beam_search(model, regions, beams=1, **rules)
    assert torch.equal(one.words, other.words)
    samples = sample(model, regions, rows=200, generator=torch.Generator().manual_seed(0), **rules)
    for decoded in (one, samples):
        for b in range(B):
            for r in range(decoded.words.shape[1]):
                words = spelled(decoded, b, r)
                assert all(allowed(words[:t], word, min_words, no_repeat) for t, word in enumerate(words))
        # What is left keeps the probability that the model gives it.
        torch.testing.assert_close(decoded.log_prob, model(regions, decoded.words).log_prob, rtol=1e-4, atol=1e-4)
    free = sample(model, regions, rows=200, generator=torch.Generator().manual_seed(0), max_words=LONG)
    assert not torch.equal(free.words, samples.words)


@pytest.mark.parametrize("beams, groups", [(2, 2), (4, 2), (6, 2), (6, 3), (5, 5), (6, 1)])
@pytest.mark.parametrize("diversity", [0.0, 0.5, 3.0])
def test_diverse_groups_are_those_of_a_plain_search(model, regions, beams, groups, diversity):
    options = {"beams": beams, "max_words": 6, "groups": groups, "diversity": diversity}
    decoded = beam_search(model, regions, **options)
    assert decoded.words.shape[1] == (groups if groups > 1 else beams)
    for b in range(B):
        expected = plain_search(next_words(b), **options)
        best = [max(rows, key=lambda row: row[1]) for rows in expected] if groups > 1 else expected[0]
        best = sorted(best, key=lambda row: -row[1])
        assert Counter(spelled(decoded, b, r) for r in range(len(best))) == Counter(words for words, _ in best)
        torch.testing.assert_close(decoded.score[b], torch.tensor([p for _, p in best]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(decoded.log_prob, model(regions, decoded.words).log_prob, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(decoded.alpha, model(regions, decoded.words).alpha, rtol=1e-4, atol=1e-4)


def test_all_options_together_are_those_of_a_plain_search(model, regions):
    options = {"beams": 6, "max_words": LONG, "groups": 3, "diversity": 1.0, "min_words": 4, "no_repeat": 2}
    decoded = beam_search(model, regions, length_power=0.7, **options)
    for b in range(B):
        best = [
            max((p / len(words) ** 0.7, words) for words, p in rows) for rows in plain_search(next_words(b), **options)
        ]
        best.sort(reverse=True)
        assert [spelled(decoded, b, r) for r in range(3)] == [words for _, words in best]
        torch.testing.assert_close(decoded.score[b], torch.tensor([p for p, _ in best]), rtol=1e-4, atol=1e-4)


def test_without_diversity_all_groups_are_the_usual_beam_and_with_much_of_it_they_differ(model, regions):
    usual = beam_search(model, regions, beams=3, max_words=6)
    same = beam_search(model, regions, beams=9, groups=3, diversity=0.0, max_words=6)
    differ = beam_search(model, regions, beams=3, groups=3, diversity=50.0, max_words=6)
    for b in range(B):
        assert {spelled(same, b, r) for r in range(3)} == {spelled(usual, b, 0)}
        assert len({spelled(differ, b, r) for r in range(3)}) == 3
        first = {int(words[0]) for words in differ.words[b]}
        assert len(first) == 3, "with a large penalty no two groups begin with the same word"


def test_states_of_any_kind_follow_their_beams_through_the_rules(regions):
    """A Transformer's cache is reordered with the history of its words: `forward` on the result says the same."""
    torch.manual_seed(0)
    model = Transformer(V, 4, hidden_size=8, num_layers=2, num_heads=2, feedforward_size=8).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(2)
    decoded = beam_search(model, regions, beams=6, groups=2, no_repeat=2, min_words=3, max_words=LONG)
    torch.testing.assert_close(decoded.log_prob, model(regions, decoded.words).log_prob, rtol=1e-3, atol=1e-4)
    assert ((decoded.words == END).long().argmax(-1) >= 3)[(decoded.words == END).any(-1)].all()


class OneWord(Captioner):
    """Image 0 says END and nothing else; the other images say any of three words."""

    def start(self, regions, rows):
        return regions, torch.zeros(len(regions), rows, 1)

    def step(self, word, state, memory):
        logits = torch.zeros(*word.shape, 4).masked_fill(
            (memory[:, :1, :1] == 0) & (torch.arange(4) != END), -torch.inf
        )
        return logits, state, None


def test_an_image_may_end_while_the_groups_of_others_grow():
    """A group has more beams than the vocabulary has words, so that it grows over several words."""
    regions = torch.tensor([0.0, *[1.0] * 3])[:, None, None]
    decoded = beam_search(prepared(OneWord()), regions, beams=20, groups=2, max_words=5, diversity=0.01)
    assert [spelled(decoded, 0, r) for r in range(2)] == [(END,), (END,)] and not decoded.score[0].any()
    assert all(spelled(decoded, b, r)[-1] in (END, 2, 3) for b in (1, 2, 3) for r in range(2))
    assert torch.equal(decoded.words[1], decoded.words[2]) and decoded.score.isfinite().all()


@pytest.mark.parametrize(
    "decode, options, said",
    [
        (beam_search, {"min_words": 31}, "min_words is 31, but must lie between 0 and max_words, 30"),
        (greedy, {"min_words": -1}, "min_words is -1"),
        (sample, {"no_repeat": -1}, "no_repeat is -1"),
        (greedy, {"min_words": 9, "no_repeat": 1}, "leave none of 6 words"),
        (sample, {"min_words": 9, "no_repeat": 1}, "leave none of 6 words"),
        (beam_search, {"beams": 4, "groups": 3}, "multiple of the number of groups"),
        (beam_search, {"groups": 0}, "multiple of the number of groups"),
        (beam_search, {"diversity": -1.0}, "diversity is -1"),
    ],
)
def test_what_cannot_be_done_is_refused(model, regions, decode, options, said):
    with pytest.raises(UserError, match=said):
        decode(model, regions, **options)


def test_nothing_is_copied_to_the_host_in_the_loop(model, regions, monkeypatch):
    """As on a GPU, where all images stay to the end: no operation of the loop needs a number on the host."""
    # a CPU drops the images that have ended
    monkeypatch.setattr("vision_attn.decode.hypotheses.Active.going", lambda *_: None)
    steps, whole = 0, model.step

    def refuse(*_):
        assert steps == 0, "a number was copied to the host"

    def step(*arguments):
        nonlocal steps
        steps += 1
        return whole(*arguments)

    model.step = step
    for name in ("item", "tolist", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    beam_search(model, regions, beams=6, groups=3, min_words=2, no_repeat=2, max_words=5)
    assert steps == 5


# The task


@pytest.fixture
def task():
    torch.manual_seed(0)
    model = partial(Transformer, hidden_size=8, num_layers=1, num_heads=2, feedforward_size=8)
    task = Captioning(
        Scenes(), encoder=ConvNet(region_size=16, width=16), model=model, criteria={}, beams=2, max_words=6
    )
    with torch.no_grad():
        for weights in task.model.parameters():
            weights.mul_(2)
    return prepared(task).eval()


@pytest.fixture(scope="module")
def images():
    return torch.randint(0, 255, (3, 3, 56, 56), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def total(described):
    return sum(described.log_prob)


@pytest.mark.parametrize("strategy", ["best", "diverse", "sampled"])
def test_a_task_describes_with_several_captions(task, images, strategy):
    torch.manual_seed(0)
    several = task.describe(images, captions=4, strategy=strategy)
    assert strategy == "diverse" or [len(captions) for captions in several] == [4, 4, 4]
    for captions in several:
        for caption in captions:
            assert len(caption.words) == len(caption.log_prob) == len(caption.alpha) <= 6
            assert all(p <= 0 for p in caption.log_prob)
    texts = [[caption.text for caption in captions] for captions in several]
    if strategy != "sampled":  # samples may be equal
        assert all(len(set(each)) == len(each) > 1 for each in texts)
    if strategy == "best":
        wide = task.describe(images, captions=4)
        assert [captions[0].text for captions in wide] == [each[0] for each in texts]


def test_a_task_describes_with_one_caption_as_before(task, images):
    (one, *_), several = task.describe(images), task.describe(images, captions=1)
    assert len(several) == 3 and [len(captions) for captions in several] == [1, 1, 1]
    assert several[0][0].text == one.text and several[0][0].log_prob == one.log_prob
    groups = task.describe(images, captions=3, strategy="diverse")
    assert any(caption.text == one.text for caption in groups[0]), "the first group is the usual beam"


def test_captions_that_groups_have_in_common_are_returned_once(task, images):
    same = task.decoding.changed(diversity=0.0)  # every group finds the same
    assert [len(captions) for captions in task.describe(images, 3, "diverse", same)] == [1] * len(images)


def test_captions_are_ordered_by_their_scores(task, images):
    for captions in task.describe(images, captions=4, decoding=task.decoding.changed(length_power=0.7)):
        scores = [caption.score for caption in captions]
        assert len(scores) > 1 and scores == sorted(scores, reverse=True)
        ends = (score * (len(c.words) + 1) ** 0.7 - sum(c.log_prob) for c, score in zip(captions, scores, strict=True))
        assert all(-20 < end < 1e-4 for end in ends)  # log p of the end


def test_a_beam_that_finds_fewer_captions_returns_fewer(task, images):
    found = task.describe(images, captions=100, decoding=task.decoding.changed(max_words=1))
    assert {len(captions) for captions in found} == {len(task.vocabulary) - 2}  # all but padding and the unknown word


def test_settings_of_decoding_reach_captions(task, images):
    assert task.settings == {
        "beams": 2,
        "max_words": 6,
        "min_words": 0,
        "no_repeat": 0,
        "length_power": 0.0,
        "content_once": False,
    }
    longer = task.decoding.changed(no_repeat=1, min_words=5)
    for strategy in ("best", "diverse", "sampled"):
        for captions in task.describe(images, captions=3, strategy=strategy, decoding=longer):
            for caption in captions:
                assert len(caption.words) >= 5 and len(set(caption.words)) == len(caption.words)
    once = task.decoding.changed(content_once=True, max_words=30, min_words=12)
    for caption in task.describe(images, decoding=once):
        content = [word for word in caption.words if is_content(word)]
        assert len(caption.words) >= 12 and len({*content}) == len(content)
    with pytest.raises(UserError, match="content_once must be True or False, not 1"):
        task.decoding.changed(content_once=1)


def test_repetitions_are_counted():
    captions = ["a man in a red shirt and a red hat", "a dog in the snow", "two dogs on a beach on a Beach", ""]
    content = [content_of(DecodedCaption(text, text.split(), [])) for text in captions]
    assert repetition(content) == {"repetition": 0.5} and repetition([]) == {}


@pytest.mark.parametrize("option, number", [("min_words", -1), ("no_repeat", -1), ("diversity", -1.0)])
def test_numbers_out_of_range_are_refused(option, number):
    with pytest.raises(UserError, match=f"decoding: {option} is -1"):
        Captioning(Scenes(), encoder=ConvNet(), model=Transformer, **{option: number})

"""Decoding against exhaustive enumeration, and greedy against a beam of one."""

from functools import cache, partial

import pytest
import torch

from tests import references
from tests.ways import prepared
from vision_attn.attention.scores import Additive
from vision_attn.contracts import END, PAD, Captioner
from vision_attn.decode import beam_search, greedy, sample
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.system.errors import UserError

pytestmark = pytest.mark.usefixtures("both_ways")

B, L, D, V, T = 4, 5, 4, 6, 4
WORDS = range(2, V)
EVERYTHING = sum(len(WORDS) ** n for n in range(T)) + len(WORDS) ** T


@pytest.fixture
def model():
    return captioner()


def captioner():
    torch.manual_seed(0)
    model = ShowAttendTell(V, D, hidden_size=6, word_size=8, score=partial(Additive, attention_size=7)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
        model.output.bias[0] = -1e9  # padding is never said; decoding sees to it by itself
        model.output.bias[END] += 1
    return prepared(model)


@pytest.fixture
def regions():
    return annotation_vectors()


def annotation_vectors():
    torch.manual_seed(1)
    return torch.randn(B, L, D)


def spelled(decoded, b, r):
    return tuple(word for word in decoded.words[b, r].tolist() if word != 0)


@cache
def every_caption(b):
    """All captions of image `b`, with their log-probabilities: the same for every test of them."""
    weights = references.paper_weights(captioner())
    return tuple(references.every_caption(references.next_words(weights, annotation_vectors()[b]), WORDS, T))


@pytest.mark.parametrize("length_power", [0.0, 0.7, 1.0])
def test_a_beam_as_wide_as_everything_is_enumeration(model, regions, length_power):
    decoded = beam_search(model, regions, beams=EVERYTHING, max_words=T, length_power=length_power)
    for b in range(B):
        captions = list(every_caption(b))
        assert abs(sum(torch.tensor(said.log_prob).sum().exp() for said in captions) - 1) < 1e-4
        captions.sort(key=lambda said: -sum(said.log_prob) / len(said.words) ** length_power)
        found = [spelled(decoded, b, r) for r in range(EVERYTHING)]
        assert found[0] == captions[0].words
        assert len(set(found)) == EVERYTHING, "every caption once"
        scores = torch.tensor([sum(said.log_prob) / len(said.words) ** length_power for said in captions])
        torch.testing.assert_close(decoded.score[b], scores, rtol=1e-4, atol=1e-4)


def test_a_beam_of_one_is_greedy(model, regions):
    one, other = beam_search(model, regions, beams=1, max_words=9), greedy(model, regions, max_words=9)
    for left, right in zip(one, other, strict=True):
        assert (left is None and right is None) or torch.testing.assert_close(left, right) is None


@pytest.mark.parametrize("decode", [greedy, lambda *a, **k: beam_search(*a, beams=3, **k), sample])
def test_what_is_returned_is_what_the_model_says(model, regions, decode):
    """Log-probabilities and attention of decoded words equal those of teacher forcing on the same words."""
    decoded = decode(model, regions, max_words=7)
    caption = model(regions, decoded.words)
    torch.testing.assert_close(decoded.log_prob, caption.log_prob, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(decoded.alpha, caption.alpha, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(decoded.score, caption.log_prob.sum(-1), rtol=1e-4, atol=1e-5)


def test_captions_that_never_end_are_returned(model, regions):
    with torch.no_grad():
        model.output.bias[END] = -1e9
    for decoded in (beam_search(model, regions, beams=3, max_words=5), greedy(model, regions, max_words=5)):
        assert decoded.words.shape[2] == 5 and (decoded.words > 1).all()
        assert decoded.score.isfinite().all()


def test_nothing_follows_the_end(model, regions):
    words = beam_search(model, regions, beams=5, max_words=8).words
    after = (words == END).cumsum(-1) - (words == END).long()
    assert (words[after > 0] == 0).all() and (words == END).any()


def test_words_that_may_not_be_said_are_not(model, regions):
    usual = beam_search(model, regions, beams=3, max_words=8)
    word = usual.words[usual.words > 1].mode().values.item()
    for decode in (greedy, sample, beam_search):
        decoded = decode(model, regions, max_words=8, never=(word,))
        assert (decoded.words != word).all()
        # What is left keeps the probability that the model gives it.
        torch.testing.assert_close(decoded.log_prob, model(regions, decoded.words).log_prob, rtol=1e-4, atol=1e-5)


def test_wider_beams_do_not_lose(model, regions):
    best = [beam_search(model, regions, beams=k, max_words=T).score[:, 0] for k in (1, EVERYTHING)]
    assert (best[1] >= best[0] - 1e-5).all()


def test_images_do_not_mix(model, regions):
    """Each image decodes as it would alone."""
    together = beam_search(model, regions, beams=3, max_words=8)
    for b in range(B):
        alone = beam_search(model, regions[b : b + 1], beams=3, max_words=8)
        assert spelled(alone, 0, 0) == spelled(together, b, 0)
        torch.testing.assert_close(alone.score[0], together.score[b], rtol=1e-4, atol=1e-5)


def test_samples_follow_the_model(model, regions):
    """First words of many samples occur as often as the model says, within five standard errors."""
    rows = 4000
    words = sample(model, regions[:1], rows=rows, max_words=1, generator=torch.Generator().manual_seed(0)).words
    memory, state = model.start(regions[:1], 1)
    p = model.step(torch.zeros(1, 1, dtype=torch.long), state, memory)[0].softmax(-1).flatten()
    share = torch.bincount(words.flatten(), minlength=V) / rows
    assert ((share - p).abs() <= 5 * (p * (1 - p) / rows).sqrt() + 1e-6).all()


def test_samples_are_seeded_and_top_p_narrows(model, regions):
    def draw(**options):
        return sample(model, regions, rows=5, generator=torch.Generator().manual_seed(3), **options).words

    assert torch.equal(draw(), draw())
    narrow = draw(top_p=1e-6)
    assert torch.equal(narrow[:, 0, : greedy(model, regions).words.shape[2]], greedy(model, regions).words[:, 0])
    for options in ({"temperature": 0.0}, {"top_p": 0.0}):
        with pytest.raises(UserError, match=f"{next(iter(options))} is 0.0"):
            draw(**options)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_top_p_is_a_share_of_the_words_that_may_be_said(model, regions, temperature):
    """Also where the likeliest word is barred, whose probability would fill the share alone."""
    memory, state = model.start(regions[:1], 1)
    logits = model.step(torch.zeros(1, 1, dtype=torch.long), state, memory)[0].flatten()
    logits[[PAD, END]] = -torch.inf
    barred = int(logits.argmax())
    logits[barred] = -torch.inf
    p, order = (logits / temperature).softmax(-1).sort(descending=True)
    top_p = p[:3].sum().item() - 1e-4
    options = {"min_words": 1, "never": (barred,), "top_p": top_p, "temperature": temperature}
    found = sample(model, regions[:1], rows=2000, max_words=1, **options).words.unique()
    assert found.tolist() == sorted(order[:3].tolist())


def test_a_beam_wider_than_the_language_ranks_whole_captions_only():
    """With more beams than captions, rows that were never filled come last, without words."""
    torch.manual_seed(0)
    model = ShowAttendTell(5, D, hidden_size=6, word_size=8, score=partial(Additive, attention_size=7)).eval()
    model, regions = prepared(model), torch.randn(2, L, D)
    captions = sum(2**n for n in range(4)) + 2**4  # of the words 3 and 4: those that end before the limit, and the rest
    decoded = beam_search(model, regions, beams=400, max_words=4, never=(2,))
    for b in range(2):
        found = [spelled(decoded, b, r) for r in range(decoded.words.shape[1])]
        filled = decoded.score[b].isfinite()
        assert int(filled.sum()) == captions and filled[:captions].all()
        assert all(words[-1] == END or len(words) == 4 for words in found[:captions])
        assert len(set(found[:captions])) == captions and set(found[captions:]) == {()}
        best = model(regions[b : b + 1], decoded.words[b : b + 1, :1]).log_prob.sum()
        torch.testing.assert_close(decoded.score[b, 0], best)


class OneWord(Captioner):
    """Image 0 says END and nothing else; the other images say any word."""

    def start(self, regions, rows):
        return regions, torch.zeros(len(regions), rows, 1)

    def step(self, word, state, memory):
        logits = torch.zeros(*word.shape, 3).masked_fill(
            (memory[:, :1, :1] == 0) & (torch.arange(3) != END), -torch.inf
        )
        return logits, state, None


def test_an_image_may_end_while_the_beams_of_others_grow():
    """The beam widens over several words where the vocabulary is small. An image that has ended fills no more rows."""
    regions = torch.tensor([0.0, 1.0])[:, None, None]
    decoded = beam_search(prepared(OneWord()), regions, beams=4, max_words=5)
    assert [spelled(decoded, 0, r) for r in range(4)] == [(END,), (), (), ()]
    assert decoded.score[0].tolist() == [0, *[-torch.inf] * 3]
    assert len({spelled(decoded, 1, r) for r in range(4)}) == 4 and decoded.score[1].isfinite().all()

"""BLEU of single captions on tensors, against its definition."""

import math
from collections import Counter

import pytest
import torch
from test_cider import Captions, made_up

from vision_attn.metrics.bleu import sentence_bleu
from vision_attn.metrics.cider import padded, word_ids

KNOWN = {f"word{number}": 3 + number for number in range(10)}


def ours(candidates: Captions, references: list[Captions]) -> torch.Tensor:
    captions = padded([[word_ids(caption, KNOWN)] for caption in candidates])
    return sentence_bleu(captions, padded([[word_ids(caption, KNOWN) for caption in image] for image in references]))


def ngrams(words: list[str], order: int) -> Counter:
    return Counter(tuple(words[first : first + order]) for first in range(len(words) - order + 1))


def defined(caption: list[str], references: Captions) -> float:
    """Papineni et al. 2002, with one added to the counts of 2- to 4-grams (Lin and Och 2004); END is a word."""
    caption, references = [*caption, "END"], [[*reference, "END"] for reference in references]
    logarithms = []
    for order, added in zip((1, 2, 3, 4), (0, 1, 1, 1), strict=True):
        mine, theirs = ngrams(caption, order), [ngrams(reference, order) for reference in references]
        matches = sum(min(count, max(one[ngram] for one in theirs)) for ngram, count in mine.items()) + added
        if not matches:
            return 0.0
        logarithms.append(math.log(matches / (mine.total() + added)))
    nearest = min((abs(len(reference) - len(caption)), len(reference)) for reference in references)[1]
    return math.exp(sum(logarithms) / 4) * min(1.0, math.exp(1 - nearest / len(caption)))


def test_made_up_captions_score_as_defined():
    candidates, references = made_up(150, seed=0)
    expected = torch.tensor([defined(*pair) for pair in zip(candidates, references, strict=True)])
    torch.testing.assert_close(ours(candidates, references)[:, 0].float(), expected)
    assert expected.std() > 0.3 and 0 < expected.min() < 0.2 and expected.max() == 1


@pytest.mark.parametrize("others, penalty", [((3, 5), 1.0), ((4, 9), 1.0), ((5, 9), math.exp(1 - 6 / 5))])
def test_of_references_as_near_in_length_the_shorter_one_counts(others, penalty):
    words = [f"word{number}" for number in range(9)]
    found = ours([words[:4]], [[words[:other] for other in others]])[0, 0].item()
    matches = (5 / 5, 4 / 5, 3 / 4, 2 / 3) if 4 not in others else (1, 1, 1, 1)  # END follows the last word or not
    assert found == pytest.approx(penalty * math.prod(matches) ** (1 / 4))


def test_a_caption_that_stops_in_a_phrase_loses():
    references = [["word1", "word2", "word3", "word4"]] * 2
    whole, cut, wrong = ours([references[0], references[0][:3], ["word9"]], [references] * 3)[:, 0].tolist()
    assert whole == 1 and 0.3 < cut < 0.8 and 0 < wrong < 0.3


def test_a_caption_without_words_and_an_image_without_references_score_nothing():
    captions = torch.tensor([[[0, 0, 0], [3, 4, 1]], [[3, 4, 1], [3, 4, 1]]])
    scores = sentence_bleu(captions, torch.tensor([[[3, 4, 1]], [[0, 0, 0]]]))
    assert scores.tolist() == [[0, 1], [0, 0]]

"""BLEU-4 of single captions on tensors, against counting in Python and pycocoevalcap."""

import math
from collections import Counter

import pytest
import torch
from pycocoevalcap.bleu.bleu_scorer import BleuScorer

from tests.metrics.test_cider import made_up
from vision_attn.metrics.cider import padded, word_ids
from vision_attn.metrics.sentence_bleu import sentence_bleu


def counted(caption: list[int], references: list[list[int]]) -> float:
    """BLEU+1 as Papineni et al. 2002 and Lin and Och 2004 write it."""
    score = 1.0
    for n in (1, 2, 3, 4):
        mine, *theirs = (
            Counter(tuple(words[first : first + n]) for first in range(len(words) - n + 1))
            for words in (caption, *references)
        )
        common = sum(min(number, max(other[ngram] for other in theirs)) for ngram, number in mine.items())
        score *= (common + (n > 1)) / (sum(mine.values()) + (n > 1))
    closest = min(map(len, references), key=lambda length: (abs(length - len(caption)), length))
    return score**0.25 * min(1.0, math.exp(1 - closest / len(caption)))


def test_made_up_captions_score_as_counted():
    candidates, references = made_up(150, seed=0)
    coded = [[word_ids(caption, {}) for caption in image] for image in references]
    mine = [[word_ids(caption, {}), word_ids(caption[::-1], {})] for caption in candidates]
    found = sentence_bleu(padded(mine), padded(coded))
    expected = [[counted(caption, image) for caption in two] for two, image in zip(mine, coded, strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype))
    assert found.max() == 1 and found.std() > 0.1 and (found[:, 0] != found[:, 1]).any()


def test_without_smoothing_it_would_be_that_of_pycocoevalcap():
    """Where a caption repeats a longer part of its reference, the smoothing can be taken back."""
    reference = ["a", "brown", "dog", "runs", "over", "the", "green", "grass", "of", "a", "park"]
    caption = reference[:7]
    scorer = BleuScorer(n=4)
    scorer += (" ".join(caption), [" ".join(reference)])
    theirs = scorer.compute_score(option="closest", verbose=0)[1][3][0]
    ids = {word: 4 + number for number, word in enumerate(reference)}
    found = sentence_bleu(
        torch.tensor([[[ids[word] for word in caption]]]), torch.tensor([[[ids[word] for word in reference]]])
    )
    assert found.item() == pytest.approx(theirs, abs=1e-6)  # all precisions are 1, with the smoothing and without


def test_a_caption_without_words_or_references_scores_nothing():
    none = torch.zeros(1, 1, 3, dtype=torch.long)
    some = torch.tensor([[[5, 6, 1]]])
    assert sentence_bleu(none, some).item() == 0 == sentence_bleu(some, none).item()
    assert sentence_bleu(some, torch.cat([none, some], dim=1)).item() == 1  # the missing one is not the closest

"""Deletion of regions: against a slow reference, and on captioners whose answer is known."""

from types import SimpleNamespace

import pytest
import torch

from vision_attn.contracts import END, PAD, Caption, Captioner, DecodedCaption, Results
from vision_attn.metrics import region_deletion
from vision_attn.metrics.region_deletion import Drop, RegionDeletion, largest
from vision_attn.models.show_attend_tell import ShowAttendTell

WORDS = ["", "END", "a", "dog", "on", "grass"]
TEXTS = [["a", "dog", "on", "grass"], ["a", "dog"], ["on", "a"]]
CONTENT = [(0, 1), (0, 3), (1, 1)]
L = 20


def captions(texts=TEXTS):
    """The ids of captions, and the captions as they are decoded."""
    ids = [[WORDS.index(word) for word in words] + [END] for words in texts]
    longest = max(map(len, ids))
    words = torch.tensor([row + [PAD] * (longest - len(row)) for row in ids])[:, None]
    return words, [DecodedCaption(" ".join(words), words, [0.0] * len(words)) for words in texts]


class Fixed(Captioner):
    """log p of each word is the sum of some regions of its image; the map is even over these."""

    def __init__(self, seen, pads=False):
        super().__init__()
        self.seen, self.pads = seen, pads

    def forward(self, regions, words):
        weights = torch.zeros(regions.shape[1])
        weights[self.seen] = 1
        log_prob = (regions.sum(dim=2) @ weights)[:, None, None] * (words != PAD)
        alpha = weights.clamp(min=1e-6) / weights.clamp(min=1e-6).sum()
        real = (regions != 0).any(dim=2) if self.pads else None
        return Caption(log_prob, alpha.expand(*words.shape, -1), real=real)


@pytest.fixture
def regions():
    torch.manual_seed(0)
    return torch.rand(3, L, 6) + 0.5


@pytest.fixture
def captioner():
    torch.manual_seed(0)
    return ShowAttendTell(len(WORDS), 6, hidden_size=8, word_size=8, dropout=0.0).eval()


def test_content_words_are_those_that_the_captions_mark(regions):
    """The function words of a language other than English are no content words."""
    words, described = captions()
    marked = [one._replace(content=[word == "dog" for word in one.words]) for one in described]
    for given, number in ((described, len(CONTENT)), (marked, 2)):
        assert len(RegionDeletion().probe(Fixed([0]), regions, words, given)) == number


@pytest.mark.parametrize("most", [region_deletion.MAX_NUMBERS, 2 * L * 6])
@pytest.mark.parametrize("pads", [False, True])
def test_drops_are_those_of_one_word_at_a_time(captioner, regions, pads, most, monkeypatch):
    """Each word with regions of its own and the whole caption, in one run; all at once and two at a time."""
    monkeypatch.setattr(region_deletion, "MAX_NUMBERS", most)  # otherwise all words at once
    sizes = [L] * 3
    if pads:
        sizes = [L, 9, 14]
        captioner.leave_out_padding()
        for image, size in enumerate(sizes):
            regions[image, size:] = 0
    words, described = captions()
    with torch.no_grad():
        whole = captioner(regions, words)
        expected = []
        for image, place in CONTENT:
            one = regions[image, : sizes[image]]
            number = max(1, round(0.25 * len(one)))
            changed = regions[[image]].clone()
            changed[0, whole.alpha[image, 0, place].topk(number).indices] = one.mean(dim=0)
            after = captioner(changed, words[[image]]).log_prob[0, 0, place]
            expected.append(float(whole.log_prob[image, 0, place] - after))
    drops = RegionDeletion(share=0.25).probe(captioner, regions, words, described)
    assert sorted(drop.by_map for drop in drops) == pytest.approx(sorted(expected), abs=1e-5)
    assert max(map(abs, expected)) > 1e-4


def test_random_regions_are_real_ones_and_as_many():
    torch.manual_seed(0)
    real = torch.arange(L) < torch.tensor([[L], [7]])
    even = torch.zeros(2, L)
    masks = torch.stack([largest(even, real, torch.tensor([4.0, 2.0])) for _ in range(200)])
    assert masks.sum(dim=2).unique(dim=0).tolist() == [[4, 2]] and not masks[:, ~real].any()
    assert masks[:, real].any(dim=0).all()  # any of them


def test_a_captioner_that_ignores_its_regions_loses_nothing(regions):
    drops = RegionDeletion().probe(Fixed([]), regions, *captions())
    assert len(drops) == len(CONTENT) and all(drop == Drop(0.0, 0.0) for drop in drops)
    evaluator = RegionDeletion()
    evaluator.update(None, Results(None, [], {}, frozenset(), drops))
    assert evaluator.compute() == {"deletion": 0.0, "deletion_random": 0.0}  # no ratio of nothing


def test_a_captioner_that_sees_one_region_loses_it(regions):
    """A random choice of 2 of 20 regions hits that region in one of ten draws."""
    regions[:, 3] += 1.0
    torch.manual_seed(0)
    evaluator = RegionDeletion(draws=200)
    drops = evaluator.probe(Fixed([3]), regions, *captions())
    lost = (regions[:, 3] - regions.mean(dim=1)).sum(dim=1).tolist()
    assert sorted(drop.by_map for drop in drops) == pytest.approx(sorted([lost[0], lost[0], lost[1]]), rel=1e-4)
    evaluator.update(None, Results(None, [], {}, frozenset(), drops))
    assert evaluator.compute()["deletion_ratio"] == pytest.approx(10, rel=0.25)


def test_padding_is_never_replaced(regions):
    """Its sum would change log p; the map of an image of padding alone but for one region lies on padding, too."""
    regions[:, 5:] = 0
    drops = RegionDeletion(share=1.0, draws=2).probe(Fixed(list(range(5, L)), pads=True), regions, *captions())
    assert all(drop == Drop(0.0, 0.0) for drop in drops)


def test_nothing_is_measured_without_maps_words_or_a_full_evaluation(regions):
    class Blind(Fixed):
        def forward(self, regions, words):
            return super().forward(regions, words)._replace(alpha=None)

    assert RegionDeletion().probe(Blind([3]), regions, *captions()) == []
    assert RegionDeletion().probe(Fixed([3]), regions[:1], *captions([["on", "a"]])) == []
    evaluator = RegionDeletion()
    evaluator.update(SimpleNamespace(), Results(None, [], {}, frozenset()))
    assert evaluator.compute() == {}

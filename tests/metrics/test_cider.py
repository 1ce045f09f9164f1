"""CIDEr-D on tensors against pycocoevalcap, on made-up and on real captions."""

import json
import random
from itertools import islice

import pytest
import torch
from pycocoevalcap.cider.cider_scorer import CiderScorer

from tests.graphs import TapeGraph
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.metrics.cider import AT_ONCE, CiderD, ReferenceTable, padded, word_ids
from vision_attn.system.errors import UserError

Captions = list[list[str]]


def theirs(candidates: Captions, references: list[Captions], end: bool) -> list[float]:
    """One caption of each image, by pycocoevalcap, which counts document frequencies on the same references."""
    last = [" <end>"] if end else [""]
    scorer = CiderScorer(n=4, sigma=6.0)
    for candidate, image in zip(candidates, references, strict=True):
        scorer += (" ".join(candidate) + last[0], [" ".join(caption) + last[0] for caption in image])
    return scorer.compute_score()[1].tolist()


def ours(candidates: Captions, references: list[Captions], known: dict[str, int], end: bool) -> list[float]:
    """The same by `CiderD`, in batches of a few images, from a checkpoint."""
    counted = CiderD(end=end)
    coded = [[word_ids(caption, known) for caption in image] for image in references]
    counted.count(coded)
    cider = CiderD(end=end)
    cider.load_state_dict(counted.state_dict())
    scores = []
    for first in range(0, len(candidates), 64):
        some = padded([[word_ids(caption, known)] for caption in candidates[first : first + 64]])
        scores += cider(some, padded(coded[first : first + 64]))[:, 0].tolist()
    return scores


def made_up(num_images: int, seed: int) -> tuple[Captions, list[Captions]]:
    """Captions of 0 to 12 words of a language of ten, so that n-grams occur twice in a caption and in many images."""
    dice = random.Random(seed)
    words = [f"word{number}" for number in range(10)]

    def caption(shortest: int) -> list[str]:
        return [words[min(int(dice.expovariate(0.4)), 9)] for _ in range(dice.randrange(shortest, 13))]

    references = [[caption(0) for _ in range(dice.randrange(1, 6))] for _ in range(num_images)]
    candidates = [dice.choice([caption(0), dice.choice(image), image[0][:4]]) for image in references]
    return candidates, references


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("num_known", [10, 4, 0])
def test_made_up_captions_score_as_in_pycocoevalcap(end, num_known):
    """Whether the vocabulary knows all words, some, or none: words outside it are different words."""
    candidates, references = made_up(150, seed=0)
    assert any([] in image and any(image) for image in references) and [] in candidates
    known = {f"word{number}": 3 + number for number in range(num_known)}
    found = torch.tensor(ours(candidates, references, known, end))
    expected = torch.tensor(theirs(candidates, references, end))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert expected.max() > 9.9 and expected.std() > 1


def test_a_reference_without_words_counts_in_the_mean():
    """Also where END does not count, and nothing of it is left."""
    images = [[[1], [2, 3, 1]], [[4, 1]]]
    for end in (True, False):
        cider = CiderD(end=end)
        cider.count(images)
        assert cider(torch.tensor([[[2, 3, 1]]]), padded(images[:1])).item() == pytest.approx(
            theirs([["2", "3"]] + [["4"]], [[[], ["2", "3"]], [["4"]]], end)[0]
        )
    assert cider(torch.tensor([[[2, 3, 1]]]), padded(images[:1])).item() == pytest.approx(2.5)


def test_many_images_are_counted_as_one(monkeypatch):
    candidates, references = made_up(50, seed=1)
    whole = ours(candidates, references, {}, end=True)
    monkeypatch.setattr("vision_attn.metrics.cider.AT_ONCE", 7)  # of 1,024 images
    assert ours(candidates, references, {}, end=True) == whole and AT_ONCE > 50


def real(data_folder, name: str, most: int) -> tuple[Captions, list[Captions], dict[str, int]]:
    """A caption of each image against the others of it, and a vocabulary that lacks rare words."""
    path = data_folder / {"flickr8k": "flickr8k/captions.json", "coco": "coco/captions_val2017.json"}[name]
    if not path.is_file():
        pytest.skip(f"real captions are needed: {path} does not exist")
    by_image: dict[int, list[str]] = {}
    for annotation in json.loads(path.read_text())["annotations"]:
        by_image.setdefault(annotation["image_id"], []).append(annotation["caption"])
    images = list(islice(by_image.values(), most))
    vocabulary = Vocabulary.build((caption for image in images for caption in image), min_count=5)
    tokens = [[vocabulary.tokens(caption) for caption in image] for image in images]
    known = {word: index for index, word in enumerate(vocabulary.words)}
    return [image[0] for image in tokens], [image[1:] for image in tokens], known


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("name", ["flickr8k", "coco"])
def test_real_captions_score_as_in_pycocoevalcap(data_folder, name, end):
    candidates, references, known = real(data_folder, name, most=600)
    assert any(word not in known for caption in candidates for word in caption)
    found = torch.tensor(ours(candidates, references, known, end))
    expected = torch.tensor(theirs(candidates, references, end))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert 0.5 < expected.mean() < 2


def test_a_caption_that_stops_in_a_phrase_loses_only_where_end_counts():
    """The trap: without END in the reward, "a man in a hat with a" beats the whole caption "a man in a hat"."""
    references = [
        ["a man in a hat with a dog", "a man in a hat with a cigar", "a man in a hat", "here is a man in a hat"],
        *(["a man with a cat", "a man in a car"], ["a dog in a hat"], ["a cat with a dog"], ["a car"], ["a cigar"]),
    ]
    tokens = [[caption.split() for caption in image] for image in references]
    known = {word: 3 + index for index, word in enumerate(sorted({w for i in tokens for c in i for w in c}))}
    coded = [[word_ids(caption, known) for caption in image] for image in tokens]
    candidates = padded([[word_ids(text.split(), known) for text in ("a man in a hat", "a man in a hat with a")]])
    preferred = {}
    for end in (True, False):
        cider = CiderD(end=end)
        cider.count(coded)
        preferred[end] = cider(candidates, padded(coded[:1]))[0].argmax().item()
    assert CiderD().end and preferred == {True: 0, False: 1}


def test_only_ngrams_of_several_images_are_stored():
    cider = CiderD()
    cider.count([[[3, 4, 1]], [[3, 5, 1], [3, 5, 1]]])
    assert cider.num_images == 2 and len(cider.ngrams) == 2  # "3" and END
    assert cider.frequencies.tolist() == [2, 2]


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(UserError, match="at least two images, not 1"):
        CiderD().count([[[3, 1]]])
    with pytest.raises(UserError, match="no document frequencies"):
        CiderD()(torch.tensor([[[3, 1]]]), torch.tensor([[[3, 1]]]))


def test_a_caption_without_words_and_an_image_without_references_score_nothing():
    cider = CiderD()
    cider.count([[[3, 4, 1]], [[5, 1]], [[4, 1]]])
    captions = torch.tensor([[[0, 0, 0], [3, 4, 1]], [[3, 4, 1], [3, 4, 1]]])
    scores = cider(captions, torch.tensor([[[3, 4, 1]], [[0, 0, 0]]]))
    assert scores[0, 0] == 0 and (scores[1] == 0).all() and scores[0, 1] > 5


def test_a_table_finds_what_is_padded_batch_by_batch():
    """The references of any images of the table, of which one has none and another an empty one; None for others."""
    _, references = made_up(40, seed=3)
    images = [tuple(" ".join(caption) for caption in image) for image in [*references, []]]
    known = {f"word{number}": 3 + number for number in range(8)}
    coded = [[word_ids(caption.split(), known) for caption in image] for image in images]
    table = ReferenceTable(zip(images + images[:3], coded + coded[:3], strict=True), torch.device("cpu"))
    assert len(table.sizes) == len(set(images))
    for some in ([0, 1, 2], [40, 7], list(range(40, -1, -1))):
        found, expected = table.find([images[index] for index in some]), padded([coded[index] for index in some])
        B, M, S = expected.shape
        assert found.shape == (B, max(map(len, coded)), max(len(ids) for image in coded for ids in image))
        assert torch.equal(found[:, :M, :S], expected) and not found[:, M:].any() and not found[:, :, S:].any()
    assert table.find([images[0], ("another",)]) is None


def test_scores_can_be_recorded_and_replayed():
    """As a CUDA graph would: with other captions in the same memory, and nothing read from the device."""
    candidates, references = made_up(60, seed=4)
    known = {f"word{number}": 3 + number for number in range(8)}
    coded = [[word_ids(caption, known) for caption in image] for image in references]
    captions, cider, graph = padded([[word_ids(caption, known)] for caption in candidates]), CiderD(), TapeGraph()
    cider.count(coded)
    some, texts = captions[:30].clone(), padded(coded)[:30].clone()
    graph.capture(lambda: cider(some, texts))
    some.copy_(captions[30:])
    texts.copy_(padded(coded)[30:])
    torch.testing.assert_close(graph.replay(), cider(some.clone(), texts.clone()), rtol=0, atol=0)
    assert graph.replay().std() > 0.5

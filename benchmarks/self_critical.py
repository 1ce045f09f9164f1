"""Measure self-critical training: captions sampled and scored per second.

The plain reference samples by the same model in plain torch, and scores the captions through `pycocoevalcap`, with
document frequencies from a table, as popular code does.

Untrained captioners do not end their captions. So the ends are forced on both sides, at COCO's lengths, as in
`benchmarks.decoding`.
"""

import random
from functools import partial

import torch
from pycocoevalcap.cider.cider_scorer import CiderScorer
from torch import Tensor

from benchmarks.decoding import Ending, random_ends
from benchmarks.measure import seconds, table
from benchmarks.shapes import END, Shapes, random_batch
from benchmarks.show_attend_tell import ours, plain
from vision_attn.decode import sample
from vision_attn.metrics.cider import CiderD, padded

REFERENCES = 5


class TableScorer(CiderScorer):
    """`pycocoevalcap`'s scorer with the document frequencies of `num_images` other images."""

    def __init__(self, frequencies: dict[tuple, float], num_images: int):
        super().__init__(n=4, sigma=6.0)
        self.document_frequency, self.images = frequencies, num_images

    @property
    def ref_len(self) -> float:
        """log(number of images), which the scorer would take from the batch."""
        return float(torch.tensor(self.images, dtype=torch.double).log())

    @ref_len.setter
    def ref_len(self, value: float | None) -> None:
        pass


def text(words: Tensor) -> str:
    """Word ids as a sentence of numbers, END included."""
    return " ".join(map(str, words[: int((words != 0).sum())].tolist()))


def plain_scores(words: Tensor, references: list[list[str]], frequencies: dict, num_images: int) -> list[float]:
    """CIDEr-D of captions (images, rows, words) by the Python metric."""
    scorer = TableScorer(frequencies, num_images)
    for captions, texts in zip(words, references, strict=True):
        for caption in captions:
            scorer += (text(caption), texts)
    return scorer.compute_cider()


def self_critical(shapes: Shapes, repeats: int) -> str:
    """The table of sampling and scoring."""
    shapes = shapes._replace(lengths="COCO's lengths")
    regions, ends = random_batch(shapes).regions, random_ends(shapes)
    model, plain_model = (Ending(side(shapes).model.eval(), ends) for side in (ours, plain))
    max_words = ends.shape[1]
    coded = references(shapes, 50 if shapes.quick else 2000)
    cider = CiderD()
    cider.count(coded)
    frequencies = python_frequencies(coded)
    coded = coded[: shapes.images]
    texts, tensors = [[" ".join(map(str, ids)) for ids in image] for image in coded], padded(coded)

    def our_words() -> Tensor:
        return sample(model, regions, rows=shapes.rows, max_words=max_words).words

    def their_words() -> Tensor:
        return sample(plain_model, regions, rows=shapes.rows, max_words=max_words).words

    num_images = int(cider.num_images)
    words = our_words()
    expected = torch.tensor(plain_scores(words, texts, frequencies, num_images)).view(words.shape[:2])
    torch.testing.assert_close(cider(words, tensors), expected, rtol=0, atol=1e-6)
    runs = {
        "sampled": (our_words, their_words),
        "scored": (partial(cider, words, tensors), partial(plain_scores, words, texts, frequencies, num_images)),
        "sampled and scored": (
            lambda: cider(our_words(), tensors),
            lambda: plain_scores(their_words(), texts, frequencies, num_images),
        ),
    }
    rows = []
    for name, (our_run, plain_run) in runs.items():
        taken = seconds({"ours": our_run, "plain": plain_run}, repeats, name)
        rate = {side: shapes.captions / spent for side, spent in taken.items()}
        rows.append((name, f"{rate['ours']:.0f}", f"{rate['plain']:.0f}", f"{rate['ours'] / rate['plain']:.1f}x"))
    title = f"Self-critical steps: {shapes.rows} captions of {shapes.images} images, captions/s"
    return table(title, ("", "ours", "plain", "ratio"), rows)


def references(shapes: Shapes, num_images: int) -> list[list[list[int]]]:
    """Random captions with the word frequencies of a language: word n is 1/n as frequent as the first."""
    dice = random.Random(0)
    words = range(3, shapes.vocabulary)
    weights = [1 / (1 + index) for index in range(len(words))]
    return [
        [[*dice.choices(words, weights, k=dice.randint(8, 14)), END] for _ in range(REFERENCES)]
        for _ in range(num_images)
    ]


def python_frequencies(images: list[list[list[int]]]) -> dict[tuple, float]:
    """The document frequencies of `pycocoevalcap`, of n-grams of words."""
    scorer = CiderScorer(n=4)
    for image in images:
        scorer += ("", [" ".join(map(str, ids)) for ids in image])
    scorer.compute_doc_freq()
    return scorer.document_frequency

"""`Question`, a question with its answer, facts and supporting facts, and batches of questions as tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from vision_attn.contracts import PAD
from vision_attn.data.random_streams import FRESH, stream, uniform
from vision_attn.data.vocabulary import UNKNOWN, Vocabulary


class Question(NamedTuple):
    """A question about a story, or about an image, which has no `facts`."""

    text: str
    answer: str
    """One word of the vocabulary, in lower case."""
    kind: str
    """The group in which metrics count the question, such as the number of a task."""
    facts: tuple[str, ...] = ()
    """The sentences of the story up to the question, in order."""
    support: tuple[int, ...] = ()
    """The positions in `facts` of the supporting facts, from which the answer follows, in the order of the
    reasoning."""


class QuestionBatch(NamedTuple):
    """Questions about stories or images."""

    facts: Int[Tensor, "B L W"] | UInt8[Tensor, "B 3 Y X"]
    """The word ids of sentences, the latest first; or images."""
    words: Int[Tensor, "B W"]
    """The word ids of the questions."""
    answers: Int[Tensor, "B"]
    """The word ids of the answers."""
    support: Bool[Tensor, "B N L"] | None
    """The supporting sentences, in the order of the reasoning; None for images."""
    boxes: Float[Tensor, "B N 4"] | None
    """The boxes (x0, y0, x1, y1) in [-1, 1] of the supporting objects of an image, in the order of the reasoning; NaN
    where a question has fewer objects. None for stories."""
    questions: tuple[Question, ...]
    ids: tuple[str, ...]


class EncodedQuestions(NamedTuple):
    """Questions about stories as tensors: the fields of `QuestionBatch`."""

    facts: Int[Tensor, "N L W"]
    words: Int[Tensor, "N W"]
    answers: Int[Tensor, "N"]
    support: Bool[Tensor, "N _ L"]


def encode_questions(questions: Sequence[Question], vocabulary: Vocabulary, max_facts: int) -> EncodedQuestions:
    """Return questions and the `max_facts` latest sentences of their stories as word ids, the latest sentence first."""
    words = padded([vocabulary.encode(question.text) for question in questions])
    answers = torch.tensor([vocabulary.index.get(question.answer, UNKNOWN) for question in questions])
    known: dict[str, list[int]] = {}
    stories = [question.facts[: -max_facts - 1 : -1] for question in questions]
    for fact in {fact for story in stories for fact in story}:
        known[fact] = vocabulary.encode(fact)
    longest, width = max(map(len, stories)), max(map(len, known.values()))
    facts = torch.full((len(stories), longest, width), PAD)
    most = max(len(question.support) for question in questions)
    support = torch.zeros(len(stories), most, longest, dtype=torch.bool)
    for row, (question, story) in enumerate(zip(questions, stories, strict=True)):
        for place, fact in enumerate(story):
            facts[row, place, : len(known[fact])] = torch.tensor(known[fact])
        for number, supporting in enumerate(question.support):
            if (place := len(question.facts) - 1 - supporting) < longest:
                support[row, number, place] = True
    return EncodedQuestions(facts, words, answers, support)


def padded(lists: Sequence[Sequence[int]], width: int = 0) -> Int[Tensor, "N W"]:
    """Return lists of word ids as one tensor, padded with 0, at least `width` wide."""
    width = max(width, *map(len, lists))
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in lists])


def shuffled(number: int, seed: int, epoch: int) -> Int[np.ndarray, "number"]:
    """Return the order of `number` training items in an epoch."""
    return uniform(stream(FRESH, seed % 2**64, epoch), number).argsort(kind="stable")

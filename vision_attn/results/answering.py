"""`AnswersQuestions`, the part of `Model` that answers questions about a story or an image."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch

from vision_attn.data.images.open import Encoded
from vision_attn.data.stories.question import Question, encode_questions, padded
from vision_attn.data.stories.stories import QuestionSource
from vision_attn.data.text_encoding import read_text
from vision_attn.results.images import Picture, encoded, held, name_of, whole
from vision_attn.results.result_list import ResultList
from vision_attn.system.console import few, suggest
from vision_attn.system.errors import UserError
from vision_attn.viz.memory_hops import AnsweredImage, AnsweredStory

if TYPE_CHECKING:
    from vision_attn.results.answered import AnswerResult

STORY = "story"
"""The name of a story that is given as text."""
SENTENCES = re.compile(r"(?<=[.!?])\s+|\s*\n\s*")
"""Matches the end of a sentence in a text."""
MOST_FACTS = 50
"""The number of sentences that a run reads if its data do not set it."""


class AnswersQuestions:
    """The part of `Model` that answers questions."""

    task: Any
    source: Any
    name: str
    device: torch.device
    turn: Any
    check: Callable[[str], None]

    @overload
    def answer(self, facts: "Picture | Sequence[str]", question: str) -> "AnswerResult": ...
    @overload
    def answer(self, facts: "Picture | Sequence[str]", question: Sequence[str]) -> "ResultList[AnswerResult]": ...
    def answer(self, facts: "Picture | Sequence[str]", question: str | Sequence[str]) -> Any:
        """Answer one or several questions about a story or an image. Returns a `StoryAnswer` or a `SceneAnswer`, or a
        list of them, with `text` (the answer), `probability`, `probabilities` of all words, and `alpha`, the weight of
        each sentence or region in each hop.

        facts: for a run on stories, a text, a list of sentences, or the name of a text file; for a run on images, an
            image as `caption` takes it.

        Raises UserError if the run knows no word of a question or a story; single unknown words are listed in `unknown`
        of the result.
        """
        self.check("answer")
        asked = [question] if isinstance(question, str) else list(question)
        if not asked or not all(isinstance(question, str) and question.strip() for question in asked):
            raise UserError("a question is a text of at least one word")
        told = self._of_image(facts, asked) if self.task.encoder else self._of_story(facts, asked)
        results = ResultList(told)
        return results[0] if isinstance(question, str) else results

    def _of_story(self, given: Any, asked: Sequence[str]) -> "Iterator[AnswerResult]":
        from vision_attn.results.answered import StoryAnswer

        name, sentences = story_of(given)
        unknown = self._unknown(sentences, name if name != STORY else "this story")
        most = self.source.max_facts if isinstance(self.source, QuestionSource) else MOST_FACTS
        facts, words, *_ = encode_questions(
            [Question(question, "", "", tuple(sentences)) for question in asked], self.task.vocabulary, most
        )
        new = [self._unknown([question], f"the question {question!r}") for question in asked]
        for number, (question, alpha, probabilities) in enumerate(self._answered(facts, words, asked)):
            shown = AnsweredStory(question, sentences[-most:], (), None, *self._best_answer(probabilities), alpha)
            missing = list(dict.fromkeys([*new[number], *unknown]))
            yield StoryAnswer(
                name, shown, probabilities, self.task.vocabulary.words, self.task.model.scored, missing, self.name
            )

    def _of_image(self, given: Any, asked: Sequence[str]) -> "Iterator[AnswerResult]":
        from vision_attn.results.answered import SceneAnswer

        encoder, vocabulary = self.task.encoder, self.task.vocabulary
        if isinstance(given, list | tuple) and not isinstance(given, Encoded):
            raise UserError(f"{self.name} answers questions about one image: give them one after the other")
        name = name_of(given, 1)
        image = held(given, name)
        pixels: Any = encoded(image, encoder.resolution, encoder.fit)
        new = [self._unknown([question], f"the question {question!r}") for question in asked]
        words = padded([vocabulary.encode(question) for question in asked])
        picture, way = whole(image), f"attention of {type(self.task.model).__name__}"
        facts = pixels[None].expand(len(asked), *pixels.shape)
        for number, (question, alpha, probabilities) in enumerate(self._answered(facts, words, asked)):
            maps = alpha.unflatten(1, encoder.grid)
            shown = AnsweredImage(
                question, None, *self._best_answer(probabilities), maps, picture, (), encoder.extent()
            )
            yield SceneAnswer(
                name, shown, probabilities, vocabulary.words, self.task.model.scored, new[number], self.name, image,
                encoder.fit, way,
            )  # fmt: skip

    @torch.no_grad()
    def _answered(self, facts: torch.Tensor, words: torch.Tensor, asked: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield each question, the weights of its hops, and the probability of each word as the answer."""
        with self.turn:
            log_prob, alpha = self.task.answered(facts.to(self.device), words.to(self.device))
            return zip(asked, alpha.float().cpu(), log_prob.exp().cpu(), strict=True)

    def _best_answer(self, probabilities: torch.Tensor) -> tuple[str, float]:
        return self.task.vocabulary.words[int(probabilities.argmax())], float(probabilities.max())

    def _unknown(self, texts: Sequence[str], what: str) -> list[str]:
        """Return the words of texts that are not in the vocabulary. Raises UserError if none is.

        what: the name of the texts, for the message.
        """
        vocabulary = self.task.vocabulary
        words = list(dict.fromkeys(word for text in texts for word in vocabulary.tokens(text)))
        missing = [word for word in words if word not in vocabulary.index]
        if len(missing) == len(words):
            known = few(sorted(word for word in vocabulary.index if word.isalpha()), 12)
            raise UserError(f"{self.name} knows no word of {what}; the words that it knows are {known}")
        return missing


def hint(result: "AnswerResult") -> str:
    """Return a hint about the words that the model does not know; empty if it knows all."""
    if not result.unknown:
        return ""
    known = [word for word in result.names if word.isalpha()]
    unknown = result.unknown[0] if len(result.unknown) == 1 else ""
    like = suggest(unknown, known) if unknown else ""
    like = like if like.startswith("; did you mean") else ""
    return f"unknown to this model, which may answer wrongly: {few(result.unknown, 8)}{like}"


def story_of(given: Any) -> tuple[str, list[str]]:
    """Return the name and the sentences of a story: a text, a list of sentences, or the name of a text file. Raises
    UserError for anything else, and for a story without a sentence."""
    name = STORY
    if isinstance(given, Path) or (isinstance(given, str) and "\n" not in given and os.path.isfile(given)):
        name = str(given)
        given = read_text(Path(given))
    if isinstance(given, str):
        if given and not re.search(r"\s", given):
            raise UserError(f"{given}: no such file: a story is a text of sentences, or a file that holds one")
        given = SENTENCES.split(given.strip())
    if not isinstance(given, list | tuple) or not all(isinstance(sentence, str) for sentence in given):
        raise UserError("this run answers questions about stories: give a text or a list of sentences, not an image")
    if not (sentences := [sentence.strip() for sentence in given if sentence.strip()]):
        raise UserError(f"{name}: there is no sentence")
    return name, sentences

"""`Captioned`, the base of data sets of photographs with captions in any language: vocabulary, language and function
words."""

from collections.abc import Iterator, Sequence, Set
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from vision_attn.data.vocabulary import Vocabulary, VocabularySource
from vision_attn.metrics.function_words import LANGUAGES, CaptionLanguage, commonest, language_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import find


class Captioned(VocabularySource):
    """Base class of data sets with captions in any language."""

    function_words: str | list[str] | None = None
    """The function words of the captions, or the language whose function words they are; None: those of the detected
    language."""
    vocabulary_file: str | None
    """A saved vocabulary; None: one is built from `captions_of_words`."""
    min_count: int
    max_words: int | None
    _on_language = ""
    """A message for the user, if the function words are not known."""

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary: restored with a run, read from a file, or built from training captions."""
        if self.vocabulary_file:
            return self.with_function_words(self.saved(find(self.vocabulary_file)))
        limits: dict[str, Any] = {"min_count": self.min_count, "max_words": self.max_words}
        return self.with_function_words(Vocabulary.build(self.captions_of_words(), words=self.words, **limits))

    def captions_of_words(self) -> Iterator[str]:
        """Yield the training captions from which the vocabulary is built."""
        raise NotImplementedError

    def captions_by_image(self) -> Iterator[Sequence[str]]:
        """Return all captions of each photograph, of every split."""
        raise NotImplementedError

    def all_captions(self) -> Iterator[str]:
        """Return all captions of every split."""
        return chain.from_iterable(self.captions_by_image())

    @cached_property
    def caption_language(self) -> CaptionLanguage:
        """The language of all captions."""
        if isinstance(self.function_words, str) and self.function_words != "english":
            return CaptionLanguage(self.function_words, f"data.function_words is {self.function_words}")
        language = language_of(self.all_captions())
        return language if self.function_words != "english" else CaptionLanguage("english", terse=language.terse)

    def check_function_words(self) -> None:
        """Raise UserError for an unknown language."""
        if isinstance(self.function_words, str) and self.function_words not in LANGUAGES:
            raise UserError(
                f"data.function_words is {self.function_words!r:.80}, and must be a language "
                f"({', '.join(LANGUAGES)}) or a list of words"
            )

    def restore(self, folder: Path) -> None:
        super().restore(folder)
        if (given := self._given) is not None:
            self.vocabulary.function_words = given

    def with_function_words(self, vocabulary: Vocabulary) -> Vocabulary:
        """Set the function words of a vocabulary, and return it. They come from the config, from the captions' language
        or, if it is none of `LANGUAGES`, they are the words that most photographs have. If single words have no
        meaning, as with characters, there are no function words."""
        given = self._given
        if given is None and vocabulary.splitter.content:
            given = LANGUAGES.get(self.caption_language.name)
            if given is None:
                given = self._commonest(vocabulary)
        if given is not None:
            vocabulary.function_words = given
        return vocabulary

    @property
    def _given(self) -> Set[str] | None:
        if isinstance(self.function_words, str):
            return LANGUAGES[self.function_words]
        return None if self.function_words is None else frozenset(map(str.lower, self.function_words))

    def _commonest(self, vocabulary: Vocabulary) -> Set[str]:
        words = commonest(chain.from_iterable(map(vocabulary.tokens, texts)) for texts in self.captions_by_image())
        substitute = (
            f"those that stand in the captions of most photographs are taken for them: {', '.join(words)}"
            if words
            else "no word stands in the captions of most photographs, so all count as content words"
        )
        self._on_language = (
            f"the function words of these captions are not known ({self.caption_language.not_english}); {substitute}; "
            "name others by --data.function_words, a list or a language"
        )
        return frozenset(words)

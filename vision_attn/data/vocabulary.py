"""`Vocabulary`, the words of captions in any language and their ids, and `VocabularySource`, the base of data sets with
one."""

import json
import re
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any

from vision_attn.contracts import END, PAD
from vision_attn.data.words import KINDS, SPECIALS, UNKNOWN, WORD, Kind, Pieces, Spaces, WordSplitter, spans
from vision_attn.metrics.function_words import FUNCTION_WORDS
from vision_attn.system.errors import UserError
from vision_attn.system.files import read_json, replacing
from vision_attn.system.word_spacing import joined
from vision_attn.task import Source

MAX_BYTES, MAX_WORDS = 2**26, 500_000
"""The largest numbers of bytes and words of a saved vocabulary."""
OWN_FUNCTION_WORDS = "function_words.json"
"""The name of the file of function words, if they are not those of English."""

_SENTENCE = ".,;:!?'\"()[]-\u2013\u2014\u2026\u2018\u2019\u201c\u201d"
_SENTENCE += "\u00ab\u00bb\u00a1\u00bf\u3001\u3002\uff0c\uff1a\uff1b\uff01\uff1f\u300c\u300d"
"""Punctuation of sentences, which carries no meaning of its own that a captioner should learn."""
_SYMBOL = re.compile(rf"[^\w\s{re.escape(_SENTENCE)}]|_")
"""Matches symbols whose loss may change the meaning of a caption, but also combining marks and emoji."""

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Matches control characters, line separators and lone surrogates, which no tokenizer leaves in words."""


class Vocabulary:
    """Maps words to ids: 0 padding and start, 1 end, 2 unknown words, then words by decreasing count."""

    function_words: Set[str] = FUNCTION_WORDS
    """The function words of the captions' language; all others are content words. `VocabularySource.export` writes them
    to a separate file."""

    def __init__(self, words: Iterable[str], splitter: WordSplitter | None = None) -> None:
        """words: all words except the special ones.
        splitter: splits captions into words; None: at spaces.
        """
        self.splitter = splitter or Spaces()
        self.words: list[str] = [*SPECIALS, *words]
        self.index = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def build(
        cls, captions: Iterable[str], *, words: Kind | None = None, min_count: int = 5, max_words: int | None = None
    ) -> "Vocabulary":
        """Build a vocabulary of the words of captions, by decreasing count; equal counts in alphabetical order.

        words: how captions are split; None: at spaces.
        min_count, max_words: the smallest count of a word, and the largest number of words. For byte-pair pieces they
            limit the merges; every character of the captions is a piece.
        """
        splitter = KINDS[words or Spaces.kind]()
        frequent = splitter.frequent(captions, min_count, max_words)
        if len(frequent) > MAX_WORDS - len(SPECIALS):
            raise UserError(
                f"the captions have {len(frequent):,} words: raise min_count, or set max_words below {MAX_WORDS:,}"
            )
        return cls(frequent, splitter)

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        """Read a file written by `save`: the words, and how captions are split.

        The tokenizer in the file is not used: the file may come from anyone, and matching its patterns might never end.
        Raises UserError naming the file if it is missing, too large, damaged, or written by another tool.
        """
        if not Path(path).is_file():
            raise UserError(f"{path}: no such vocabulary file")
        try:
            return cls(*_read(path))
        except UserError as error:
            raise UserError(f"{path} is not a vocabulary written by `vision-attn prepare`: {error}") from error

    def extended(self, words: Iterable[str]) -> "Vocabulary":
        """Return a vocabulary with all words of this one, under the same ids, followed by the new ones of `words`. A
        vocabulary of pieces is returned unchanged, since further pieces would split its words differently."""
        if isinstance(self.splitter, Pieces):
            return self
        new = [word for word in dict.fromkeys(words) if word not in self.index]
        if len(self) + len(new) > MAX_WORDS:
            raise UserError(f"{len(self):,} words and {len(new):,} new ones are more than {MAX_WORDS:,}")
        return Vocabulary([*self.words[len(SPECIALS) :], *new], self.splitter)

    def json(self) -> str:
        """Return the content of the file that `save` writes. If captions are split at spaces, it is the standard JSON
        of the `tokenizers` library."""
        return self.splitter.json(self.index)

    def save(self, path: str | Path) -> None:
        """Write `json`."""
        with replacing(path) as temporary:
            temporary.write_text(self.json(), encoding="utf-8")

    def __len__(self) -> int:
        return len(self.words)

    def tokens(self, caption: str) -> list[str]:
        """Split `caption` into words, known or not."""
        return self.splitter.split(caption)

    def left_out(self, caption: str) -> list[str]:
        """Return the symbols of `caption` that are dropped with their meaning, such as "||" and "+"; punctuation of
        sentences does not count."""
        if not self.splitter.drops or not _SYMBOL.search(caption):  # true of most captions, and many times as fast
            return []
        text, placed = spans(caption)
        words = [span for _, span in placed]
        gaps = zip([0, *(end for _, end in words)], [*(start for start, _ in words), len(text)], strict=True)
        pieces = (piece.strip(_SENTENCE) for start, end in gaps for piece in text[start:end].split())
        return [piece for piece in pieces if piece]

    def encode(self, caption: str) -> list[int]:
        """Return the ids of the caption's words, without END."""
        return [self.index.get(word, UNKNOWN) for word in self.splitter.split(caption)]

    def targets(self, caption: str, max_length: int) -> list[int]:
        """Return the ids of the caption's words, and END. A longer caption is cut to its first `max_length` words,
        without END, since a captioner should not learn that it ends there."""
        ids = self.encode(caption)
        return [*ids, END] if len(ids) <= max_length else ids[:max_length]

    def decode(self, ids: Iterable[int]) -> str:
        """Join the words of `ids` up to the first END: see `system.word_spacing`."""
        words = []
        for index in ids:
            if index == END:
                break
            if index != PAD:
                words.append(self.words[index])
        return joined(words)


class VocabularySource(Source):
    """A data set of captions with a vocabulary, which is saved in the folder of a run as `vocabulary.json`."""

    vocabulary_type: Any = Vocabulary
    """The class of `vocabulary`; `Characters` has the same methods."""

    words: Kind | None = None
    """How captions are split into words; None: as a saved vocabulary does, or at spaces."""

    def export(self, folder: Path) -> None:
        """Write vocabulary.json and, unless the function words are those of English, function_words.json, a list."""
        self.vocabulary.save(Path(folder) / "vocabulary.json")
        path, words = Path(folder) / OWN_FUNCTION_WORDS, self.vocabulary.function_words
        if words == FUNCTION_WORDS:
            path.unlink(missing_ok=True)
            return
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(sorted(words), ensure_ascii=False) + "\n", encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Read the files that `export` wrote. Without function_words.json, the function words are those of English."""
        self.vocabulary = self.saved(Path(folder) / "vocabulary.json")
        if (path := Path(folder) / OWN_FUNCTION_WORDS).is_file():
            self.vocabulary.function_words = _read_function_words(path)

    def extend(self, folder: Path) -> tuple[int, int] | None:
        """Take the vocabulary of the run in `folder`, and append the words that are new in this data. Return the old
        and the new number of words; None if the run has no vocabulary."""
        path = Path(folder) / "vocabulary.json"
        if not path.is_file():
            return None
        start, own = self.saved(path), self.vocabulary
        self.vocabulary = start.extended(own.words)
        self.vocabulary.function_words = own.function_words
        return len(start), len(self.vocabulary)

    def saved(self, path: Path) -> Any:
        """Load a saved vocabulary. Raises UserError if `words` asks for another way to split captions."""
        vocabulary = self.vocabulary_type.load(path)
        if isinstance(vocabulary, Vocabulary):
            kind = vocabulary.splitter.kind
            if self.words not in (None, kind):
                raise UserError(
                    f"data.words is {self.words}, but the vocabulary {path} is of words={kind}: leave data.words out, "
                    "or train without that vocabulary (data.vocabulary, run.start_from), from scratch, such as with "
                    f"configs/sat_soft_small.yaml and --data.words={self.words}"
                )
            self.words = kind
        return vocabulary


def _read_function_words(path: Path) -> frozenset[str]:
    words = read_json(path) if path.stat().st_size <= MAX_BYTES else None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UserError(f"{path} is damaged: it must be a list of words")
    return frozenset(words)


def _read(path: str | Path) -> tuple[list[str], WordSplitter]:
    """Read the words of a saved vocabulary, without the special ones, in the order of their ids, and the splitter of
    captions."""
    if Path(path).stat().st_size > MAX_BYTES:
        raise UserError(f"it has more than {MAX_BYTES // 2**20} MiB")
    content = read_json(path)
    try:
        kind = content.get("words", Spaces.kind)
        ids = content["model"]["vocab"]
        pattern = content["pre_tokenizer"]["pattern"]["Regex"] if kind == Spaces.kind else WORD
        if len(ids) > MAX_WORDS:
            raise UserError(f"it has more than {MAX_WORDS:,} words")
        words = sorted(ids, key=ids.__getitem__)
        numbers = list(map(ids.__getitem__, words))
        merges = content["model"]["merges"] if kind == Pieces.kind else ()
    except (AttributeError, LookupError, TypeError):
        raise UserError("its words, or the pattern that finds them, are missing") from None
    if kind not in [*KINDS] or pattern != WORD:
        raise UserError("it was made by another version or another tool, which splits words differently")
    if words[: len(SPECIALS)] != SPECIALS or numbers != [*range(len(numbers))] or {*map(type, numbers)} != {int}:
        raise UserError(f"word ids must count up from 0, beginning with {', '.join(SPECIALS)}")
    for word in words:
        if not word or _UNPRINTABLE.search(word):
            raise UserError(f"{word[:80]!r} is not a word")
    return words[len(SPECIALS) :], Pieces(_merges(merges, ids), ids) if kind == Pieces.kind else KINDS[kind]()


def _merges(merges: Any, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges of a file. Raises UserError unless each joins two pieces to a third."""
    try:
        pairs = [(first, second) for first, second in merges]
        if all(isinstance(pair[0], str) and {*pair, "".join(pair)} <= ids.keys() for pair in pairs):
            return pairs
    except (TypeError, ValueError):
        pass
    raise UserError("its merges do not join pieces to pieces")

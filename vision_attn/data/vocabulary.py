"""Words and their ids, for captions in any language; uses the `tokenizers` library.

A word is a run of letters, digits and combining marks, and may contain apostrophes and hyphens. A French or Italian
elision ("l'") is its own word; so is each character of a script without spaces, and each emoji. Punctuation is dropped.
Text is lower-cased and normalised to Unicode's compatibility form (NFKC); accents are kept.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFKC, Lowercase, Replace, Sequence
from tokenizers.pre_tokenizers import Split

from vision_attn.contracts import END, PAD
from vision_attn.system.files import read_json, replacing
from vision_attn.task import Source

UNKNOWN = 2
SPECIALS = ["<pad>", "<end>", "<unk>"]

# Thai, Lao, Burmese, Khmer, kana and Chinese characters: scripts that put no space between words.
SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
SPACELESS += "\uf900-\ufaff\U00020000-\U0003ffff"
# Words of Persian and of Indian scripts may contain the two invisible joiners.
LETTERS = rf"(?:(?![{SPACELESS}])[\p{{L}}\p{{N}}\p{{M}}\u200c\u200d])+"
PICTOGRAPH = r"\p{Extended_Pictographic}[\ufe0f\p{Emoji_Modifier}]*"
WORD = "|".join(
    [
        r"\p{N}+(?:[.,:]\p{N}+)+",  # 3.5  10,000  12:30
        rf"(?=[\p{{L}}\p{{N}}])[{SPACELESS}]\p{{M}}*",
        r"(?:qu|\p{L})'(?=\p{L})",  # l'homme, qu'il; but not don't
        rf"{LETTERS}(?:['-]{LETTERS})*",
        r"\p{Regional_Indicator}{2}",  # flags
        rf"{PICTOGRAPH}(?:\u200d{PICTOGRAPH})*",
    ]
)
MAX_BYTES, MAX_WORDS = 2**26, 500_000
"""Limits of a saved vocabulary."""

_SENTENCE = ".,;:!?'\"()[]-\u2013\u2014\u2026\u2018\u2019\u201c\u201d"
_SENTENCE += "\u00ab\u00bb\u00a1\u00bf\u3001\u3002\uff0c\uff1a\uff1b\uff01\uff1f\u300c\u300d"
"""Punctuation of sentences, which carries no meaning of its own that a captioner should learn."""
_SYMBOL = re.compile(rf"[^\w\s{re.escape(_SENTENCE)}]|_")
"""What may be left out of a caption with its meaning; combining marks and emoji match too."""

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line separators and lone surrogates: no tokenizer produces words with them."""


class Vocabulary:
    """Maps words to ids: 0 padding and start, 1 end, 2 unknown words, then words by decreasing count."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises ValueError if the ids of `tokenizer` are not as in `build`."""
        self.index = ids = tokenizer.get_vocab()
        self.tokenizer = tokenizer
        self.words: list[str] = sorted(ids, key=lambda word: ids[word])
        if self.words[:3] != SPECIALS or sorted(ids.values()) != list(range(len(ids))):
            raise ValueError(f"word ids must count up from 0, beginning with {', '.join(SPECIALS)}")

    @classmethod
    def build(cls, captions: Iterable[str], *, min_count: int = 5, max_words: int | None = None) -> "Vocabulary":
        """Keep words that occur at least `min_count` times, at most `max_words`; equal counts in alphabetical order."""
        tokenizer = _tokenizer([])
        counts: Counter[str] = Counter()
        for caption in captions:
            counts.update(_tokens(tokenizer, caption))
        frequent = [word for word, count in counts.items() if count >= min_count]
        frequent.sort(key=lambda word: (-counts[word], word))
        if len(frequent[:max_words]) > MAX_WORDS - len(SPECIALS):
            raise ValueError(
                f"the captions have {len(frequent):,} words: raise min_count, or set max_words below {MAX_WORDS:,}"
            )
        return cls(_tokenizer(frequent[:max_words]))

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        """Read the words of a file written by `save`, and build the tokenizer as in `build`.

        The tokenizer in the file is not used: the file may come from anyone, and matching its patterns might never end.
        Raises ValueError naming the file if it is missing, too large, damaged, or written by another tool.
        """
        if not Path(path).is_file():
            raise ValueError(f"{path}: no such vocabulary file")
        try:
            return cls(_tokenizer(_words(path)))
        except ValueError as error:
            raise ValueError(f"{path} is not a vocabulary written by `vision-attn prepare`: {error}") from error

    def extended(self, words: Iterable[str]) -> "Vocabulary":
        """Return a vocabulary with all words of this one, under the same ids, followed by those of `words` that it
        lacks."""
        known = set(self.words)
        new = [word for word in dict.fromkeys(words) if word not in known]
        if len(self) + len(new) > MAX_WORDS:
            raise ValueError(f"{len(self):,} words and {len(new):,} new ones are more than {MAX_WORDS:,}")
        return Vocabulary(_tokenizer(self.words[len(SPECIALS) :] + new))

    def save(self, path: str | Path) -> None:
        """Write the standard JSON of the `tokenizers` library, which `tokenizers.Tokenizer.from_file` can read."""
        with replacing(path) as temporary:
            temporary.write_text(self.tokenizer.to_str(pretty=True), encoding="utf-8")

    def __len__(self) -> int:
        return len(self.words)

    def tokens(self, caption: str) -> list[str]:
        """Split `caption` into words, known or not."""
        return _tokens(self.tokenizer, caption)

    def left_out(self, caption: str) -> list[str]:
        """The symbols of `caption` that are in no word, such as "||" and "+"; without the punctuation of sentences."""
        if not _SYMBOL.search(caption):  # true of most captions, and many times as fast
            return []
        text = self.tokenizer.normalizer.normalize_str(caption)
        words = [span for _, span in self.tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        gaps = zip([0, *(end for _, end in words)], [*(start for start, _ in words), len(text)], strict=True)
        pieces = (piece.strip(_SENTENCE) for start, end in gaps for piece in text[start:end].split())
        return [piece for piece in pieces if piece]

    def encode(self, caption: str) -> list[int]:
        """Return the ids of the caption's words, without END."""
        return self.tokenizer.encode(caption, add_special_tokens=False).ids

    def targets(self, caption: str, max_length: int) -> list[int]:
        """Return the ids of the caption's words, and END; of a longer caption the first `max_length` words, without
        END: a captioner should not learn that it ends there."""
        ids = self.encode(caption)
        return [*ids, END] if len(ids) <= max_length else ids[:max_length]

    def decode(self, ids: Iterable[int]) -> str:
        """Join the words of `ids` up to the first END, with the spacing of their script."""
        words = []
        for index in ids:
            if index == END:
                break
            if index != PAD:
                words.append(self.words[index])
        return "".join(word + _gap(word, following) for word, following in pairwise([*words, ""]))


class VocabularySource(Source):
    """A data set of captions, whose vocabulary is kept with the run: `vocabulary.json` in its folder."""

    vocabulary_type: type[Vocabulary] = Vocabulary
    """The class of `vocabulary`; `Characters` has the same methods."""

    def export(self, folder: Path) -> None:
        self.vocabulary.save(Path(folder) / "vocabulary.json")

    def restore(self, folder: Path) -> None:
        self.vocabulary = self.vocabulary_type.load(Path(folder) / "vocabulary.json")

    def extend(self, folder: Path) -> tuple[int, int] | None:
        """Append the words that are new in this data to those of the run in `folder`; None if it has none."""
        path = Path(folder) / "vocabulary.json"
        if not path.is_file():
            return None
        start = self.vocabulary_type.load(path)
        self.vocabulary = start.extended(self.vocabulary.words)
        return len(start), len(self.vocabulary)


def _words(path: str | Path) -> list[str]:
    """Read the words of a saved vocabulary, without the special ones, in the order of their ids."""
    if Path(path).stat().st_size > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES // 2**20} MiB")
    content = read_json(path)
    try:
        ids, pattern = content["model"]["vocab"], content["pre_tokenizer"]["pattern"]["Regex"]
        if len(ids) > MAX_WORDS:
            raise ValueError(f"it has more than {MAX_WORDS:,} words")
        words = sorted(ids, key=ids.__getitem__)
        numbers = list(map(ids.__getitem__, words))
    except (AttributeError, LookupError, TypeError):
        raise ValueError("its words, or the pattern that finds them, are missing") from None
    if pattern != WORD:
        raise ValueError("it was made by another version or another tool, which splits words differently")
    if words[: len(SPECIALS)] != SPECIALS or numbers != [*range(len(numbers))] or {*map(type, numbers)} != {int}:
        raise ValueError(f"word ids must count up from 0, beginning with {', '.join(SPECIALS)}")
    for word in words:
        if not word or _UNPRINTABLE.search(word):
            raise ValueError(f"{word[:80]!r} is not a word")
    return words[len(SPECIALS) :]


def _tokenizer(words: list[str]) -> Tokenizer:
    ids = {word: index for index, word in enumerate([*SPECIALS, *words])}
    tokenizer = Tokenizer(WordLevel(ids, unk_token=SPECIALS[UNKNOWN]))
    tokenizer.normalizer = Sequence(
        [
            # Before NFKC, which would turn a spacing accent used as an apostrophe into a space.
            Replace(Regex("[\u2018\u2019\u02bc\u00b4`]"), "'"),
            Replace("\u00ad", ""),  # soft hyphen
            NFKC(),
            Replace("\u2010", "-"),
            Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = Split(Regex(WORD), behavior="removed", invert=True)
    return tokenizer


def _tokens(tokenizer: Tokenizer, caption: str) -> list[str]:
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(caption))]


def _gap(word: str, following: str) -> str:
    """Return the space between two words: none in scripts without spaces, after an elision, and at the end."""
    joined = re.match(f"[{SPACELESS}]", word) and re.match(f"[{SPACELESS}]", following)
    return "" if joined or word.endswith("'") or not following else " "

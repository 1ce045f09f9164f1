"""Split captions into words: at spaces, with or without lower-casing, as written, by character, by the segmenter of a
language, or into byte-pair pieces.

Every kind except `raw` first normalises the text: to Unicode's compatibility form (NFKC), without punctuation, and to
lower case except for `cased`; accents are kept. `system.word_spacing.joined` joins words to a caption again.
"""

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Literal, get_args

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.normalizers import NFKC, Lowercase, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import Split, WhitespaceSplit
from tokenizers.trainers import BpeTrainer

from vision_attn.system.errors import UserError
from vision_attn.system.word_spacing import SPACELESS, START

Kind = Literal["spaces", "cased", "raw", "characters", "jieba", "fugashi", "pieces"]
SPECIALS = ["<pad>", "<end>", "<unk>"]
UNKNOWN = 2
MAX_PIECES = 8000
"""The largest number of pieces if `max_words` is not set."""

# Words of Persian and of Indian scripts may contain the two invisible joiners.
LETTERS = rf"(?:(?![{SPACELESS}])[\p{{L}}\p{{N}}\p{{M}}\u200c\u200d])+"
PICTOGRAPH = r"\p{Extended_Pictographic}[\ufe0f\p{Emoji_Modifier}]*"
JOINED_PICTOGRAPHS = rf"{PICTOGRAPH}(?:\u200d{PICTOGRAPH})*"
FLAG = r"\p{Regional_Indicator}{2}"
WORD = "|".join(
    [
        r"\p{N}+(?:[.,:]\p{N}+)+",  # 3.5  10,000  12:30
        rf"(?=[\p{{L}}\p{{N}}])[{SPACELESS}]\p{{M}}*",
        r"(?:qu|\p{L})'(?=\p{L})",  # l'homme, qu'il; but not don't
        rf"{LETTERS}(?:['-]{LETTERS})*",
        FLAG,
        JOINED_PICTOGRAPHS,
    ]
)
SAME_CASE = [
    # Before NFKC, which would turn a spacing accent used as an apostrophe into a space.
    Replace(Regex("[\u2018\u2019\u02bc\u00b4`]"), "'"),
    Replace("\u00ad", ""),  # soft hyphen
    NFKC(),
    Replace("\u2010", "-"),
]
CASED, NORMALIZER = Normalizers(SAME_CASE), Normalizers([*SAME_CASE, Lowercase()])
AT_SPACES = Split(Regex(WORD), behavior="removed", invert=True)
PLAIN, PLAIN_WORD = re.compile(r'[A-Za-z .,:;!?"()]*'), re.compile("[a-z]+")
"""Captions whose words are their runs of letters alone, and such a word: true of most captions of photographs."""
CHARACTERS = Split(
    Regex(rf"{START}?(?:{FLAG}|{JOINED_PICTOGRAPHS}|.[\p{{M}}\u200c\u200d]*)"), behavior="removed", invert=True
)


def spans(caption: str, normalizer: Normalizers = NORMALIZER) -> tuple[str, list[tuple[str, tuple[int, int]]]]:
    """Return the normalised text, and its words, split at spaces, with their positions."""
    text = normalizer.normalize_str(caption)
    return text, AT_SPACES.pre_tokenize_str(text)


class WordSplitter(ABC):
    """Base class of the ways to split captions into words."""

    kind: Kind
    content: bool = True
    """Whether a single word has a meaning; characters and pieces may have none."""
    drops: bool = True
    """Whether punctuation and symbols are dropped."""
    merges: Sequence[tuple[str, str]] = ()
    """The merges of byte-pair pieces."""

    @abstractmethod
    def split(self, caption: str) -> list[str]:
        """Return the words of a caption, known or not."""

    @property
    def scored(self) -> Callable[[str], list[str]] | None:
        """The function that splits captions for scoring; None: COCO's tokenizer, which splits at spaces."""
        return self.split

    def frequent(self, captions: Iterable[str], min_count: int, max_words: int | None) -> list[str]:
        """Return the words of captions by decreasing count; equal counts in alphabetical order.

        min_count, max_words: the smallest count of a word, and the largest number of words.
        """
        counts = Counter(word for caption in captions for word in self.split(caption))
        frequent = [word for word, count in counts.items() if count >= min_count]
        return sorted(frequent, key=lambda word: (-counts[word], word))[:max_words]

    def json(self, ids: dict[str, int]) -> str:
        """Return the content of a vocabulary file.

        ids: the id of each word.
        """
        model = {"vocab": ids, "merges": self.merges}
        return json.dumps({"words": self.kind, "model": model}, indent=2, ensure_ascii=False) + "\n"


class Spaces(WordSplitter):
    """A word is a run of letters, digits and combining marks, and may contain apostrophes and hyphens. A French or
    Italian elision ("l'") is its own word; so is each character of a script without spaces, and each emoji."""

    kind = "spaces"
    scored = None

    def split(self, caption: str) -> list[str]:
        if PLAIN.fullmatch(caption):  # the same words, many times as fast
            return PLAIN_WORD.findall(caption.lower())
        return [word for word, _ in spans(caption)[1]]

    def json(self, ids: dict[str, int]) -> str:
        """Return the standard JSON of the `tokenizers` library."""
        tokenizer = Tokenizer(WordLevel(ids, unk_token=SPECIALS[UNKNOWN]))
        tokenizer.normalizer, tokenizer.pre_tokenizer = NORMALIZER, AT_SPACES
        return tokenizer.to_str(pretty=True)


class Cased(WordSplitter):
    """Like `Spaces`, but keeps upper and lower case, for languages like German, whose nouns begin with capitals. Words
    are scored in lower case."""

    kind = "cased"
    scored = None

    def split(self, caption: str) -> list[str]:
        return [word for word, _ in spans(caption, CASED)[1]]


class Raw(WordSplitter):
    """A word is any text between white space, with its case, punctuation and symbols: for code, formulas and captions
    that are already split."""

    kind = "raw"
    content = drops = False

    def split(self, caption: str) -> list[str]:
        return [START + word for word in caption.split()]

    @property
    def scored(self) -> Callable[[str], list[str]]:
        return str.split


class SingleCharacters(WordSplitter):
    """A word is a character with its combining marks. In scripts with spaces, the first one of a word is marked."""

    kind = "characters"
    content = False

    def split(self, caption: str) -> list[str]:
        return [character for run in _runs(caption) for character, _ in CHARACTERS.pre_tokenize_str(run)]


class Segmented(WordSplitter):
    """Words that a library finds in text of a language without spaces. The library is imported at the first use."""

    def split(self, caption: str) -> list[str]:
        text = "".join(run.replace(START, " ") for run in _runs(caption))
        return [word.strip() for word in segmenter(self.kind)(text) if word.strip()]


class Jieba(Segmented):
    """Chinese words."""

    kind = "jieba"


class Fugashi(Segmented):
    """Japanese words: morphemes of MeCab, with the dictionary UniDic."""

    kind = "fugashi"


class Pieces(WordSplitter):
    """Byte-pair pieces (Sennrich et al. 2016) of words, or of runs of text in scripts without spaces."""

    kind = "pieces"
    content = False

    def __init__(self, merges: Sequence[tuple[str, str]] = (), ids: dict[str, int] | None = None) -> None:
        self._model(merges, ids or dict(zip(SPECIALS, range(3), strict=True)))

    def _model(self, merges: Sequence[tuple[str, str]], ids: dict[str, int]) -> None:
        self.merges = [*merges]
        self.tokenizer = Tokenizer(BPE(ids, self.merges, unk_token=SPECIALS[UNKNOWN]))
        self.tokenizer.pre_tokenizer = WhitespaceSplit()

    def split(self, caption: str) -> list[str]:
        """Split into pieces. Characters that were not in the training captions become "<unk>"."""
        return self.tokenizer.encode(" ".join(_runs(caption)), add_special_tokens=False).tokens

    @property
    def scored(self) -> Callable[[str], list[str]] | None:
        """Return a splitter that is independent of the pieces: by character if most pieces are of scripts without
        spaces."""
        known = [word for word in self.tokenizer.get_vocab() if word not in SPECIALS]
        spaceless = sum(bool(re.search(f"[{SPACELESS}]", word)) for word in known)
        return Spaces().split if 2 * spaceless > len(known) else None

    def frequent(self, captions: Iterable[str], min_count: int, max_words: int | None) -> list[str]:
        """Merge the most frequent pairs, with at least `min_count` occurrences, until there are `max_words` pieces (by
        default `MAX_PIECES`)."""
        size = len(SPECIALS) + (MAX_PIECES if max_words is None else max_words)
        trainer = BpeTrainer(vocab_size=size, min_frequency=min_count, special_tokens=SPECIALS, show_progress=False)
        self.tokenizer.train_from_iterator((" ".join(_runs(caption)) for caption in captions), trainer)
        model = json.loads(self.tokenizer.to_str())["model"]
        self._model([(first, second) for first, second in model["merges"]], model["vocab"])
        return sorted(model["vocab"], key=model["vocab"].__getitem__)[len(SPECIALS) :]


KINDS: dict[str, type[WordSplitter]] = {
    splitter.kind: splitter for splitter in (Spaces, Cased, Raw, SingleCharacters, Jieba, Fugashi, Pieces)
}
SCORED = tuple(kind for kind in get_args(Kind) if kind != "pieces")
"""The kinds that need no training on captions."""


def _runs(caption: str) -> list[str]:
    """Split a caption into runs of characters without spaces. In scripts with spaces, a run is a word, and begins with
    `START`."""
    runs: list[str] = []
    before = False
    for word, _ in spans(caption)[1]:
        spaceless = bool(re.match(f"[{SPACELESS}]", word))
        if runs and (before and spaceless or runs[-1].endswith("'")):  # an elision
            runs[-1] += word
        else:
            runs.append(word if spaceless else START + word)
        before = spaceless
    return runs


@cache
def segmenter(kind: str) -> Callable[[str], list[str]]:
    """Return the function of a library that splits a text. Raises UserError naming the extra to install if the library
    is missing."""
    try:
        if kind == "jieba":
            jieba: Any = import_module("jieba")
            jieba.setLogLevel("WARNING")
            return jieba.lcut
        tagger = import_module("fugashi").Tagger()
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"words={kind} needs the extra [languages]: pip install 'vision_attn[languages]' ({error})"
        ) from error
    return lambda text: [word.surface for word in tagger(text)]

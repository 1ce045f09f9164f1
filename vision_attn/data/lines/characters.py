"""`Characters`, the vocabulary of transcripts in any script: characters and their ids.

A character is a Unicode code point of the transcript in composed form (NFC). Case, spaces and punctuation are kept.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from vision_attn.contracts import END, PAD
from vision_attn.data.vocabulary import MAX_BYTES, MAX_WORDS, SPECIALS, UNKNOWN
from vision_attn.metrics.function_words import FUNCTION_WORDS
from vision_attn.system.errors import UserError
from vision_attn.system.files import read_json, replacing


class Characters:
    """Maps characters to ids: 0 padding and start (and the blank of CTC), 1 end, 2 unknown, then by code point.

    Has the methods of `Vocabulary`; its words are characters.
    """

    function_words = FUNCTION_WORDS

    def __init__(self, characters: Iterable[str]) -> None:
        """Raises UserError for an item that is not a single code point, and for a repeated one."""
        characters = list(characters)
        wrong = [
            character
            for character in characters
            if not isinstance(character, str) or len(character) != 1 or _unprintable(character)
        ]
        if wrong or len(set(characters)) != len(characters):
            raise UserError(f"{wrong[0]!r:.80} is not a character" if wrong else "a character occurs twice")
        if len(characters) > MAX_WORDS:
            raise UserError(f"{len(characters):,} characters are more than {MAX_WORDS:,}")
        self.words: list[str] = [*SPECIALS, *characters]
        self.index = {word: number for number, word in enumerate(self.words) if number >= len(SPECIALS)}

    @classmethod
    def build(cls, transcripts: Iterable[str]) -> "Characters":
        """Keep every printable character of `transcripts`, ordered by code point."""
        counts: Counter[str] = Counter()
        for transcript in transcripts:
            counts.update(composed(transcript))
        return cls(sorted(character for character in counts if not _unprintable(character)))

    @classmethod
    def load(cls, path: str | Path) -> "Characters":
        """Read a file written by `save`. Raises UserError naming the file if it is missing or damaged."""
        if not Path(path).is_file():
            raise UserError(f"{path}: no such file of characters")
        if Path(path).stat().st_size > MAX_BYTES:
            raise UserError(f"{path} has more than {MAX_BYTES // 2**20} MiB: it is not a file of characters")
        content = read_json(path)
        try:
            if not isinstance(content["characters"], list):
                raise TypeError("its characters are not a list")
            return cls(content["characters"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is not a file of characters written by a run ({error})") from error

    def save(self, path: str | Path) -> None:
        with replacing(path) as temporary:
            text = json.dumps({"characters": self.words[len(SPECIALS) :]}, ensure_ascii=False)
            temporary.write_text(text + "\n", encoding="utf-8")

    def extended(self, words: Iterable[str]) -> "Characters":
        """Return a vocabulary with all characters of this one, under the same ids, followed by the new ones of
        `words`."""
        known = self.words[len(SPECIALS) :]
        return Characters(list(dict.fromkeys([*known, *(word for word in words if word not in SPECIALS)])))

    def __len__(self) -> int:
        return len(self.words)

    def tokens(self, transcript: str) -> list[str]:
        """Split a transcript into characters, known or not."""
        return list(composed(transcript))

    def encode(self, transcript: str) -> list[int]:
        """Return the ids of the characters, without END; `UNKNOWN` for unknown ones."""
        return [self.index.get(character, UNKNOWN) for character in composed(transcript)]

    def decode(self, ids: Iterable[int]) -> str:
        """Join the characters of `ids` up to the first END."""
        characters = []
        for number in ids:
            if number == END:
                break
            if number != PAD:
                characters.append(self.words[number])
        return "".join(characters)


def composed(transcript: str) -> str:
    """Return the transcript in composed form (NFC), without white space at its ends."""
    return unicodedata.normalize("NFC", transcript).strip()


def _unprintable(character: str) -> bool:
    """Return whether a code point is a control character, a line separator or a lone surrogate."""
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")

"""Join words to the text of a caption, with spaces or without, depending on the script."""

import re
from collections.abc import Sequence
from itertools import pairwise

# Thai, Lao, Burmese, Khmer, kana and Chinese characters: scripts that put no space between words.
SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
SPACELESS += "\uf900-\ufaff\U00020000-\U0003ffff"
START = "\u2581"
"""The mark at the beginning of a word of a script with spaces, on its first piece or character, as in SentencePiece."""
_SPACELESS = re.compile(f"[{SPACELESS}]")


def shown(word: str) -> str:
    """Return a word of a vocabulary as a reader sees it."""
    return word.removeprefix(START)


def gaps(words: Sequence[str]) -> list[str]:
    """Return the gap after each word, a space or nothing: nothing in scripts without spaces, after an elision such as
    l', between pieces of a word, and at the end."""
    pieces = any(word.startswith(START) for word in words)
    return [_gap(word, following, pieces) for word, following in pairwise([*words, ""])]


def joined(words: Sequence[str]) -> str:
    """Return the caption of these words as text."""
    return "".join(shown(word) + gap for word, gap in zip(words, gaps(words), strict=True))


def _gap(word: str, following: str, pieces: bool) -> str:
    spaceless = [bool(_SPACELESS.search(neighbour)) for neighbour in (word, following)]
    if following.startswith(START):
        return " "
    if not following or all(spaceless):
        return ""
    if pieces:
        return " " if any(spaceless) else ""
    return "" if word.endswith("'") else " "

"""What the metrics of captions need to know of the language: whether it is English, and whether words stand apart."""

import unicodedata
from collections.abc import Sequence

from vision_attn.metrics.variety import FUNCTION_WORDS

FEW, MANY = 0.1, 200
"""The share of function words, in English near a half, below which a text of `MANY` words or more is not English."""
LONG = 4
"""Letters of a caption of one word from which on it may be a sentence."""


def not_english(captions: Sequence[str], segmented: bool) -> str:
    """Why tokenised references are not English; "" if they may be."""
    if segmented:
        return "it compares English words, and these captions are split in another way"
    letters = [letter for caption in captions for letter in caption if letter.isalpha()]
    latin = sum(letter < "\u0250" for letter in letters)
    if 2 * latin < len(letters):
        return f"it knows English, and {len(letters) - latin:,} of {len(letters):,} letters are not Latin"
    words = [word for caption in captions for word in caption.lower().split()]
    common = sum(word in FUNCTION_WORDS for word in words)
    if len(words) < MANY or common >= FEW * len(words):
        return ""
    return f"it knows English, and only {common:,} of {len(words):,} words are among those that English sentences share"


def unsegmented(captions: Sequence[str]) -> list[str]:
    """A note if more than half of the tokenised captions are one word of several letters of a script without case, as
    where words are written without spaces."""
    whole = [caption for caption in captions if " " not in caption and sum(map(_caseless, caption)) >= LONG]
    if 2 * len(whole) <= len(captions):
        return []
    return [
        f"{len(whole):,} of {len(captions):,} captions are written without spaces and were not segmented, so that each "
        "is one word: `vision-attn score --words characters` segments them (jieba for Chinese words, fugashi for "
        "Japanese ones), and --data.words=characters trains and measures a captioner in this way"
    ]


def _caseless(letter: str) -> bool:
    return unicodedata.category(letter) == "Lo"

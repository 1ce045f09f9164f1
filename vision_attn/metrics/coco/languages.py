"""Note captions of languages that are written without spaces between words."""

import unicodedata
from collections.abc import Sequence

LONG = 4
"""A caption of a single word with at least this number of letters may be a sentence."""


def unsegmented(captions: Sequence[str]) -> list[str]:
    """Return a note if more than half of the tokenised captions are one word of several letters in a script without
    case, as in languages written without spaces."""
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

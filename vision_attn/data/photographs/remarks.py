"""Messages before a training about its captions: how many are cut, and which symbols are dropped."""

from collections import Counter
from collections.abc import Iterable, Iterator

from vision_attn.data.vocabulary import Vocabulary

SYMBOLS = 0.05
"""The smallest share of captions with dropped symbols that is reported."""
SHOWN = 8
"""The largest number of different symbols that are named."""


def remarks(
    captions: Iterable[str], cut: Iterable[str], vocabulary: Vocabulary, max_length: int, of: str = "training captions"
) -> Iterator[str]:
    """Yield messages about captions.

    cut: the captions with more than `max_length` words.
    of: what messages call the captions.
    """
    counts: Counter[str] = Counter()
    total = with_symbols = 0
    for caption in captions:
        symbols = vocabulary.left_out(caption)
        counts.update(symbols)
        with_symbols += bool(symbols)
        total += 1
    if lengths := [len(vocabulary.encode(caption)) for caption in cut]:
        longest = max(lengths)
        yield (
            f"{len(lengths):,} of {total:,} {of} have more than {max_length} words, and are cut; to keep them whole, "
            f"add --data.max_length={longest} --task.max_words={longest + 1}"
        )
    if total and with_symbols >= SYMBOLS * total:
        named = [
            f"{symbol} ({f'{count:,} times' if count > 1 else 'once'})" for symbol, count in counts.most_common(SHOWN)
        ]
        others = f" and {len(counts) - SHOWN:,} others" * (len(counts) > SHOWN)
        yield (
            f"left out as punctuation, in {with_symbols:,} of {total:,} {of}: {', '.join(named)}{others}; where they "
            "carry the meaning, write them as words, such as plus for +, or add --data.words=raw, which keeps case and "
            "punctuation too"
        )

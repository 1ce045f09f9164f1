"""Check photographs and their captions before a training: what is read, what is missing, and which words there are.

Takes the config and the options of `train`, and opens no photograph. Prints how many photographs and captions each
split has, how long captions are, which are cut, and what share of the words in validation and testing would be known
with each data.min_count.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from vision_attn.commands._hints import add_config, read_config
from vision_attn.system.console import say
from vision_attn.system.errors import UserError
from vision_attn.system.files import find_best, shipped

if TYPE_CHECKING:
    from vision_attn.data.photographs.captions import Captions

COUNTS = (1, 2, 3, 5, 10)
"""The values of data.min_count to try."""
SHOWN = 12
"""The largest number of words to name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn check`."""
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object, with how often each word occurs")


def run(arguments: argparse.Namespace) -> int:
    """Print the statistics of a data set of captions. Raises UserError for problems that would stop a training."""
    from vision_attn.configuration.config import build
    from vision_attn.data.photographs.captions import Captions

    config = read_config(arguments)
    source = build(config)["data"]
    if not isinstance(source, Captions):
        raise UserError(f"the data of {arguments.config} are no photographs with captions, which `check` reads")
    told = measured(source, config.run.start_from)
    for line in [json.dumps(told, ensure_ascii=False)] if arguments.json else lines(told, source.min_count):
        say(line)
    return 0


def measured(source: "Captions", start_from: str | None) -> dict[str, Any]:
    """Return the numbers of a data set.

    start_from: a run; its words count as known, besides those that are frequent in the data.
    """
    tokens, splits = source.vocabulary.tokens, dict[str, list[list[list[str]]]]()
    for found in source.located().values():
        for split, members in found.items():
            each = ([tokens(text) for text in photograph.captions] for photograph in members)
            splits.setdefault(split, []).extend(each)
    words = {split: [*chain.from_iterable(members)] for split, members in splits.items()}
    lengths = [len(caption) for caption in chain.from_iterable(words.values())]
    counts = Counter(chain.from_iterable(map(tokens, source.captions_of_words())))
    others = Counter(chain.from_iterable(words["val"] + words["test"]))
    known = known_words(source, counts, start_from)
    return {
        "photographs": {split: len(members) for split, members in splits.items()},
        "captions": {split: len(captions) for split, captions in words.items()},
        "length": {"mean": sum(lengths) / len(lengths), "least": min(lengths), "most": max(lengths)},
        "max_length": source.max_length,
        "cut": sum(length > source.max_length for length in lengths),
        "start_from": start_from,
        "known": {
            count: {
                "words": len(those),
                "share": sum(others[word] for word in those) / others.total() if others else None,
            }
            for count, those in known.items()
        },
        "words": dict(counts.most_common()),
    }


def known_words(source: "Captions", counts: Counter[str], start_from: str | None) -> dict[int, set[str]]:
    """Return the words that a captioner knows, for several values of data.min_count: frequent words, and those of the
    run that the training starts from."""
    from vision_attn.data.vocabulary import Vocabulary
    from vision_attn.data.words import SPECIALS, Pieces

    values = sorted({*COUNTS, source.min_count})
    if source.vocabulary_file or isinstance(source.vocabulary.splitter, Pieces):  # data.min_count has no effect
        return dict.fromkeys(values, {*source.vocabulary.words})
    before = start_from and find_best(shipped(start_from)) / "vocabulary.json"
    start = {*(Vocabulary.load(before).words if before else SPECIALS)}
    frequent = counts.most_common(source.max_words)
    return {least: start.union(word for word, count in frequent if count >= least) for least in values}


def lines(told: Mapping[str, Any], min_count: int) -> Iterator[str]:
    """Yield the lines to print for the result of `measured`."""
    for split, number in told["photographs"].items():
        yield f"{split:<5} {number:,} photographs, {told['captions'][split]:,} captions"
    length, start = told["length"], told["start_from"]
    yield f"words of a caption: {length['mean']:.1f}, from {length['least']} to {length['most']}"
    if told["cut"]:
        yield f"captions of more than data.max_length={told['max_length']} words, which are cut: {told['cut']:,}"
    yield f"data.min_count  words known  of the words in val and test{f', with those of {start}' if start else ''}"
    for count, known in told["known"].items():
        share = "-" if known["share"] is None else f"{known['share']:.1%}"
        yield f"{count:>14}  {known['words']:>11,}  {share}{'  (this config)' * (count == min_count)}"
    words = told["words"].items()
    yield f"most frequent: {', '.join(f'{word} {count:,}' for word, count in [*words][:SHOWN])}"
    rare = [word for word, count in words if count == 1]
    if rare:
        yield f"once only: {len(rare):,}, such as {', '.join(rare[:SHOWN])}"

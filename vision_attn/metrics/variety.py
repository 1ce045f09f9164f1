"""Detect what BLEU does not reveal: identical captions for different images, repeated words, and cut captions."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from vision_attn.metrics.function_words import FUNCTION_WORDS as FUNCTION_WORDS  # known by this path before
from vision_attn.metrics.function_words import is_content as is_content
from vision_attn.system.console import plural

MIN_CAPTIONS = 5
"""The smallest number of captions to judge, since two photographs may well deserve the same caption."""

CORPUS = 50
"""The smallest number of images whose BLEU or CIDEr says something of a captioner."""

MAX_SHARE = 0.5
"""A captioner with at least this share of identical captions is reported as ignoring its images."""


def repetition(content: Iterable[Sequence[str]]) -> dict[str, float]:
    """Return `repetition`, the share of captions in which a content word occurs twice or more; {} without captions.

    content: the content words of each caption.
    """
    repeated = [len({*map(str.lower, words)}) < len(words) for words in content]
    return {"repetition": sum(repeated) / len(repeated)} if repeated else {}


def same_caption(captions: Iterable[str]) -> dict[str, float]:
    """Return `same_caption`, the share of images with the most frequent caption, from 1 / N to 1; {} for few images."""
    counts = Counter(captions)
    total = sum(counts.values())
    return {"same_caption": max(counts.values()) / total} if total >= MIN_CAPTIONS else {}


def sameness(
    metrics: Mapping[str, float], unit: str = "image", *, pretrained: bool = False, photographs: bool = False
) -> list[str]:
    """Return one line of advice if `same_caption` in `metrics` is at least MAX_SHARE, else nothing.

    unit: the noun for a captioned item.
    pretrained: whether a captioner of transformers wrote the captions.
    photographs: whether to mention the config for few photographs.
    """
    share = metrics.get("same_caption", 0.0)
    if not share >= MAX_SHARE:
        return []
    said = f"{share:.0%} of the {unit}s have the same caption: the captioner does not tell them apart"
    if pretrained:
        return [f"{said}; another --prompt may help"]
    return [
        f"{said}. Train it for more steps (a larger run.epochs, a smaller data.batch_size) or on more {unit}s"
        + "; for a few hundred photographs of your own there is configs/finetune_photographs.yaml" * photographs
    ]


def few_images(number: int, unit: str = "image") -> list[str]:
    """Return one line of advice if a corpus has too few images (or other units) for its scores, else nothing."""
    if number >= CORPUS:
        return []
    return [f"scores of {plural(number, unit)} say little: BLEU and CIDEr are measures of a corpus, and "
            f"with fewer than {CORPUS} images chance decides"]  # fmt: skip


def cut_short(metrics: Mapping[str, float], *, pretrained: bool = False) -> list[str]:
    """Return one line of advice if `cut` in `metrics`, the share of cut captions, is not 0, else nothing.

    pretrained: whether a captioner of transformers wrote the captions.
    """
    share = metrics.get("cut", 0.0)
    if not share > 0:
        return []
    if pretrained:
        return [
            f"{100 * share:.3g}% of the captions were cut before their end, at the length of the model's own settings "
            "(max_new_tokens or max_length), or at --task.max_words: raise --task.max_words, which counts tokens"
        ]
    return [
        f"{100 * share:.3g}% of the decoded texts were cut at --task.max_words, before their end: raise it; if most "
        "are, the captions of training may have been cut as well: raise --data.max_length too, and train again"
    ]

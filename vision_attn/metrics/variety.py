"""Detect a captioner that ignores its images, or whose captions are cut, which BLEU does not reveal."""

from collections import Counter
from collections.abc import Iterable, Mapping

MIN_CAPTIONS = 5
"""The smallest number of captions to judge: two photographs may well deserve the same one."""

MAX_SHARE = 0.5
"""The share of identical captions from which on a captioner counts as ignoring its images."""


def same_caption(captions: Iterable[str]) -> dict[str, float]:
    """Return `same_caption`, the share of images with the most frequent caption, from 1 / N to 1; {} for few images."""
    counts = Counter(captions)
    total = sum(counts.values())
    return {"same_caption": max(counts.values()) / total} if total >= MIN_CAPTIONS else {}


def sameness(metrics: Mapping[str, float]) -> list[str]:
    """Return one line of advice if `same_caption` in `metrics` is at least MAX_SHARE, else nothing."""
    share = metrics.get("same_caption", 0.0)
    if not share >= MAX_SHARE:
        return []
    return [
        f"{share:.0%} of the images have the same caption: the captioner does not tell them apart. Train it for more "
        "steps (a larger run.epochs, a smaller data.batch_size) or on more images; for a few hundred photographs of "
        "your own there is configs/finetune_photographs.yaml"
    ]


def cut_short(metrics: Mapping[str, float]) -> list[str]:
    """Return one line of advice if any caption was cut, by `cut` in `metrics`, the share of those that were."""
    share = metrics.get("cut", 0.0)
    if not share > 0:
        return []
    return [
        f"{100 * share:.3g}% of the decoded texts were cut at --task.max_words, before their end: raise it; if most "
        "are, the captions of training may have been cut as well: raise --data.max_length too, and train again"
    ]

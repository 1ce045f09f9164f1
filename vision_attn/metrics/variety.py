"""Whether captions differ from image to image: a captioner that ignores its images is not shown by BLEU."""

from collections import Counter
from collections.abc import Iterable, Mapping

FEWEST = 5
"""Captions below which nothing is said: two photographs may well deserve the same one."""

MOST = 0.5
"""The share of images with one and the same caption from which on a captioner is said not to look."""


def same_caption(captions: Iterable[str]) -> dict[str, float]:
    """`same_caption`: the share of images that got the most frequent caption, from 1 / N to 1; {} for few images."""
    counts = Counter(captions)
    total = sum(counts.values())
    return {"same_caption": max(counts.values()) / total} if total >= FEWEST else {}


def sameness(metrics: Mapping[str, float]) -> list[str]:
    """One line with what to do where `same_caption` of `metrics` says that (nearly) all captions are the same."""
    share = metrics.get("same_caption", 0.0)
    if not share >= MOST:
        return []
    return [
        f"{share:.0%} of the images have the same caption: the captioner does not tell them apart. Train it for more "
        "steps (a larger run.epochs, a smaller data.batch_size), on more images, or, for a few hundred photographs, "
        "with configs/sat_soft_small.yaml"
    ]

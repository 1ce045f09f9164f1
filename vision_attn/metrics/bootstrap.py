"""Bootstrap intervals of caption metrics (Koehn, EMNLP 2004): how far a metric would move with other images.

    report = caption_metrics(candidates, references)
    interval(resampled(report)["CIDEr"])  # low, high

Images are resampled with their captions and references. The references of all images keep their weights in CIDEr: the
scores of single images stay as they are.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from vision_attn.metrics.coco.captions import CLIP, ORDERS, Report

RESAMPLES = 1000
"""Sets of images that are drawn with replacement, each as large as the original one."""
PERCENTILES = (2.5, 97.5)
METEOR_WEIGHTS = (1.0, 0.6, 0.8, 0.6)
"""Of exact matches, stems, synonyms and paraphrases, for English (Denkowski and Lavie 2014, table 2)."""
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
"""The other parameters of METEOR for English."""


def resampled(report: Report, *, seed: int = 0) -> dict[str, Float[ndarray, "resamples"]]:
    """Each metric of `report` for RESAMPLES sets of its images. Empty for fewer than two images.

    The sets depend on `seed` and the number of images alone: for two reports of the same images in the same order, the
    difference of their arrays is that of paired samples.
    """
    means = [name for name in ("ROUGE-L", "CIDEr", "SPICE", *CLIP) if name in report.metrics]
    scored = [one for one in report.each.values() if all(one[name] is not None for name in means)]
    values = {name: np.array([[one[name]] for one in scored]) for name in means}
    values |= {job: np.array(counts, dtype=float) for job, counts in report.counts.items()}
    num_images = min(map(len, values.values()), default=0)
    values = {name: one for name, one in values.items() if len(one) == num_images}  # images may be left out of some
    if num_images < 2:
        return {}
    sums = resampled_sums(np.concatenate(list(values.values()), axis=1), seed=seed)
    split = np.split(sums, np.cumsum([one.shape[1] for one in values.values()])[:-1], axis=1)
    found: dict[str, ndarray] = {}
    for name, part in zip(values, split, strict=True):
        found |= (
            {"bleu": bleu, "meteor": meteor}[name](part) if name in report.counts else {name: part[:, 0] / num_images}
        )
    return {name: found[name] for name in report.metrics if name in found}


def resampled_sums(values: Float[ndarray, "images K"], *, seed: int = 0) -> Float[ndarray, "resamples K"]:
    """The sums of `values` over RESAMPLES sets of images."""
    random, size = np.random.default_rng(seed), len(values)
    draws = (np.bincount(random.integers(size, size=size), minlength=size) for _ in range(RESAMPLES))
    return np.stack([times @ values for times in draws])


def interval(values: Float[ndarray, "resamples *sets"]) -> Float[ndarray, "2 *sets"]:
    """The percentile interval of 95%."""
    return np.percentile(values, PERCENTILES, axis=0)


def bleu(sums: Float[ndarray, "rows 10"]) -> dict[str, Float[ndarray, "rows"]]:
    """Corpus BLEU (Papineni et al. 2002) of sums over images: the length of the captions and of the closest references,
    and for n = 1 to 4 the n-grams that match and all. Smoothed as in `pycocoevalcap`."""
    tiny, small = 1e-15, 1e-9
    length, closest = sums[:, 0], sums[:, 1]
    logs = np.log((sums[:, 2:6] + tiny) / (sums[:, 6:] + small)).cumsum(axis=1)
    plain = {f"BLEU-{n}-no-brevity": np.exp(logs[:, n - 1] / n) for n in ORDERS}
    penalty = np.exp(np.minimum(0, 1 - (closest + small) / (length + tiny)))
    return {f"BLEU-{n}": plain[f"BLEU-{n}-no-brevity"] * penalty for n in ORDERS} | plain


def meteor(sums: Float[ndarray, "rows 23"]) -> dict[str, Float[ndarray, "rows"]]:
    """METEOR 1.5 (Denkowski and Lavie 2014) of sums over images, of the numbers that its program returns for one.

    These are the words of captions and of references, how many of them are function words, for each kind of match the
    content words and the function words matched of both, chunks, and the words matched of both.
    """
    words, function, chunks, matched = sums[:, :2], sums[:, 2:4], sums[:, 20], sums[:, 21:]
    content, functional = np.moveaxis(sums[:, 4:20].reshape(-1, 4, 2, 2), 2, 0)  # each (rows, kinds, both)
    weighted = np.einsum("k,rkb->rb", METEOR_WEIGHTS, DELTA * content + (1 - DELTA) * functional)
    with np.errstate(divide="ignore", invalid="ignore"):  # no word, or none that matches: 0
        precision, recall = (weighted / (DELTA * (words - function) + (1 - DELTA) * function)).T
        mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
        fragmentation = chunks / matched.mean(axis=1)
        return {"METEOR": np.nan_to_num(mean * (1 - GAMMA * fragmentation**BETA))}

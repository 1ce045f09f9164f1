"""Compute corpus metrics of captions from sums over images, and their confidence intervals over images.

    report = caption_metrics(candidates, references)
    estimates(report)["CIDEr"].interval()  # low, high

An image is left out with its caption and references (`metrics.intervals`). The references of all images keep their
weights in CIDEr: the scores of single images stay as they are.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from vision_attn.metrics.coco.captions import CLIP, ORDERS, Report
from vision_attn.metrics.intervals import Jackknife

METEOR_WEIGHTS = (1.0, 0.6, 0.8, 0.6)
"""METEOR's weights of exact matches, stems, synonyms and paraphrases for English (Denkowski and Lavie 2014, table
2)."""
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
"""The other parameters of METEOR for English."""


def estimates(report: Report) -> dict[str, Jackknife]:
    """Estimate each metric of `report` from all images and with each image left out. Empty for fewer than two images.

    For two reports on the same images in the same order, the difference of their estimates is that of paired images.
    BLEU and METEOR are smooth functions of sums over images, so the jackknife holds for them as for means (Miller
    1974); but if BLEU-4 rests on very few common sequences of four words, it is hardly smooth, and intervals are wide.
    """
    means = [name for name in ("ROUGE-L", "CIDEr", "SPICE", *CLIP) if name in report.metrics]
    scored = [scores for scores in report.by_image.values() if all(scores[name] is not None for name in means)]
    values = {name: np.array([[scores[name]] for scores in scored]) for name in means}
    values |= {job: np.array(counts, dtype=float) for job, counts in report.counts.items()}
    num_images = min(map(len, values.values()), default=0)
    values = {
        name: value for name, value in values.items() if len(value) == num_images
    }  # images may be left out of some
    if num_images < 2:
        return {}
    whole, others = dict[str, ndarray](), dict[str, ndarray]()
    for name, value in values.items():
        total = value.sum(axis=0, keepdims=True)
        whole |= _metrics(name, total, num_images)
        others |= _metrics(name, total - value, num_images - 1)
    return {name: Jackknife(whole[name][0], others[name]) for name in report.metrics if name in whole}


def _metrics(name: str, sums: Float[ndarray, "rows K"], num_images: int) -> dict[str, Float[ndarray, "rows"]]:
    """Compute metrics of the corpus from sums over images: those of a job ("bleu", "meteor"), or a metric that is a
    mean."""
    if name == "bleu":
        return bleu(sums)
    return meteor(sums) if name == "meteor" else {name: sums[:, 0] / num_images}


def bleu(sums: Float[ndarray, "rows 10"]) -> dict[str, Float[ndarray, "rows"]]:
    """Compute corpus BLEU (Papineni et al. 2002) from sums over images: the lengths of the captions and of the closest
    references, and for n = 1 to 4 the numbers of matching and of all n-grams. Smoothed as in `pycocoevalcap`."""
    tiny, small = 1e-15, 1e-9
    length, closest = sums[:, 0], sums[:, 1]
    logs = np.log((sums[:, 2:6] + tiny) / (sums[:, 6:] + small)).cumsum(axis=1)
    plain = {f"BLEU-{n}-no-brevity": np.exp(logs[:, n - 1] / n) for n in ORDERS}
    penalty = np.exp(np.minimum(0, 1 - (closest + small) / (length + tiny)))
    return {f"BLEU-{n}": plain[f"BLEU-{n}-no-brevity"] * penalty for n in ORDERS} | plain


def meteor(sums: Float[ndarray, "rows 23"]) -> dict[str, Float[ndarray, "rows"]]:
    """Compute METEOR 1.5 (Denkowski and Lavie 2014) from sums over images of the numbers that its program returns.

    The numbers are, in order: the words of captions and references, the function words among them, the content and
    function words of both that each kind of match matched, the chunks, and the matched words of both.
    """
    words, function, chunks, matched = sums[:, :2], sums[:, 2:4], sums[:, 20], sums[:, 21:]
    content, functional = np.moveaxis(sums[:, 4:20].reshape(-1, 4, 2, 2), 2, 0)  # each (rows, kinds, both)
    weighted = np.einsum("k,rkb->rb", METEOR_WEIGHTS, DELTA * content + (1 - DELTA) * functional)
    with np.errstate(divide="ignore", invalid="ignore"):  # no word, or none that matches: 0
        precision, recall = (weighted / (DELTA * (words - function) + (1 - DELTA) * function)).T
        mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
        fragmentation = chunks / matched.mean(axis=1)
        return {"METEOR": np.nan_to_num(mean * (1 - GAMMA * fragmentation**BETA))}
